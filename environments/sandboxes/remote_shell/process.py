"""A background process on a machine reached by shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from environments.errors import SandboxError
from environments.sandboxes.base import DEFAULT_OUTPUT_LIMIT, Process
from environments.sandboxes.local.inside.output import CappedOutput
from environments.sandboxes.remote_shell.machine import Channel

_PART = 1 << 16
_LOST = 137
_END_OF_FILE = b"\x04"
"""What a terminal takes for the end of its input."""


class RemoteProcess(Process):
    """Keeps its output, shortened in the middle where it is very long, until somebody reads it."""

    def __init__(
        self, identifier: str, command: str, kill: Callable[[], Coroutine[Any, Any, None]], *, pty: bool
    ) -> None:
        self.id = identifier
        self.command = command
        self._kill = kill
        self._pty = pty
        self._output = CappedOutput(DEFAULT_OUTPUT_LIMIT)
        self._exit_code: int | None = None
        self._exited = asyncio.Event()
        self._channel: Channel | None = None
        self._watching: asyncio.Task[None] | None = None

    def receive(self, stream: int, data: bytes) -> None:
        """Take output, of whichever stream."""
        self._output.add(data)

    def attach(self, channel: Channel) -> None:
        """Follow the program of ``channel`` to its end."""
        self._channel = channel
        self._watching = asyncio.ensure_future(self._watch(channel))

    @property
    def exit_code(self) -> int | None:
        """Exit code once it has ended; 128 + n when killed by signal n."""
        return self._exit_code

    async def read(self) -> bytes:
        """Output since the last ``read``, without waiting."""
        await asyncio.sleep(0)
        return self._output.take()

    async def write(self, data: bytes) -> None:
        """Write to its standard input. ``BrokenPipeError`` where it has ended."""
        if self._channel is None or self._exit_code is not None:
            raise BrokenPipeError(32, "the process has ended")
        for start in range(0, len(data), _PART):
            await self._channel.write(data[start : start + _PART])

    async def close_stdin(self) -> None:
        """Close its standard input."""
        if self._channel is None or self._exit_code is not None:
            return
        if self._pty:
            await self._channel.write(_END_OF_FILE)
        else:
            self._channel.close_stdin()

    async def wait(self, timeout: float | None = None) -> int | None:
        """Exit code, or None if it still runs after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._exited.wait()
        except TimeoutError:
            return None
        return self._exit_code

    async def kill(self) -> None:
        """Kill it and everything it started."""
        await self._kill()
        if self._exit_code is None and await self.wait(5.0) is None:
            self.release()

    def release(self) -> None:
        """Stop following it: its sandbox is gone."""
        if self._watching is not None:
            self._watching.cancel()
        self._finish(_LOST)

    async def _watch(self, channel: Channel) -> None:
        try:
            code = (await channel.wait()).code
        except SandboxError:
            code = _LOST
        self._finish(code)

    def _finish(self, code: int) -> None:
        if self._exit_code is None:
            self._exit_code = code
        self._exited.set()
        if self._channel is not None:
            self._channel.close()
