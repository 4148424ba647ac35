"""Process trees, seen from outside the sandbox through ``/proc``: find, freeze, kill.

A tree is whatever descends from one process. Our supervisors and init processes are subreapers,
so a process that detaches itself (``setsid``, double fork) stays in the tree.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_QUIET_LOOKS = 3
_START = 19
"""Place of the start time among the words of ``/proc/PID/stat`` that follow the name."""


def children(pid: int) -> list[int]:
    """Living children of a process; none where it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        found: list[int] = []
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        return found
    except (FileNotFoundError, ProcessLookupError):
        return [] if _has_children_files() else _children_by_parent(pid)


def descendants(root: int) -> list[int]:
    """All processes below ``root``, parents before children; ``root`` itself is not among them."""
    found: list[int] = []
    seen = {root}
    todo = [root]
    while todo:
        for child in children(todo.pop()):
            if child not in seen:
                seen.add(child)
                found.append(child)
                todo.append(child)
    return found


def name(pid: int) -> str:
    """The process's own name (``comm``), empty where it is gone."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().rstrip(b"\n").decode("utf-8", "replace")
    except OSError:
        return ""


def kill_below(root: int, *, spare: frozenset[int] = frozenset(), patience: float = 5.0) -> int:
    """Kill all descendants of ``root``, but not ``root`` nor the processes in ``spare``.

    Returns how many are left after ``patience`` seconds (processes stuck in the kernel).
    """
    return kill_found(lambda: [pid for pid in descendants(root) if pid not in spare], patience)


def kill_found(look: Callable[[], list[int]], patience: float) -> int:
    """Kill all processes that ``look`` finds, and wait until they are dead. Returns how many are left.

    They are frozen first, until a look finds nothing that was not frozen already: a frozen process
    cannot fork, so nothing escapes between the look and the kill.

    A single look is not trusted: while a process dies, its children move to another parent, and
    the kernel's list of children skips one when its neighbour is reaped. So each process that was
    ever found is watched to its end, and only several looks in a row that find nothing alive and
    nothing changed count.
    """
    deadline = time.monotonic() + patience
    known: set[_Process] = set()
    last: set[_Process] | None = None
    quiet = 0
    while quiet < _QUIET_LOOKS:
        found = _freeze(look, deadline)
        known |= found
        living = [process for process in known if process.lives()]
        if time.monotonic() > deadline:
            return len(living)
        quiet = quiet + 1 if not living and found == last else 0
        last = found
        for process in living:
            send_signal(process.pid, signal.SIGKILL)
        if living:
            time.sleep(0.001)
    return 0


class _Process(NamedTuple):
    """A process by its number and the time it began, since numbers are used again."""

    pid: int
    start: bytes

    def lives(self) -> bool:
        words = _status(self.pid)
        return bool(words) and words[0] not in b"ZX" and words[_START] == self.start


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or its number belongs to a stranger by now
        return


def state(pid: int) -> str:
    """State letter of a process as in ``/proc/PID/stat``; ``X`` where it is gone."""
    words = _status(pid)
    return chr(words[0][0]) if words else "X"


def threads(pid: int) -> int:
    """Threads of a process; none where it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def count(uid: int) -> int:
    """Processes and threads of a user."""
    found = 0
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == uid:
                found += threads(int(entry))
        except OSError:  # gone meanwhile
            continue
    return found


def private_memory(pid: int) -> int:
    """Resident bytes of a process that are no shared file, counted fast."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            words = file.read().split()
        return max(0, int(words[1]) - int(words[2])) * _PAGE
    except (OSError, IndexError):
        return 0


def proportional_memory(pid: int) -> int:
    """Resident bytes of a process, its share of what it shares with others; counted slowly."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return private_memory(pid)
    return 0


def _freeze(look: Callable[[], list[int]], deadline: float) -> set[_Process]:
    """Stop all that ``look`` finds, until it finds nothing new; returns what it found."""
    frozen: dict[int, _Process] = {}
    while time.monotonic() < deadline:
        new = [pid for pid in look() if pid not in frozen]
        if not new:
            break
        for pid in new:
            words = _status(pid)
            frozen[pid] = _Process(pid, words[_START] if words else b"")
            send_signal(pid, signal.SIGSTOP)
    return set(frozen.values())


def _status(pid: int) -> list[bytes]:
    """What ``/proc/PID/stat`` says from the state letter on; nothing where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _has_children_files() -> bool:
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _children_by_parent(pid: int) -> list[int]:
    parent = str(pid).encode()
    numbers = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [number for number in numbers if _status(number)[1:2] == [parent]]
