"""File operations, each run by a process in the sandbox as the sandbox's user.

So whatever a path leads to, it can only be what a command of the agent could reach too.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

from . import kernel
from .settings import Settings
from .wire import Message

_PLAIN_MODE = 0o755
"""What a new file may have of its mode from the start: the rest is taken away by our file mode mask."""


def open_for_reading(settings: Settings, request: Message) -> tuple[dict[str, Any], int]:
    """Open a regular file; the framework reads it through the descriptor.

    Where a link led and the permissions are told to those who want to change it.
    """
    path = settings.resolve(request.header["path"])
    if request.header["follow"] and os.path.islink(path):
        path = os.path.realpath(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _irregular(mode)
    return {"path": path, "mode": stat.S_IMODE(mode)}, descriptor


def write(settings: Settings, request: Message) -> dict[str, Any]:
    """Replace or make a file: whole or not at all. The content is the body, or an attached file."""
    path = settings.resolve(request.header["path"]).rstrip("/") or "/"
    present = _status(path)
    if present is not None and stat.S_ISLNK(present.st_mode):
        path = os.path.realpath(path)
        present = _status(path)
    mode = _mode_to_set(present, request.header["mode"])
    if present is not None and not os.access(path, os.W_OK):  # replacing it would get round its mode
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    target, temporary, made = _make_temporary(os.path.dirname(path), mode)
    try:
        try:
            _fill(target, request)
            if mode & ~_PLAIN_MODE:
                os.fchmod(target, mode)
        finally:
            os.close(target)
        _put_in_place(temporary, path, replaces=present is not None)
    except OSError:
        os.unlink(temporary)
        raise
    return {"path": path, "made": made}


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


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _irregular(mode: int) -> OSError:
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return OSError(errno.EINVAL, "not a regular file")


def _mode_to_set(present: os.stat_result | None, wanted: int | None) -> int:
    if present is None:
        return 0o644 if wanted is None else wanted
    if not stat.S_ISREG(present.st_mode):
        raise _irregular(present.st_mode)
    return stat.S_IMODE(present.st_mode) if wanted is None else wanted


def _make_temporary(parent: str, mode: int) -> tuple[int, str, bool]:
    """A new file beside the one to write, open for writing. Whether the directory was missing and is made."""
    temporary = os.path.join(parent, f".hermes-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(temporary, flags, mode & _PLAIN_MODE), temporary, False
    except FileNotFoundError:
        os.makedirs(parent, 0o755, exist_ok=True)
        return os.open(temporary, flags, mode & _PLAIN_MODE), temporary, True


def _put_in_place(temporary: str, path: str, *, replaces: bool) -> None:
    """Rename. Where a file is replaced, both change places first: to rename over a file makes ext4 write
    the new one to the disk at once, for which a sandbox has no use."""
    if replaces:
        try:
            kernel.exchange(temporary, path)
        except OSError:  # a file system that cannot, or the file is gone by now
            os.rename(temporary, path)
        else:
            os.unlink(temporary)
        return
    os.rename(temporary, path)


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
