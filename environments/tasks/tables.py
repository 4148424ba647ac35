"""Tables of tasks (the Hub's form of Terminal-Bench 2 and TBLite), written out as task directories.

A row has at least ``task_name`` and ``instruction``; its environment and tests are base64 texts of
gzipped tar archives. Everything that runs tasks then knows one form only. Archives are data of
strangers: what would leave its directory is refused.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from environments.errors import ConfigError
from environments.sandboxes.extraction import Extraction
from environments.tasks.finding import TASK_FILE

_LARGEST_ARCHIVE = 2 << 30
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_OWN_COLUMNS = {
    "task_name",
    "instruction",
    "docker_image",
    "environment_tar",
    "tests_tar",
    "test_sh",
    "solution_tar",
    "solution_sh",
    "agent_timeout_sec",
    "test_timeout_sec",
    "task_toml",
}


def is_task_row(row: Any) -> bool:
    """Whether a row describes a task."""
    return isinstance(row, Mapping) and isinstance(row.get("instruction"), str) and bool(_name_of(row))


def write_task(row: Mapping[str, Any], parent: Path) -> Path:
    """Write a row as a directory below ``parent``, named like the task; whole or not at all.

    Raises ``ConfigError`` for a row that is no task or holds an unsafe or damaged archive.
    """
    name = _name_of(row)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the task name {name!r} is no plain name")
    target = parent / name
    parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=parent))
    try:
        _fill(row, made, name)
        if target.exists():
            shutil.rmtree(target)
        made.chmod(0o755)
        made.replace(target)
    except BaseException:  # no half of a directory is left
        shutil.rmtree(made, ignore_errors=True)
        raise
    return target


def _name_of(row: Mapping[str, Any]) -> str:
    for field in ("task_name", "task_id", "id", "name"):
        if isinstance(row.get(field), str) and row[field]:
            return str(row[field])
    return ""


def _fill(row: Mapping[str, Any], directory: Path, name: str) -> None:
    (directory / "instruction.md").write_text(str(row["instruction"]), "utf-8")
    for column, part in (
        ("environment_tar", "environment"),
        ("tests_tar", "tests"),
        ("solution_tar", "solution"),
    ):
        if row.get(column):
            _unpack(row[column], directory / part, f"{name}: {column}")
    _lift(directory / "tests", "tests")
    _lift(directory / "environment", "environment")
    for column, file in (("test_sh", "tests/test.sh"), ("solution_sh", "solution/solve.sh")):
        if row.get(column):
            path = directory / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(str(row[column]), "utf-8")
            path.chmod(0o755)
    given = row.get("task_toml")
    text = given if isinstance(given, str) and given.strip() else _task_file(row)
    (directory / TASK_FILE).write_text(text, "utf-8")


def _lift(directory: Path, name: str) -> None:
    """Some archives hold the directory itself, others what is in it."""
    entries = list(directory.iterdir()) if directory.is_dir() else []
    if [entry.name for entry in entries] == [name] and entries[0].is_dir():
        for entry in entries[0].iterdir():
            if entry.name != name:
                entry.rename(directory / entry.name)
        if not any(entries[0].iterdir()):
            entries[0].rmdir()


def _unpack(value: Any, target: Path, where: str) -> None:
    with tempfile.TemporaryFile() as file:
        try:
            packed = value if isinstance(value, bytes) else base64.b64decode(str(value), validate=False)
            source: Any = io.BytesIO(packed)
            _copy(gzip.GzipFile(fileobj=source) if packed[:2] == _GZIP else source, file, where)
        except (binascii.Error, OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"{where} is no gzipped archive: {error}") from error
        file.seek(0)
        try:
            Extraction(target, max_bytes=_LARGEST_ARCHIVE, refused=None).run(os.dup(file.fileno()))
        except OSError as error:
            what = f" {error.filename!r}:" if error.filename else ""
            raise ConfigError(f"{where} is refused:{what} {error.strerror or error}") from error


def _copy(source: Any, target: IO[bytes], where: str) -> None:
    """Copy to the end; a small archive that unpacks to more than fits is refused."""
    total = 0
    while chunk := source.read(_CHUNK):
        total += len(chunk)
        if total > _LARGEST_ARCHIVE:
            raise ConfigError(f"{where} is refused: it unpacks to more than {_LARGEST_ARCHIVE} bytes")
        target.write(chunk)
    target.flush()


def _task_file(row: Mapping[str, Any]) -> str:
    """The settings of a row, and what else it says as metadata."""
    lines = ['schema_version = "1.0"', "", "[metadata]"]
    for key, value in row.items():
        if key not in _OWN_COLUMNS and value is not None and _NAME.fullmatch(key):
            lines.append(f"{json.dumps(key)} = {_toml(_tags(value) if key == 'tags' else value)}")
    for section, key, column in (
        ("agent", "timeout_sec", "agent_timeout_sec"),
        ("verifier", "timeout_sec", "test_timeout_sec"),
        ("environment", "docker_image", "docker_image"),
    ):
        value = row.get(column)
        if value not in (None, ""):
            lines += ["", f"[{section}]", f"{key} = {_toml(value)}"]
    return "\n".join(lines) + "\n"


def _tags(value: Any) -> Any:
    """Tags are a list, or the JSON text of one."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return [str(tag) for tag in found] if isinstance(found, list) else str(found)


def _toml(value: Any) -> str:
    """A value as TOML, whose strings, numbers and arrays are written as in JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(str(item)) for item in value) + "]"
    if isinstance(value, int | float):
        return repr(value) if value == value and abs(value) != float("inf") else _toml(str(value))
    return json.dumps(str(value), ensure_ascii=True).replace("\x7f", "\\u007f")
