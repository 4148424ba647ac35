"""A background process of a container."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

from environments.sandboxes.base import DEFAULT_OUTPUT_LIMIT, Process
from environments.sandboxes.docker.engine import EngineError
from environments.sandboxes.docker.execution import Execution
from environments.sandboxes.local.inside.output import CappedOutput

_LOST = 137
_KILL_PATIENCE = 10.0


class DockerProcess(Process):
    """Keeps the output of a command until somebody reads it."""

    def __init__(
        self, number: int, command: str, mark: str, execution: Execution, kill: Callable[[], Awaitable[None]]
    ) -> None:
        self.id = f"process-{number}"
        self.command = command
        self.mark = mark
        """Identity of the command in its environment."""
        self.execution = execution
        self._kill = kill
        self._output = CappedOutput(DEFAULT_OUTPUT_LIMIT)
        self._exit_code: int | None = None
        self._input_closed = False
        self._ended = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def exit_code(self) -> int | None:
        """Exit code once it has ended; 128 + n when killed by signal n."""
        return self._exit_code

    async def read(self) -> bytes:
        """Output since the last ``read``, without waiting."""
        await asyncio.sleep(0)
        return self._output.take()

    async def write(self, data: bytes) -> None:
        """Write to its standard input. ``BrokenPipeError`` where it has ended or was closed."""
        if self._exit_code is not None or self._input_closed:
            raise BrokenPipeError(errno.EPIPE, "the process has ended or its input is closed")
        try:
            await self.execution.send(data)
        except ConnectionError as error:
            raise BrokenPipeError(errno.EPIPE, "the process has ended") from error

    async def close_stdin(self) -> None:
        """Close its standard input. ``OSError`` over TLS, which cannot close one direction alone."""
        if self._exit_code is not None or self._input_closed:
            return
        if not self.execution.can_end_input:
            raise OSError(
                errno.ENOTSUP, "standard input cannot be closed over a TLS connection to the engine"
            )
        self._input_closed = True
        self.execution.end_input()

    async def wait(self, timeout: float | None = None) -> int | None:
        """Exit code, or None if it still runs after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._ended.wait()
        except TimeoutError:
            return None
        return self._exit_code

    async def kill(self) -> None:
        """Kill it and everything it started."""
        if self._exit_code is None:
            await self._kill()
            await self.wait(_KILL_PATIENCE)

    async def release(self) -> None:
        """Stop listening: its sandbox is gone."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._finish(None)

    async def _read(self) -> None:
        async for _, data in self.execution.chunks():
            self._output.add(data)
        try:
            self._finish(await self.execution.result())
        except EngineError:  # engine or container are gone, and so is the process
            self._finish(None)

    def _finish(self, code: int | None) -> None:
        if self._exit_code is None:
            self._exit_code = _LOST if code is None else code
        self._ended.set()
        self.execution.close()
