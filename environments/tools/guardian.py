"""A small program that runs another one and ends it, with all that it started, when nobody listens.

    python -I -S guardian.py PROGRAM [ARGUMENT ...]

The program has our standard streams. When the other side of standard input is closed, be it on purpose
or because our owner was killed, it gets a moment to end by itself; then every process that descends from
it is killed, those that made sessions of their own too. SIGTERM does that at once.

It imports nothing of the framework: it starts in milliseconds and runs with the program's environment.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

GRACE = 2.0
"""Seconds that the program has to end after its standard input was closed."""

_SET_CHILD_SUBREAPER = 36


def main(argv: list[str]) -> int:
    """Run the program; its exit code, 127 where it cannot be started."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    waking, wake = os.pipe()
    for end in (waking, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    told_to_end = [False]
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.__setitem__(0, True))
    try:
        program = os.posix_spawnp(argv[0], argv, os.environ, setsigdef=[signal.SIGTERM, signal.SIGPIPE])
    except OSError as error:
        print(f"{argv[0]} cannot be started: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127
    code = _watch(program, waking, told_to_end)
    _kill_descendants()
    return code


def _watch(program: int, waking: int, told_to_end: list[bool]) -> int:
    """Until the program has ended, or has to."""
    poller = select.poll()
    poller.register(0, 0)  # hang-ups are told without being asked for
    poller.register(waking, select.POLLIN)
    deadline: float | None = None
    while True:
        code = _reap(program)
        if code is not None:
            return code
        if told_to_end[0] or (deadline is not None and time.monotonic() >= deadline):
            return 128 + signal.SIGKILL
        timeout = None if deadline is None else max(1.0, (deadline - time.monotonic()) * 1000)
        for descriptor, _ in poller.poll(timeout):
            if descriptor == waking:
                os.read(waking, 4096)
            else:
                poller.unregister(0)
                deadline = time.monotonic() + GRACE


def _reap(program: int) -> int | None:
    """Take in what has ended; the program's exit code if it is among that."""
    code = None
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if process == 0:
            return code
        if process == program:
            exit_code = os.waitstatus_to_exitcode(status)
            code = exit_code if exit_code >= 0 else 128 - exit_code


def _kill_descendants() -> None:
    """What loses its parent becomes ours, so killing our children again and again reaches all."""
    while children := _children():
        for process in children:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in children:
            try:
                os.waitpid(process, 0)
            except ChildProcessError:
                continue


def _children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would double the start-up time
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
