"""What commands of a container print, as it is kept."""

from __future__ import annotations

from environments.sandboxes.arguments import too_large
from environments.sandboxes.docker.execution import STDOUT, Execution
from environments.sandboxes.local.inside.output import CappedOutput

LARGEST_MESSAGE = 20_000
"""Bytes kept of what programs of ours complain."""


class Output:
    """Both streams of a command, capped."""

    def __init__(self, limit: int) -> None:
        self.out, self.err = CappedOutput(limit), CappedOutput(limit)

    async def read(self, execution: Execution) -> None:
        """Take all that comes."""
        async for stream, data in execution.chunks():
            (self.out if stream == STDOUT else self.err).add(data)


class WholeOutput(Output):
    """The same with all of standard output, up to what can be held: what prints it is not trusted."""

    def __init__(self, subject: str, most: int) -> None:
        super().__init__(LARGEST_MESSAGE)
        self.subject = subject
        """What it is of, for the error."""
        self.most = most
        """Bytes of standard output above which it is an ``OSError``."""
        self.data = bytearray()

    async def read(self, execution: Execution) -> None:
        """Take all that comes."""
        async for stream, data in execution.chunks():
            if stream != STDOUT:
                self.err.add(data)
            elif len(self.data) + len(data) > self.most:
                raise too_large(self.subject, self.most)
            else:
                self.data += data
