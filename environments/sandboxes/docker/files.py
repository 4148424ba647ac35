"""Files of a container, by small programs run in it: the agent's own view and rights, links included."""

from __future__ import annotations

import errno
import os
import re
import stat as modes
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from environments.sandboxes.arguments import bound_of, check_part, most_of, too_large
from environments.sandboxes.base import FileInfo, file_error
from environments.sandboxes.docker import scripts

_ERRORS = {
    scripts.NO_ENTRY: errno.ENOENT,
    scripts.IS_DIRECTORY: errno.EISDIR,
    scripts.NOT_DIRECTORY: errno.ENOTDIR,
    scripts.NO_ACCESS: errno.EACCES,
    scripts.NOT_REGULAR: errno.EINVAL,
}
_TEXTS = {
    "No space left": errno.ENOSPC,
    "quota exceeded": errno.EDQUOT,
    "Permission denied": errno.EACCES,
    "Read-only file system": errno.EROFS,
    "File name too long": errno.ENAMETOOLONG,
    "No such file": errno.ENOENT,
    "can't open": errno.ENOENT,
}
_ENTRY = re.compile(rb"([0-9a-f]+) (\d+) (-?\d+)")


@dataclass(slots=True)
class Outcome:
    """How a program ended, with all that it printed."""

    exit_code: int
    stdout: bytes
    stderr: bytes


Run = Callable[..., Awaitable[Outcome]]
"""``run(program, *arguments, stdin=None, most=…)`` in the container, as its default user."""


async def read(run: Run, path: str, offset: int, length: int | None) -> bytes:
    """See ``Sandbox.read_bytes``; ``path`` is absolute, as everywhere in this module."""
    check_part(offset, length)
    wanted, most = ("" if number is None else str(number) for number in (length, most_of(length)))
    outcome = await run(scripts.READ, path, str(offset), wanted, most, most=bound_of(length))
    return check(outcome, path).stdout


async def write(run: Run, path: str, data: bytes, mode: int | None) -> None:
    """See ``Sandbox.write_bytes``."""
    wanted = "" if mode is None else f"{mode:o}"
    check(await run(scripts.WRITE, path, str(len(data)), wanted, stdin=data), path)


async def stat(run: Run, path: str) -> FileInfo:
    """See ``Sandbox.stat``."""
    outcome = check(await run(scripts.STAT, path), path)
    return _information(path, outcome.stdout)


async def entries(run: Run, path: str) -> list[FileInfo]:
    """See ``Sandbox.list``."""
    outcome = check(await run(scripts.LIST, path), path)
    names, _, lines = outcome.stdout.partition(b"\0\0")
    found = _entries(path, names.split(b"\0"), lines) if names else iter(())
    return sorted(found, key=lambda entry: entry.path)


async def make_directory(run: Run, path: str) -> None:
    """Make a directory and its parents."""
    check(await run(scripts.MAKE_DIRECTORY, path), path)


def check(outcome: Outcome, path: str) -> Outcome:
    """Raise what the local file system would raise."""
    code, text = outcome.exit_code, outcome.stderr.decode("utf-8", "replace").strip()
    if code == 0:
        return outcome
    if code == scripts.TOO_LARGE:
        raise too_large(path)
    number = _ERRORS.get(code)
    if number is not None:
        reason = "not a regular file" if code == scripts.NOT_REGULAR else os.strerror(number)
        raise OSError(number, reason, path)
    number = next((number for known, number in _TEXTS.items() if known in text), errno.EIO)
    raise file_error(number, text[-500:] or f"the file program ended with exit code {code}", path)


def check_tar(outcome: Outcome, path: str) -> None:
    """Like ``check``; a file that changed while it was read is no error in a live tree."""
    if outcome.exit_code == 1 and b"changed as we read it" in outcome.stderr:
        return
    check(outcome, path)


def _entries(directory: str, names: list[bytes], lines: bytes) -> Iterator[FileInfo]:
    """Names may hold line ends, so each line is looked for with its name, in order."""
    position = 0
    for name in names:
        end = lines.find(b" //" + name + b"\n", position)
        if end < 0:  # it vanished between the two looks
            continue
        found = lines[lines.rfind(b"\n", 0, end) + 1 : end]
        if _ENTRY.fullmatch(found):
            position = end + len(name) + 4
            text = name.removeprefix(b"./").decode("utf-8", "surrogateescape")
            yield _information(f"{directory.rstrip('/')}/{text}", found)


def _information(path: str, line: bytes) -> FileInfo:
    found = _ENTRY.match(line)
    if found is None:
        raise OSError(errno.EIO, f"stat answered {line[:200]!r}", path)
    mode = int(found[1], 16)
    return FileInfo(path, _kind(mode), int(found[2]), modes.S_IMODE(mode), float(found[3]))


def _kind(mode: int) -> Literal["file", "directory", "link", "other"]:
    if modes.S_ISREG(mode):
        return "file"
    if modes.S_ISDIR(mode):
        return "directory"
    return "link" if modes.S_ISLNK(mode) else "other"
