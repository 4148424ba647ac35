"""Output of one command, collected up to a limit."""

from __future__ import annotations

import asyncio

from environments.sandboxes.arguments import LARGEST_READ
from environments.sandboxes.local.inside.output import CappedOutput


class Output:
    """A receiver that keeps head and tail of both streams."""

    def __init__(self, limit: int) -> None:
        self.stdout = CappedOutput(limit)
        self.stderr = CappedOutput(limit)

    def receive(self, stream: int, data: bytes) -> None:
        """Take output of stream 1 or 2."""
        (self.stderr if stream == 2 else self.stdout).add(data)


class WholeOutput:
    """A receiver that keeps all of stdout, and the beginning and end of stderr.

    What prints it is not trusted to stop in time, so there is a most: ``too_much`` is set where more came,
    which is not kept.
    """

    def __init__(self, most: int = LARGEST_READ) -> None:
        self.most = most
        self.too_much = asyncio.Event()
        self._stdout: list[bytes] = []
        self._stderr = CappedOutput(65536)
        self._left = most
        self.received = 0
        """Bytes of both streams until now."""

    def receive(self, stream: int, data: bytes) -> None:
        """Take output of stream 1 or 2."""
        self.received += len(data)
        if stream == 2:
            self._stderr.add(data)
            return
        self._left -= len(data)
        if self._left < 0:
            self.too_much.set()
        else:
            self._stdout.append(bytes(data))

    @property
    def stdout(self) -> bytes:
        """All of standard output."""
        return b"".join(self._stdout)

    @property
    def stderr(self) -> bytes:
        """Standard error, shortened in the middle where it is very long."""
        return self._stderr.value()
