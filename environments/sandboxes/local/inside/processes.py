"""Process trees, seen from outside the sandbox through ``/proc``: find, freeze, kill.

A tree is whatever descends from one process. Our supervisors and init processes are subreapers,
so a process that detaches itself (``setsid``, double fork) stays in the tree.
"""

from __future__ import annotations

import os
import signal
import time

_PAGE = os.sysconf("SC_PAGE_SIZE")


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

    The tree is frozen first, until a look finds nothing that was not frozen already: a frozen
    process cannot fork, so nothing escapes between the look and the kill. Returns how many are
    left after ``patience`` seconds (processes stuck in the kernel).
    """
    deadline = time.monotonic() + patience
    while True:
        _freeze(root, spare, deadline)
        living = [pid for pid in descendants(root) if pid not in spare and state(pid) not in "ZX"]
        if not living or time.monotonic() > deadline:
            return len(living)
        for pid in living:
            send_signal(pid, signal.SIGKILL)
        time.sleep(0.001)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or its number belongs to a stranger by now
        return


def state(pid: int) -> str:
    """State letter of a process as in ``/proc/PID/stat``; ``X`` where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read().rpartition(b")")[2].split()[0][0])
    except OSError:
        return "X"


def count(uid: int) -> int:
    """Processes and threads of a user."""
    found = 0
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == uid:
                found += len(os.listdir(f"/proc/{entry}/task"))
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


def _freeze(root: int, spare: frozenset[int], deadline: float) -> None:
    frozen: set[int] = set()
    while time.monotonic() < deadline:
        new = [pid for pid in descendants(root) if pid not in frozen and pid not in spare]
        if not new:
            return
        for pid in new:
            send_signal(pid, signal.SIGSTOP)
        frozen.update(new)


def _has_children_files() -> bool:
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _children_by_parent(pid: int) -> list[int]:
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == pid:
                        found.append(int(entry))
            except (OSError, IndexError):
                continue
    return found
