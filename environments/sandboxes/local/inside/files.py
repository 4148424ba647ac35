"""File operations, each run by a process in the sandbox as the sandbox's user.

So whatever a path leads to, it can only be what a command of the agent could reach too.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

from .settings import Settings
from .wire import Message


def open_for_reading(settings: Settings, request: Message) -> tuple[dict[str, Any], int]:
    """Open a regular file; the framework reads it through the descriptor."""
    path = settings.resolve(request.header["path"])
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return {}, descriptor


def write(settings: Settings, request: Message) -> dict[str, Any]:
    """Replace or make a file: whole or not at all. The content is the body, or an attached file."""
    path = os.path.realpath(settings.resolve(request.header["path"]))
    parent = os.path.dirname(path)
    os.makedirs(parent, 0o755, exist_ok=True)
    mode = _mode_to_set(path, request.header["mode"])
    temporary = os.path.join(parent, f".hermes-{os.urandom(8).hex()}")
    target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _fill(target, request)
        os.fchmod(target, mode)
        os.close(target)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    return {}


def information(settings: Settings, request: Message) -> dict[str, Any]:
    """Kind, size, mode and time of one path, of the link itself where it is one."""
    path = settings.resolve(request.header["path"])
    return _describe(path, os.lstat(path))


def entries(settings: Settings, request: Message) -> dict[str, Any]:
    """The same for all entries of a directory."""
    path = settings.resolve(request.header["path"])
    found = []
    with os.scandir(path) as scan:
        for entry in scan:
            try:
                found.append(_describe(os.path.join(path, entry.name), entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
    return {"entries": found}


def make_directory(settings: Settings, request: Message) -> dict[str, Any]:
    """Make a directory with its parents; its absolute path comes back."""
    path = settings.resolve(request.header["path"])
    os.makedirs(path, 0o755, exist_ok=True)
    return {"path": path}


def ping(settings: Settings, request: Message) -> dict[str, Any]:
    """Answer, to show that the sandbox lives."""
    return {}


def _mode_to_set(path: str, wanted: int | None) -> int:
    try:
        present = os.stat(path).st_mode
    except FileNotFoundError:
        return 0o644 if wanted is None else wanted
    if stat.S_ISDIR(present):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(present):
        raise OSError(errno.EINVAL, "not a regular file")
    return stat.S_IMODE(present) if wanted is None else wanted


def _fill(target: int, request: Message) -> None:
    if request.header["attached"]:
        while os.sendfile(target, request.descriptors[1], None, 1 << 24):
            pass
        return
    view = memoryview(request.body)
    while view:
        view = view[os.write(target, view) :]


def _describe(path: str, status: os.stat_result) -> dict[str, Any]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return {
        "path": path,
        "kind": kinds.get(stat.S_IFMT(status.st_mode), "other"),
        "size": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "modified_at": status.st_mtime,
    }
