"""A program's input on its way to a provider, in parts that are worth a round trip each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_PART = 1 << 20
_ENOUGH = 2 << 20
"""Bytes that may wait here before the writer has to."""


class InputPipe:
    """Sends in the background what is written, joined while the part before is under way."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> None:
        """``send`` and ``end`` raise ``OSError`` where the program takes no more."""
        self._send = send
        self._end = end
        self._waiting = bytearray()
        self._closed = False
        self._end_told = False
        self._error: OSError | None = None
        self._room = asyncio.Event()
        self._pumping: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        """Take data, waiting for room. ``BrokenPipeError`` where the program takes no more."""
        self._check()
        self._waiting += data
        self._pump()
        while len(self._waiting) > _ENOUGH and self._error is None:
            self._room.clear()
            await self._room.wait()
        if self._error is not None:
            self._check()

    def close(self) -> None:
        """Tell the end once all is sent."""
        self._closed = True
        self._pump()

    async def finish(self) -> None:
        """The program has ended: drop what waits, and tell the end if that was not done yet."""
        self._waiting.clear()
        self._room.set()
        self.close()
        if self._pumping is not None:
            await asyncio.wait({self._pumping})

    def abandon(self) -> None:
        """Send nothing more, not even the end."""
        self._error = self._error or BrokenPipeError(32, "the program was given up")
        self._waiting.clear()
        self._room.set()
        if self._pumping is not None:
            self._pumping.cancel()

    def _check(self) -> None:
        if self._error is not None or self._closed:
            raise BrokenPipeError(32, str(self._error or "its input is closed"))

    def _pump(self) -> None:
        if self._error is None and (self._pumping is None or self._pumping.done()):
            self._pumping = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting or (self._closed and not self._end_told):
                part = bytes(self._waiting[:_PART])
                del self._waiting[:_PART]
                self._room.set()
                if part:
                    await self._send(part)
                else:
                    self._end_told = True
                    await self._end()
        except OSError as error:
            self._error = error
            self._waiting.clear()
            self._room.set()
