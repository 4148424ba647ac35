"""Files as an editor takes and leaves them: a link is followed, so that its file changes and it stays.

Composed of what every sandbox can do; one that can do it in a single step has its own ``load`` and ``save``.
"""

from __future__ import annotations

import errno
import os
import posixpath
from dataclasses import dataclass

from environments.sandboxes.base import FileInfo, Sandbox
from environments.sandboxes.reading import follow, read_start


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A regular file."""

    path: str
    """Where it really is, if a link led to it; else as it was asked for."""
    mode: int
    """Its permissions."""
    data: bytes
    """Its content, or the start of it."""
    size: int
    """Bytes of the whole."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file that was written."""

    path: str
    """Where it really is, if a link led to it; else as it was asked for."""
    made_directories: bool
    """Whether its directory was missing."""


async def load(sandbox: Sandbox, path: str, limit: int) -> LoadedFile:
    """See ``Sandbox.load``."""
    info = await follow(sandbox, path)
    if info.kind == "link":  # it leads nowhere
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if info.kind == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    data, size = await read_start(sandbox, info.path, limit)
    return LoadedFile(info.path, info.mode & 0o7777, data, size)


async def save(sandbox: Sandbox, path: str, data: bytes) -> SavedFile:
    """See ``Sandbox.save``."""
    info = await _find(sandbox, path)
    if info is not None and info.kind == "link":
        found = await sandbox.exec(["readlink", "-f", "--", path], timeout=60)
        target = os.fsdecode(found.stdout.removesuffix(b"\n"))
        if found.exit_code == 0 and target:
            path = target
            info = await _find(sandbox, path)
    if info is not None and info.kind == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    # What is there already has a directory around it.
    alone = info is None and await _find(sandbox, posixpath.dirname(path) or ".") is None
    await sandbox.write_bytes(path, data)
    return SavedFile(path, alone)


async def _find(sandbox: Sandbox, path: str) -> FileInfo | None:
    try:
        return await sandbox.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
