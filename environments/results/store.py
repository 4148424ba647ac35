"""The append-only store of one run: every attempt, at once, in a directory of its own.

::

    out.run/
      run.json         the manifest: what made these results
      attempts.jsonl   one attempt per line
      tools.json       tool schemas by hash
      sources.json     hashes of the environment's files, by its version
      payloads/        large values by SHA-256
      lock             names the process that writes
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from environments.errors import ConfigError, ResultsUnreadable, ResumeMismatch, StoreError
from environments.records import SCHEMA_VERSION, Attempt
from environments.results.durable import (
    DurableFile,
    encode,
    lock_exclusively,
    make_directory,
    move_aside,
    store_errors,
    sync_path,
    write_atomically,
)
from environments.results.fingerprint import differences
from environments.results.payloads import Payloads
from environments.results.plain import content_hash
from environments.results.reading import ATTEMPTS_FILE, PAYLOADS_DIRECTORY, last_of_each, read_attempts

logger = logging.getLogger(__name__)

MANIFEST_FILE = "run.json"
TOOLS_FILE = "tools.json"
SOURCES_FILE = "sources.json"
LOCK_FILE = "lock"


@dataclass(slots=True)
class Manifest:
    """What made a run. ``config`` is for people to read, without secrets (``fingerprint.scrub``);
    ``result_affecting`` is what a resume must find unchanged (``fingerprint.result_affecting``)."""

    run_id: str
    environment: str
    framework_version: str
    created_at: float
    config: dict[str, Any] = field(default_factory=dict)
    result_affecting: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    """The environment's class as ``module:Class`` or ``file.py:Class``; empty where neither names it."""
    schema_version: int = SCHEMA_VERSION


class RunStore:
    """The results of one run on disk. Made by ``open``; a context manager; safe to call from threads."""

    def __init__(self, directory: Path, manifest: Manifest, lock: int, file: DurableFile) -> None:
        self.directory = directory
        self.manifest = manifest
        """The manifest on disk: after a resume the one of the first run."""
        self._lock = lock
        self._file = file
        self._size_at_opening = file.size
        self._payloads = Payloads(directory / PAYLOADS_DIRECTORY)
        self._tools_mutex = threading.Lock()
        self._tools: dict[str, Any] | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        manifest: Manifest,
        *,
        resume: bool,
        any_settings: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> Self:
        """Open the store of a run, making it where there is none.

        ``resume=False`` keeps an earlier run under another name; ``any_settings`` takes one of other
        settings as well, and leaves its manifest as it is; ``defaults`` (``fingerprint.defaults``) are
        those of fields that there were not yet. Raises ``ResumeMismatch`` where the
        earlier run was made with other settings, ``StoreError`` where another process has it open
        or the directory cannot be used.
        """
        lock = _lock_directory(directory)
        try:
            if not resume and _holds_run(directory):
                move_aside(directory)
                os.close(lock)
                lock = _lock_directory(directory)
            if not _holds_run(directory):
                _keep_foreign_results(directory)
            stored = read_manifest(directory) if _holds_run(directory) else None
            if stored is not None and (any_settings or _holds_attempts(directory)):
                if not any_settings:
                    _check_resume(directory, stored, manifest, defaults)
            else:
                # A run that scored nothing binds nobody to its settings.
                stored = None
                write_atomically(directory / MANIFEST_FILE, _pretty(manifest))
            file = DurableFile(directory / ATTEMPTS_FILE)
        except BaseException:  # the lock is given back
            os.close(lock)
            raise
        return cls(directory, stored or manifest, lock, file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def append(self, attempt: Attempt) -> None:
        """Write one attempt. When this returns, killing the process cannot lose it.

        Raises ``StoreError`` where the disk is full or broken.
        """
        line, payloads = self._payloads.extract(encode(attempt))
        self._file.append(line, sync_first=payloads)

    def attempts(self) -> list[Attempt]:
        """What was there when the store was opened: the last record of each key and try."""
        path = self.directory / ATTEMPTS_FILE
        return last_of_each(read_attempts(path, end=self._size_at_opening))

    def put_tools(self, schemas: list[dict[str, Any]]) -> str:
        """Store tool schemas once; returns the hash that attempts name them by."""
        key = content_hash(schemas)
        with self._tools_mutex:
            if self._tools is None:
                self._tools = read_tools(self.directory)
            if key not in self._tools:
                self._tools[key] = schemas
                write_atomically(self.directory / TOOLS_FILE, _pretty(self._tools))
        return key

    def note_sources(self, version: str, files: dict[str, str]) -> dict[str, dict[str, str]]:
        """Store the hashes of an environment's files under its version; returns those of all versions."""
        path = self.directory / SOURCES_FILE
        known = _read_object(path)
        if version and version not in known:
            known[version] = files
            write_atomically(path, _pretty(known))
        return known

    def close(self) -> None:
        """Write everything to the disk and let go of the directory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._file.close()
        finally:
            os.close(self._lock)


def run_directory(path: Path) -> Path:
    """The run directory beside an output: ``out.run`` for ``out.jsonl``, ``out.txt.run`` for ``out.txt``.

    Raises ``ConfigError`` where the path can be no file.
    """
    if path.name in ("", "..") or path.is_dir():
        raise ConfigError(
            f"the output {str(path)!r} is a directory; a file is needed, such as {path / 'out.jsonl'}"
        )
    return path.with_suffix(".run") if path.suffix == ".jsonl" else path.with_name(f"{path.name}.run")


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a run. Raises ``ResultsUnreadable`` where it is missing or no manifest."""
    path = directory / MANIFEST_FILE
    try:
        data = orjson.loads(path.read_bytes())
        known = {f.name for f in dataclasses.fields(Manifest)}
        return Manifest(**{key: value for key, value in data.items() if key in known})
    except OSError as error:
        raise ResultsUnreadable(f"cannot read {path}: {error.strerror or error}. {_WAY_OUT}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ResultsUnreadable(f"{path} is no manifest of a run: {error}. {_WAY_OUT}") from error


def read_tools(directory: Path) -> dict[str, Any]:
    """Tool schemas of a run by hash; empty where there are none or the file is damaged."""
    return _read_object(directory / TOOLS_FILE)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except orjson.JSONDecodeError:
        logger.warning("%s is damaged and will be written anew", path)
        return {}
    return data if isinstance(data, dict) else {}


_WAY_OUT = (
    "Start anew with --env.resume false (the old results are kept under another name), or name another output"
)


def _check_resume(
    directory: Path, stored: Manifest, new: Manifest, defaults: Mapping[str, Any] | None
) -> None:
    found = [
        (name, before, now)
        for name, before, now in differences(stored.result_affecting, new.result_affecting, defaults)
        if name != "env.dataset_name" or not _same_place(before, now)
    ]
    if stored.environment != new.environment:
        found.insert(0, ("environment", stored.environment, new.environment))
    if found:
        lines = "\n".join(f"  {name}: was {before}, is now {now}" for name, before, now in found)
        raise ResumeMismatch(f"{directory} was made with other settings:\n{lines}\n{_WAY_OUT}.")


def _same_place(before: str, now: str) -> bool:
    """Whether two names of a dataset (as JSON) are one path: runs were once noted with what was typed."""
    old, new = (str(orjson.loads(name)) if name[0] == '"' else "" for name in (before, now))
    return bool(old and new) and os.path.realpath(old) == os.path.realpath(new)


def _keep_foreign_results(directory: Path) -> None:
    """Rename results that no run of ours wrote, those of the original for instance, which used the same
    names: the new run would replace them."""
    from environments.results.evaluate_log import METRICS_FILE, SAMPLES_FILE

    for name in (METRICS_FILE, SAMPLES_FILE):
        if kept := move_aside(directory / name):
            logger.warning("%s was of no run of ours; it is kept as %s", directory / name, kept.name)


def _holds_run(directory: Path) -> bool:
    if (directory / MANIFEST_FILE).exists():
        return True
    attempts = directory / ATTEMPTS_FILE
    return attempts.exists() and attempts.stat().st_size > 0


def _holds_attempts(directory: Path) -> bool:
    """Whether a run has anything scored that a resume would go on from."""
    file = directory / ATTEMPTS_FILE
    if not file.exists():
        return False
    with file.open("rb") as lines:
        return any(b'"outcome":"scored"' in line for line in lines)


def _lock_directory(directory: Path) -> int:
    """Take the directory for this process; the descriptor holds the lock until it is closed."""
    path = directory / LOCK_FILE
    with store_errors(f"cannot use {directory} for results"):
        while True:
            new = not directory.exists()
            make_directory(directory)
            if new:
                sync_path(directory.parent)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:  # moved aside by another process at this moment
                continue
            try:
                _flock(descriptor, directory)
                if _same_file(descriptor, path):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                    return descriptor
            except BaseException:  # nobody else has the descriptor
                os.close(descriptor)
                raise
            os.close(descriptor)


def _flock(descriptor: int, directory: Path) -> None:
    if not lock_exclusively(descriptor, directory):
        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise StoreError(f"{directory} is in use by process {owner}; wait for it or name another output")


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _pretty(value: Any) -> bytes:
    return orjson.dumps(orjson.loads(encode(value)), option=orjson.OPT_INDENT_2) + b"\n"
