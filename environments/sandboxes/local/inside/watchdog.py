"""Bounds on memory and processes where no control group enforces them."""

from __future__ import annotations

import signal

from . import processes

INTERVAL = 0.25
"""Seconds between two looks."""


class Watchdog:
    """Looks at all processes of a sandbox and kills what exceeds its limits.

    Too much memory: the greediest process is killed, as the kernel would. Too many processes: all
    of them are, since the number cannot be brought down fairly while it grows.
    """

    def __init__(self, memory: int | None, count: int | None) -> None:
        self._memory = memory
        self._count = count
        self.kills = 0

    @property
    def idle(self) -> bool:
        """Whether it has nothing to watch."""
        return self._memory is None and self._count is None

    def look(self, init: int) -> None:
        """Check the sandbox once."""
        living = processes.descendants(init)
        if self._count is not None and len(living) > self._count:
            self.kills += 1
            processes.kill_below(init)
            return
        if self._memory is None:
            return
        if sum(map(processes.private_memory, living)) <= self._memory:
            return
        sizes = {pid: processes.proportional_memory(pid) for pid in living}
        if sum(sizes.values()) > self._memory:
            self.kills += 1
            processes.send_signal(max(sizes, key=sizes.__getitem__), signal.SIGKILL)
