"""One program in a Modal sandbox, as the SDK's ``ContainerProcess``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from environments.errors import SandboxError
from environments.sandboxes.hosted.end_mark import MarkedStream
from environments.sandboxes.hosted.exits import exit_of
from environments.sandboxes.hosted.input import InputPipe
from environments.sandboxes.remote_shell.machine import Channel, Exit, Receiver

_SOON = 2.0
"""Seconds after which we also ask Modal whether the program has ended. Most tell it by their marks."""

_GRACE = 5.0
"""Seconds of silence after Modal told us of the end until no more output is expected."""

_LONGEST_GRACE = 300.0
"""Seconds after which that is so although processes that were left behind go on talking."""

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
        self._received = 0
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._following = asyncio.ensure_future(self._follow())
        self._input = InputPipe(self._send, self._send_end)

    async def write(self, data: bytes) -> None:
        """Write to its standard input, waiting for room."""
        if self._ended.done():
            raise BrokenPipeError(32, "the program has ended")
        await self._input.write(data)

    def close_stdin(self) -> None:
        """Close its standard input."""
        if not self._ended.done():
            self._input.close()

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
        self._input.abandon()
        if not self._ended.done():
            self._ended.cancel()

    async def _send(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain.aio()
        except Exception as error:  # whatever the SDK makes of a program that reads no more
            raise BrokenPipeError(32, str(error)) from error

    async def _send_end(self) -> None:
        # A program that has ended needs no end of its input, and every other failure shows in ``wait``.
        with contextlib.suppress(Exception):
            self._process.stdin.write_eof()
            await self._process.stdin.drain.aio()

    async def _follow(self) -> None:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._read(number)) for number in self._streams]
        try:
            await asyncio.wait(tasks, timeout=_SOON)
            told = await self._ask(tasks) if self._code() is None else 0
            marked = self._code()
            self._finish(exit_of(told if marked is None else marked))
        except Exception as error:  # noqa: BLE001 - the SDK's and gRPC's; the machine knows their meaning
            cause = await self._explain_cause(error)
            if not self._ended.done():
                self._ended.set_exception(cause)
                self._ended.exception()  # nobody may be waiting any more
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, tasks: list[asyncio.Task[Any]]) -> int:
        """Have Modal tell the end as well; the exit code, which counts where the marks do not come."""
        readers = tasks.copy()
        asking = asyncio.create_task(self._process.wait.aio())
        tasks.append(asking)
        waiting: set[asyncio.Task[Any]] = set(tasks)
        while self._code() is None and not asking.done() and waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        deadline = asyncio.get_running_loop().time() + _LONGEST_GRACE
        while self._code() is None and not all(reader.done() for reader in readers):
            before = self._received
            await asyncio.wait([reader for reader in readers if not reader.done()], timeout=_GRACE)
            silent = self._received == before and self._resumed.is_set()
            if silent or asyncio.get_running_loop().time() > deadline:
                break
        for reader in readers:
            if reader.done():
                reader.result()
        return int(await asking) if self._code() is None else 0

    async def _read(self, number: int) -> None:
        """Pass a stream on up to its mark, or to its end."""
        stream = self._streams[number]
        source = self._process.stdout if number == 1 else self._process.stderr
        async for chunk in source:
            await self._resumed.wait()
            self._received += len(chunk)
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
