"""Output of one command, collected up to a limit."""

from __future__ import annotations

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
    """A receiver that keeps all of stdout, and the beginning and end of stderr."""

    def __init__(self) -> None:
        self._stdout: list[bytes] = []
        self._stderr = CappedOutput(65536)

    def receive(self, stream: int, data: bytes) -> None:
        """Take output of stream 1 or 2."""
        if stream == 2:
            self._stderr.add(data)
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
