"""What becomes of a command that no system can start."""

from __future__ import annotations

import errno

from environments.sandboxes.arguments import NOT_STARTED
from environments.sandboxes.base import Command, ExecRequest, ExecResult, Process


def refused_result(request: ExecRequest, reason: str) -> ExecResult:
    """As of a command that was found, and could not be started."""
    text = _message(reason)
    kept = text[: request.output_limit]
    if request.merge_output:
        return ExecResult(NOT_STARTED, stdout=kept, stdout_bytes=len(text))
    return ExecResult(NOT_STARTED, stderr=kept, stderr_bytes=len(text))


class RefusedProcess(Process):
    """A background process that ended before it began, and says why."""

    def __init__(self, command: Command, reason: str) -> None:
        self.id = "process-0"
        self.command = command if isinstance(command, str) else " ".join(command)
        self._output = _message(reason)

    @property
    def exit_code(self) -> int:
        """Always that of what cannot be started."""
        return NOT_STARTED

    async def read(self) -> bytes:
        """The reason, once."""
        output, self._output = self._output, b""
        return output

    async def write(self, data: bytes) -> None:
        """``BrokenPipeError``: nothing reads it."""
        raise BrokenPipeError(errno.EPIPE, "the process has ended")

    async def close_stdin(self) -> None:
        """There is none."""

    async def wait(self, timeout: float | None = None) -> int:
        """Its exit code, at once."""
        return NOT_STARTED

    async def kill(self) -> None:
        """It does not run."""


def _message(reason: str) -> bytes:
    return f"cannot run the command: {reason}\n".encode("utf-8", "replace")
