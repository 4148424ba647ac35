"""Landlock: a view of the file system for an unprivileged process that may make no namespaces."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from . import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
READ = EXECUTE | READ_FILE | READ_DIR
_IOCTL_DEV = 1 << 15
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | (1 << 14) | _IOCTL_DEV
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2


def abi() -> int:
    """Version of Landlock in this kernel. ``OSError`` where there is none."""
    return kernel.syscall("landlock_create_ruleset", 0, 0, 1)


def restrict(rules: Iterable[tuple[str, int]]) -> int:
    """Restrict this process and its descendants to ``(path, rights)``; all rights are given as -1.

    Paths that do not exist are left out. Needs ``no_new_privs``. Returns the version in force.
    """
    version = abi()
    handled = (1 << _RIGHTS_BY_ABI.get(version, 16)) - 1
    scoped = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= 6 else 0
    words = struct.pack("QQQ", handled, 0, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = kernel.syscall(
        "landlock_create_ruleset", ctypes.create_string_buffer(words, len(words)), len(words), 0
    )
    try:
        for path, rights in rules:
            _allow(ruleset, path, handled & rights)
        kernel.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOTDIR):
            return
        raise
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
        kernel.syscall("landlock_add_rule", ruleset, 1, rule, 0)
    finally:
        os.close(descriptor)
