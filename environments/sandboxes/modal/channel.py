"""One program in a Modal sandbox, as the SDK's ``ContainerProcess``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from environments.errors import SandboxError
from environments.sandboxes.hosted.end_mark import MarkedStream
from environments.sandboxes.hosted.exits import exit_of
from environments.sandboxes.remote_shell.machine import Channel, Exit, Receiver

_SOON = 2.0
"""Seconds after which we also ask Modal whether the program has ended. Most tell it by their marks."""

_GRACE = 2.0
"""Seconds in which output must come that was on its way when Modal told us of the end."""

Explain = Callable[[BaseException], Awaitable[SandboxError]]


class ModalChannel(Channel):
    """Reads both streams up to their marks."""

    def __init__(self, process: Any, token: str, receive: Receiver, explain: Explain, *, pty: bool) -> None:
        self._process = process
        self._explain_cause = explain
        self._receive = receive
        self._streams = {1: MarkedStream(token, lambda data: self._receive(1, data))}
        if not pty:
            self._streams[2] = MarkedStream(token, lambda data: self._receive(2, data))
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._following = asyncio.ensure_future(self._follow())
        self._closing_stdin: asyncio.Future[None] | None = None

    async def write(self, data: bytes) -> None:
        """Write to its standard input, waiting until Modal took it."""
        if self._ended.done():
            raise BrokenPipeError(32, "the program has ended")
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain.aio()
        except Exception as error:  # whatever the SDK makes of a program that reads no more
            raise BrokenPipeError(32, str(error)) from error

    def close_stdin(self) -> None:
        """Close its standard input."""
        if self._closing_stdin is None and not self._ended.done():
            self._closing_stdin = asyncio.ensure_future(self._close_stdin())

    async def wait(self) -> Exit:
        """Its end, once all that it had printed has been received."""
        return await asyncio.shield(self._ended)

    def pause(self) -> None:
        """Receive nothing until ``resume``."""
        self._resumed.clear()

    def resume(self) -> None:
        """Receive again."""
        self._resumed.set()

    def close(self) -> None:
        """Let go of it."""
        self._receive = _ignore
        self._following.cancel()
        if not self._ended.done():
            self._ended.cancel()

    async def _close_stdin(self) -> None:
        # A program that has ended needs no end of its input, and every other failure shows in ``wait``.
        with contextlib.suppress(Exception):
            self._process.stdin.write_eof()
            await self._process.stdin.drain.aio()

    async def _follow(self) -> None:
        readers = [asyncio.ensure_future(self._read(number)) for number in self._streams]
        waiting: asyncio.Future[Any] | None = None
        try:
            await asyncio.wait(readers, timeout=_SOON)
            if not all(reader.done() for reader in readers) or self._code() is None:
                waiting = asyncio.ensure_future(self._process.wait.aio())
                everything = asyncio.gather(*readers)
                await asyncio.wait({everything, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if not everything.done():
                    await asyncio.wait({everything}, timeout=_GRACE)
            for reader in readers:
                if reader.done():
                    reader.result()
            code = self._code()
            if code is None and waiting is not None:
                code = await waiting
            self._finish(exit_of(code or 0))
        except Exception as error:  # noqa: BLE001 - the SDK's and gRPC's; the machine knows their meaning
            cause = await self._explain_cause(error)
            if not self._ended.done():
                self._ended.set_exception(cause)
                self._ended.exception()  # nobody may be waiting any more
        finally:
            for task in (*readers, waiting):
                if task is not None:
                    task.cancel()

    async def _read(self, number: int) -> None:
        """Pass a stream on up to its mark, or to its end."""
        stream = self._streams[number]
        source = self._process.stdout if number == 1 else self._process.stderr
        async for chunk in source:
            await self._resumed.wait()
            stream.feed(chunk)
            if stream.code is not None:
                return

    def _code(self) -> int | None:
        """The code that both streams agree on; None while one has not told it."""
        codes = [stream.code for stream in self._streams.values()]
        return None if None in codes else codes[0]

    def _finish(self, ended: Exit) -> None:
        for stream in self._streams.values():
            stream.flush()
        if not self._ended.done():
            self._ended.set_result(ended)


def _ignore(stream: int, data: bytes) -> None:
    """Drop output that nobody wants any more."""
