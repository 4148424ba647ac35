"""Looking now and then whether what serves a sandbox is stopped, which what runs in it may do to it."""

from __future__ import annotations

from environments.errors import SandboxBroken


class Stops:
    """When to look next, and how often in a row it was found stopped."""

    def __init__(self, first: float, longest: float, most: int) -> None:
        """Naps in seconds: the ``first`` is doubled until the ``longest``; ``most`` stops are too many."""
        self._first, self._longest, self._most = first, longest, most
        self._count = 0
        self.nap = first
        """Seconds until the next look."""

    def begin(self) -> None:
        """Wait for something new: the next look is soon. The count stays."""
        self.nap = self._first

    def looked(self, stopped: bool) -> None:
        """Take a look's result. ``SandboxBroken`` where each of the last ``most`` looks found it stopped."""
        self._count = self._count + 1 if stopped else 0
        self.nap = self._first if stopped else min(2 * self.nap, self._longest)
        if self._count == self._most:
            raise SandboxBroken("what serves the sandbox is stopped again and again")
