"""Which user of the host a sandbox's processes are.

Where the framework is root, every live sandbox gets a user id of its own that nobody else has:
limits per user then bind it, and two sandboxes cannot touch each other's files or processes.
"""

from __future__ import annotations

import errno
import fcntl
import os

SANDBOX_UID = 1000
"""The same user as seen inside."""

_FIRST_UID = 1_900_000_000
"""Start of our range: a part of the number space that no distribution gives to users or containers."""

_COUNT = 60_000


def own_range() -> range:
    """User ids that this process may give to sandboxes; empty where it is not root.

    Inside a container's user namespace only the ids mapped there exist; then the upper ones are
    taken.
    """
    if os.geteuid() != 0:
        return range(0)
    with open("/proc/self/uid_map", "rb") as file:
        spans = [tuple(map(int, line.split())) for line in file]
    for start, _, length in spans:
        if start <= _FIRST_UID and start + length >= _FIRST_UID + _COUNT:
            return range(_FIRST_UID, _FIRST_UID + _COUNT)
    start, _, length = max(spans, key=lambda span: span[2])
    if length < 10_000:
        return range(0)
    return range(start + length - 5_000, start + length - 1_000)


def reserve(path: str, candidates: range) -> int:
    """Take a user id that no live sandbox has; it is free again when this process ends.

    ``path`` is a file shared by all runs of this user; byte *n* is locked for id *n*.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    first = int.from_bytes(os.urandom(4)) % len(candidates)
    for step in range(len(candidates)):
        index = (first + step) % len(candidates)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            continue
        return candidates[index]  # the descriptor stays open: it holds the lock
    raise OSError(errno.EAGAIN, "all user ids for sandboxes are taken")


def become(uid: int) -> None:
    """Change this process to the user and group ``uid`` for good."""
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
