"""A system-call filter: what no program in a sandbox needs and what has broken kernels before."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct

from . import kernel

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_LIMIT_ANOTHER = {"x86_64": 302, "aarch64": 261}
"""prlimit64."""
_SIGNAL_ANOTHER = {"x86_64": (62, 200, 234, 129, 297, 434), "aarch64": (129, 130, 131, 138, 240, 434)}
"""kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open."""
_REFUSED = {
    "x86_64": (248, 249, 250, 321, 298, 323, 425, 426, 427, 246, 320, 175, 176, 313, 304),
    "aarch64": (217, 218, 219, 280, 241, 282, 425, 426, 427, 104, 294, 105, 106, 273, 265),
}
"""Kernel keyrings (three calls), bpf, perf_event_open, userfaultfd, io_uring (three; it could make
sockets past this filter), kexec (two), kernel modules (three), open_by_handle_at."""

ANY_SOCKET: frozenset[int] | None = None
NO_SOCKET: frozenset[int] = frozenset()
UNIX_SOCKET = frozenset({int(socket.AF_UNIX)})
INTERNET_SOCKET = frozenset({int(socket.AF_INET), int(socket.AF_INET6), int(socket.AF_NETLINK)})


def install(families: frozenset[int] | None, *, protected: int, from_signals: bool = False) -> None:
    """Filter this process and its descendants; ``families`` are the sockets they may make.

    ``protected`` is a process whose limits they may not set: one on its processor time would kill it.
    ``from_signals``: nor may they send it any, neither by number nor as one of its group or of all.
    Needs ``no_new_privs``. Raises ``OSError`` where the kernel or the machine cannot do it.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURE:
        raise OSError(errno.ENOSYS, f"no system-call filter for {machine}")
    program = b"".join(_program(machine, families, protected, from_signals))
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.byref(Program(len(program) // 8, ctypes.addressof(buffer))))


def _program(
    machine: str, families: frozenset[int] | None, protected: int, from_signals: bool
) -> list[bytes]:
    steps = [
        _step(_LOAD, 4),  # architecture
        _step(_JUMP_EQUAL, _ARCHITECTURE[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, 0),  # number of the call
    ]
    if machine == "x86_64":  # the x32 calls have other numbers
        steps += [_step(_JUMP_GREATER_EQUAL, 0x40000000, 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    for number in _REFUSED[machine]:
        steps += [_step(_JUMP_EQUAL, number, 0, 1), _step(_RETURN, _ERRNO | errno.EPERM)]
    steps += _refuse_argument(_LIMIT_ANOTHER[machine], protected)
    for number in _SIGNAL_ANOTHER[machine] if from_signals else ():
        for argument in (protected, -protected, -1):
            steps += _refuse_argument(number, argument)
    if families is not None:
        steps += [_step(_JUMP_EQUAL, _SOCKET[machine], 0, len(families) + 2), _step(_LOAD, 16)]  # argument 1
        wanted = sorted(families)
        for index, family in enumerate(wanted):
            steps.append(_step(_JUMP_EQUAL, family, len(wanted) - index, 0))
        steps.append(_step(_RETURN, _ERRNO | errno.EACCES))
    steps.append(_step(_RETURN, _ALLOW))
    return steps


def _refuse_argument(number: int, value: int) -> list[bytes]:
    """Steps that refuse a call whose first argument is this number."""
    return [
        _step(_JUMP_EQUAL, number, 0, 4),
        _step(_LOAD, 16),
        _step(_JUMP_EQUAL, value & 0xFFFFFFFF, 0, 1),
        _step(_RETURN, _ERRNO | errno.EPERM),
        _step(_LOAD, 0),
    ]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
