"""Where tasks come from: a directory, a git repository, a table in a file, or a dataset of the Hub.

``load_tasks`` takes any of them by name. What is not a directory already is kept in a cache directory
as task directories, under a name that depends on its content or revision, and is made once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from environments.errors import ConfigError, MissingExtra, suggestion
from environments.tasks.directory import load_tasks_below, printable
from environments.tasks.finding import find_tasks
from environments.tasks.hub import rows_of_hub
from environments.tasks.model import Task
from environments.tasks.tables import is_task_row, write_task

logger = logging.getLogger(__name__)

TABLES = (".jsonl", ".json", ".parquet")
_GIT = re.compile(r"(?:git\+)?(?:https?|ssh|file|git)://\S+|[\w.-]+@[\w.-]+:\S+")
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_GIT_TIMEOUT = 1800
_GIT_VERBS = ("ls-remote", "init", "fetch", "checkout")
_CREDENTIALS = re.compile(r"://[^/@\s]+@")
_COMPLETE = ".complete"
_MOST_SHOWN = 20
_FORM = 2
"""Of what is written out for a row; what an earlier version wrote is not taken again."""


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks and what they were loaded from. ``revision`` is a commit, or a hash of the content."""

    tasks: list[Task]
    source: str
    revision: str
    broken: Mapping[str, str] = field(default_factory=dict)
    """Tasks that cannot be read, and why; only where they were asked for."""
    resembling: Mapping[str, str] = field(default_factory=dict)
    """What beside them looks like a task and is none, and why."""
    without: tuple[str, ...] = ()
    """Other directories beside them that hold no task."""


def load_tasks(
    source: str,
    *,
    split: str = "train",
    revision: str | None = None,
    cache: Path | None = None,
    keep_broken: bool = False,
) -> TaskSet:
    """All tasks of a source, sorted by name: the path of each below the source's directory.

    ``source`` is a directory of task directories (or one task), a ``.jsonl`` or ``.parquet`` file, a
    git URL (``#subdirectory`` may follow; ``revision`` is a branch, tag or commit), or the name of a Hub
    dataset (needs the extra ``datasets``; without a revision the newest commit is looked up and noted).
    A task that cannot be read is an error, or with ``keep_broken`` stands in the set's ``broken``.
    Raises ``ConfigError`` and ``MissingExtra``.
    """
    if printable(source) != source:
        raise ConfigError(f"{source}: the path is no UTF-8 text; rename it, or make a link to it")
    try:
        place = _place_of(source, split, revision, cache or default_cache())
    except OSError as error:
        at = f"{error.filename}: " if error.filename and str(error.filename) != source else ""
        raise ConfigError(f"{source} cannot be loaded: {at}{error.strerror or error}") from error
    loaded = load_tasks_below(place.root, inside=place.inside)
    if loaded.broken and not keep_broken:
        shown = list(loaded.broken.values())
        more = f"\nand {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
        raise ConfigError("\n".join(shown[:_MOST_SHOWN]) + more)
    tasks = sorted(loaded.tasks, key=lambda task: task.name)
    whole = hashlib.sha256("".join(f"{t.name}={t.digest};" for t in tasks).encode()).hexdigest()[:16]
    found = loaded.found
    return TaskSet(
        tasks, source, place.revision or whole, loaded.broken, found.resembling, tuple(found.without)
    )


def default_cache() -> Path:
    """Where tasks that are no directories are kept: below the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hermes-environments" / "tasks"


@dataclass(frozen=True, slots=True)
class _Place:
    """Task directories on this machine. ``inside`` is set where they are a stranger's."""

    root: Path
    revision: str | None = None
    inside: Path | None = None


def _place_of(source: str, split: str, revision: str | None, cache: Path) -> _Place:
    path = Path(source).expanduser()
    if path.exists() and revision is not None:
        kind = "directory" if path.is_dir() else "file"
        raise ConfigError(f"{source} is a {kind}, which has no revisions; leave dataset_revision unset")
    if path.is_dir():
        return _Place(path)
    if path.is_symlink() and not path.exists():
        raise ConfigError(f"{source} is a link that leads nowhere")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{source} is neither a file nor a directory")
    if path.is_file():
        if path.suffix not in TABLES:
            raise ConfigError(f"{source} is no table of tasks: its name ends in none of {', '.join(TABLES)}")
        return _written(_rows_of_file(path), source, _hash_of_file(path), cache)
    if _GIT.fullmatch(source.partition("#")[0]):
        return _checked_out(source, revision, cache)
    if path.suffix in TABLES or source.startswith((".", "/", "~")) or not _HUB.fullmatch(source):
        raise ConfigError(f"there is no file or directory {source}{_near(path)}")
    rows, commit = rows_of_hub(source, split, revision)
    return _written(rows, source, f"{commit}/{split}", cache, revision=commit)


def _near(path: Path) -> str:
    """Names beside a path that is not there, if some are alike."""
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"; nor is there a directory {path.parent}"
    return suggestion(path.name, beside) if get_close_matches(path.name, beside) else ""


# --- tables -----------------------------------------------------------------------------------------------


def _written(
    rows: Iterable[Mapping[str, Any]], source: str, key: str, cache: Path, *, revision: str | None = None
) -> _Place:
    """Tasks of a table's rows, written out once per ``key``, which is the revision unless one is given."""
    name = hashlib.sha256(f"{_FORM} {source}@{key}".encode()).hexdigest()[:24]
    target = cache / name
    if not (target / _COMPLETE).is_file():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=cache))
        try:
            _write_rows(rows, made, source)
            (made / _COMPLETE).write_text(f"{source}\n{key}\n")
            _put(made, target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return _Place(target, revision or key, target)


def _put(made: Path, target: Path) -> None:
    """Rename into place; where another process was faster its directory is as good."""
    if target.exists() and not (target / _COMPLETE).is_file():
        shutil.rmtree(target)
    try:
        made.chmod(0o755)
        made.rename(target)
    except OSError:
        if not (target / _COMPLETE).is_file():
            raise


def _write_rows(rows: Iterable[Mapping[str, Any]], directory: Path, source: str) -> None:
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        if not is_task_row(row):
            columns = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise ConfigError(
                f"{source}, row {number} is no task: task_name and instruction are needed, it has {columns}"
            )
        path = write_task(row, directory)
        if path.name in seen:
            raise ConfigError(f"{source}, row {number}: there are two tasks called {path.name!r}")
        seen.add(path.name)
    if not seen:
        raise ConfigError(f"{source} has no rows")


def _rows_of_file(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        yield from _rows_of_parquet(path)
        return
    if path.suffix == ".json":
        try:
            found = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise ConfigError(f"{path} is no JSON: {error}") from error
        yield from found if isinstance(found, list) else [found]
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:  # bytes that are no text are such an error too
                    raise ConfigError(f"{path}, line {number} is no JSON: {error}") from error


def _rows_of_parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise MissingExtra(f"reading {path}", "datasets") from None
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=16):
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:  # its errors are these
        raise ConfigError(f"{path} is no Parquet file: {error}") from error


def _hash_of_file(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            whole.update(chunk)
    return whole.hexdigest()[:16]


# --- git --------------------------------------------------------------------------------------------------


def _checked_out(source: str, revision: str | None, cache: Path) -> _Place:
    """A repository at one commit. A commit that is there already is not fetched again."""
    address, _, below = source.removeprefix("git+").partition("#")
    if ".." in below.split("/") or below.startswith("/"):
        raise ConfigError(f"{source}: {below!r} leads out of the repository")
    commit = revision if revision and re.fullmatch(r"[0-9a-f]{40}", revision) else None
    commit = commit or _commit_of(address, revision)
    target = cache / hashlib.sha256(f"{address}@{commit}".encode()).hexdigest()[:24]
    if not (target / _COMPLETE).is_file():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".git.", dir=cache))
        try:
            _git("init", "-q", str(made))
            _git("-C", str(made), "fetch", "-q", "--depth", "1", address, commit)
            _git("-C", str(made), "checkout", "-q", "FETCH_HEAD")
            shutil.rmtree(made / ".git")
            (made / _COMPLETE).write_text(f"{source}\n{commit}\n")
            _put(made, target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    root = target / below
    if not root.is_dir() or not find_tasks(root).tasks:
        raise ConfigError(f"{source} at {commit[:12]} holds no task{f' below {below}' if below else ''}")
    return _Place(root, commit, target)


def _commit_of(address: str, revision: str | None) -> str:
    wanted = revision or "HEAD"
    lines = _git("ls-remote", address, wanted, f"{wanted}^{{}}").splitlines()
    if not lines:
        raise ConfigError(f"{address} has no branch or tag {wanted!r}")
    return lines[-1].split()[0]  # of a tag and what it points to, the latter


def _git(*arguments: str) -> str:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        ended = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"git {arguments[0]} failed: {error}") from error
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        said = "\n  ".join(lines[-_MOST_SHOWN:]) or f"exit code {ended.returncode}"
        verb = next(word for word in arguments if word in _GIT_VERBS)
        raise ConfigError(f"git {verb} failed: {_CREDENTIALS.sub('://***@', said)}")
    return ended.stdout
