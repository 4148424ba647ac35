"""Thin calls into the kernel that the standard library lacks. Each raises ``OSError``."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NAME = 1, 4, 8, 15
PR_SET_SECCOMP, PR_CAPBSET_DROP = 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

_MACHINES: dict[str, dict[str, int]] = {
    "x86_64": {"pivot_root": 155, "capset": 126, "keyctl": 250, "renameat2": 316},
    "aarch64": {"pivot_root": 41, "capset": 91, "keyctl": 219, "renameat2": 276},
}
_LANDLOCK = {"landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446}


class NoProcess(OSError):
    """The kernel gives us no other process."""


def fork() -> int:
    """``os.fork``, whose refusal is told apart from all other errors: ``NoProcess``."""
    try:
        return os.fork()
    except OSError as error:
        raise NoProcess(error.errno, error.strerror) from error


def syscall(name: str, *arguments: object) -> int:
    """Call the kernel by name; ``OSError`` carries its errno and that name."""
    number = _LANDLOCK.get(name) or _MACHINES.get(os.uname().machine, {}).get(name)
    if number is None:
        raise OSError(38, f"{name} is not known for {os.uname().machine}")
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    return _checked(result, name)


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags`` for new ones."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Join a namespace."""
    _checked(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount, bind or remount."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    _checked(result, f"mount {target}")


def unmount(target: str) -> None:
    """Detach a mount and all below it."""
    _checked(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"unmount {target}")


def pivot_root(new_root: str, old_root: str) -> None:
    """Make ``new_root`` the root; the former one appears at ``old_root``."""
    syscall("pivot_root", ctypes.c_char_p(os.fsencode(new_root)), ctypes.c_char_p(os.fsencode(old_root)))


def exchange(one: str, other: str) -> None:
    """Have two files take each other's place, in one step."""
    paths = [ctypes.c_char_p(os.fsencode(path)) for path in (one, other)]
    syscall("renameat2", _AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE)


def prctl(option: int, argument: object = 0, third: object = 0) -> None:
    """Set an attribute of this process."""
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in (argument, third)]
    _checked(
        _libc.prctl(ctypes.c_int(option), *words, ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl {option}"
    )


def set_name(name: str) -> None:
    """Name of this process in ``/proc``, at most 15 characters."""
    prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()))


def drop_capabilities() -> None:
    """Give up every capability for good, in all sets."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # the kernel's last one is behind us, or we were never allowed to
            break
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    nothing = ctypes.create_string_buffer(24)
    syscall("capset", header, nothing)


def leave_session_keyring() -> None:
    """Take an empty session keyring instead of the one we inherited, which may hold secrets."""
    try:
        syscall("keyctl", 1, 0, 0, 0, 0)
    except OSError:  # a kernel without keyrings has none to leak
        return


def bring_loopback_up() -> None:
    """Set the loopback interface of this network namespace up."""
    request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, request)  # SIOCSIFFLAGS


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    prctl(PR_SET_PDEATHSIG, 9)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
