"""A file that lines are appended to and never lost from.

``append`` returns after one ``write`` of the whole line, so a process that is killed loses nothing.
Against power loss a background thread calls ``fdatasync``, at most every 0.2 s, off the caller's
way. A line that could not be written whole (full disk) is cut off again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from environments.errors import StoreError
from environments.records import to_json
from environments.results.plain import plain

logger = logging.getLogger(__name__)

SYNC_INTERVAL = 0.2
"""Shortest time between two ``fdatasync`` calls, seconds."""

_BLOCK = 1 << 16


class DurableFile:
    """An append-only file of JSON lines. Repairs a half-written last line when opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.repaired = False
        """Whether the last line was half-written and has been repaired."""
        self._lock = threading.Lock()
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._syncer: threading.Thread | None = None
        self._sync_error: OSError | None = None
        self._to_sync: list[Path] = []
        with store_errors(f"cannot open {path}"):
            make_directory(path.parent)
            new = not path.exists()
            if not new and not path.is_file():
                raise StoreError(f"{path} is no regular file; move it away, or name another output")
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)
        try:
            with store_errors(f"cannot read {path}"):
                self._size = self._repair()
                if new:
                    sync_path(path.parent)
        except BaseException:  # nobody else has the descriptor
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Length in bytes, whole lines only."""
        return self._size

    def append(self, line: bytes, *, sync_first: list[Path] | None = None) -> None:
        """Write one line, given without its newline. ``sync_first`` are files it refers to.

        Raises ``StoreError`` where the line could not be written, or an earlier one not be synced.
        """
        with self._lock:
            if self._closing.is_set():
                raise StoreError(f"{self.path} is closed")
            if self._sync_error is not None:
                raise StoreError(f"cannot write {self.path} to the disk: {self._sync_error}")
            self._write(line + b"\n")
            self._to_sync.extend(sync_first or [])
            if self._syncer is None:
                self._syncer = threading.Thread(target=self._sync_loop, name="results-sync", daemon=True)
                self._syncer.start()
        self._dirty.set()

    def lock(self) -> bool:
        """Keep other processes from taking the file, by whichever name they know it, until it is closed.

        False where one has it already.
        """
        with store_errors(f"cannot lock {self.path}"):
            return lock_exclusively(self._descriptor, self.path)

    def close(self) -> None:
        """Write everything to the disk and close. Idempotent."""
        with self._lock:  # no append is under way
            if self._closing.is_set():
                return
            self._closing.set()
        self._dirty.set()
        if self._syncer is not None:
            self._syncer.join()
            self._sync()
        os.close(self._descriptor)
        if self._sync_error is not None:
            raise StoreError(f"cannot write {self.path} to the disk: {self._sync_error}")

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except BaseException as error:  # no half of a line is left
            if written:
                with contextlib.suppress(OSError):  # the next opening repairs it too
                    os.ftruncate(self._descriptor, self._size)
            if isinstance(error, OSError):
                raise StoreError(f"cannot write to {self.path}: {error.strerror or error}") from error
            raise
        self._size += len(data)

    def _sync_loop(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            self._dirty.clear()
            self._sync()
            self._closing.wait(SYNC_INTERVAL)

    def _sync(self) -> None:
        with self._lock:
            paths, self._to_sync = self._to_sync, []
        try:
            for path in paths:
                sync_path(path)
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._sync_error = error

    def _repair(self) -> int:
        """Mend a last line without newline; returns the length of the file."""
        size = os.fstat(self._descriptor).st_size
        start = self._start_of_last_line(size)
        if start == size:
            return size
        line = os.pread(self._descriptor, size - start, start)
        if _is_object(line):
            os.write(self._descriptor, b"\n")
            size += 1
        elif line.lstrip()[:1] in (b"{", b"") or not line.strip(b"\0"):
            os.ftruncate(self._descriptor, start)
            size = start
        else:
            raise StoreError(f"{self.path} is no file of results: its last line is no JSON; left untouched")
        self.repaired = True
        logger.warning("%s: the last line was half-written (%d bytes); repaired", self.path, len(line))
        return size

    def _start_of_last_line(self, size: int) -> int:
        end = size
        while end > 0:
            begin = max(0, end - _BLOCK)
            newline = os.pread(self._descriptor, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return 0


def lock_exclusively(descriptor: int, path: Path) -> bool:
    """Lock an open file for this process; False where another one holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        logger.warning("%s: the file system has no locks; let only one process write here", path)
    return True


def read_lines(path: Path, *, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and content of each line that is not blank, up to byte ``end``."""
    with store_errors(f"cannot read {path}"), path.open("rb") as file:
        position = 0
        for number, line in enumerate(file, 1):
            if end is not None and position >= end:
                return
            position += len(line)
            stripped = line.strip()
            if stripped:
                yield number, stripped


def encode(record: Any) -> bytes:
    """One line of JSON for any record; what JSON cannot carry is made plain."""
    try:
        return to_json(record)
    except TypeError:  # lone surrogates, integers beyond 64 bits, deep nesting
        return _dump_plain(record)


def _dump_plain(record: Any) -> bytes:
    import json

    return json.dumps(plain(record), ensure_ascii=False, separators=(",", ":")).encode()


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file whole or not at all, on the disk when this returns."""
    write_via_temporary(path, lambda temporary: temporary.write_bytes(data))


def write_via_temporary(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in its place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with store_errors(f"cannot write {path}"):
        make_directory(path.parent)
        try:
            write(temporary)
            sync_path(temporary)
            temporary.replace(path)
        except BaseException:  # no half of a file is left
            temporary.unlink(missing_ok=True)
            raise
        sync_path(path.parent)


def move_aside(path: Path) -> Path | None:
    """Rename ``out.jsonl`` to the first free ``out.N.jsonl``; returns the new path, None if not there."""
    if not path.exists():
        return None
    target = _free_name(path)
    with store_errors(f"cannot move {path} aside; name another output"):
        path.rename(target)
    logger.info("kept the earlier %s as %s", path, target)
    return target


def copy_aside(path: Path) -> Path | None:
    """Keep ``out.jsonl`` under the first free ``out.N.jsonl`` as well, before it is replaced whole."""
    import shutil

    if not path.exists():
        return None
    target = _free_name(path)
    with store_errors(f"cannot copy {path} to {target}"):
        shutil.copy2(path, target)
    return target


def _free_name(path: Path) -> Path:
    number = 1
    while (target := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return target


def make_directory(path: Path) -> None:
    """Make a directory and those above it. Raises ``StoreError`` that says what is in its way."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        blocking = next((p for p in (path, *path.parents) if os.path.lexists(p) and not p.is_dir()), path)
        kind = "a broken link" if blocking.is_symlink() and not blocking.exists() else "a file"
        raise StoreError(
            f"cannot use {path} for results: a directory is needed there, but {blocking} is {kind}; "
            "move it away or name another output"
        ) from error


def sync_path(path: Path) -> None:
    """``fsync`` a file or directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn an ``OSError`` into a ``StoreError`` that says what was tried."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}") from error


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False
