"""One program in a Daytona sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable

from environments.errors import SandboxError
from environments.sandboxes.daytona.connection import Command, Connection, Terminal
from environments.sandboxes.hosted.end_mark import MarkedStream
from environments.sandboxes.hosted.exits import exit_of
from environments.sandboxes.remote_shell.machine import Channel, Exit, Receiver

Explain = Callable[[bool], Awaitable[SandboxError | None]]
"""Why a terminal ended, given whether its shell did; None where that was all, and the sandbox is well."""

_KILLED = Exit(signal=9)


class _EndingChannel(Channel):
    """What both kinds have in common: the end."""

    def __init__(self, done: asyncio.Event, lost: asyncio.Event, explain: Explain) -> None:
        self._done = done
        self._lost = lost
        self._explain_cause = explain
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._following = asyncio.ensure_future(self._follow())
        self._closing: set[asyncio.Future[None]] = set()

    async def wait(self) -> Exit:
        """Its end, once all that it had printed has been received."""
        return await asyncio.shield(self._ended)

    async def _follow(self) -> None:
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._done, self._lost)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        cause = None if self._done.is_set() else await self._explain_cause(self._was_killed())
        if self._ended.done():
            return
        if cause is None:
            self._ended.set_result(self._exit())
        else:
            self._ended.set_exception(cause)
            self._ended.exception()  # nobody may be waiting any more
        self._settle()

    @abstractmethod
    def _was_killed(self) -> bool:
        """Whether the terminal's shell ended."""

    @abstractmethod
    def _exit(self) -> Exit:
        """How the program ended."""

    def _settle(self) -> None:
        """The program has ended."""

    def _in_background(self, work: Awaitable[None]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(OSError):  # an end of input that nobody needs any more
                await work

        task = asyncio.ensure_future(quietly())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _let_go(self) -> bool:
        """Stop following it; whether it still ran."""
        self._following.cancel()
        return self._ended.cancel()


class CommandChannel(_EndingChannel):
    """A program that the driver runs."""

    def __init__(self, connection: Connection, command: Command, explain: Explain) -> None:
        self._connection = connection
        self._command = command
        super().__init__(command.done, connection.ended, explain)

    async def write(self, data: bytes) -> None:
        """Write to its standard input, waiting for room."""
        if self._ended.done():
            raise BrokenPipeError(32, "the program has ended")
        await self._command.input.write(data)

    def close_stdin(self) -> None:
        """Close its standard input."""
        if not self._ended.done():
            self._command.input.close()

    def pause(self) -> None:
        """Receive nothing until ``resume``."""
        if not self._ended.done():
            self._connection.pause()

    def resume(self) -> None:
        """Receive again."""
        if not self._ended.done():
            self._connection.resume()

    def close(self) -> None:
        """Let go of it. A terminal whose program still runs can take no other."""
        if self._let_go():
            self._command.input.abandon()
            self._in_background(self._connection.abandon())

    def _was_killed(self) -> bool:
        return self._connection.was_killed

    def _exit(self) -> Exit:
        code = self._command.code
        return _KILLED if code is None else exit_of(code)

    def _settle(self) -> None:
        self._connection.settle(self._command)


class TerminalChannel(_EndingChannel):
    """A program that has a terminal of its own."""

    def __init__(self, token: str, receive: Receiver, explain: Explain) -> None:
        self._beginning = MarkedStream(f"{token} ready", _ignore)
        self._stream = MarkedStream(f"{token} end", lambda data: receive(1, data))
        self._program_ended = asyncio.Event()
        self.terminal = Terminal(self._receive)
        super().__init__(self._program_ended, self.terminal.ended, explain)

    async def write(self, data: bytes) -> None:
        """Type."""
        await self.terminal.send(data)

    def close_stdin(self) -> None:
        """A terminal's input ends by what is typed, so there is nothing to close."""

    def pause(self) -> None:
        """Receive nothing until ``resume``."""
        self.terminal.pause()

    def resume(self) -> None:
        """Receive again."""
        self.terminal.resume()

    def close(self) -> None:
        """Let go of it, and hang up."""
        self._let_go()
        self._in_background(self.terminal.close())

    def _was_killed(self) -> bool:
        return self.terminal.exit_code is not None

    def _exit(self) -> Exit:
        return _KILLED if self._stream.code is None else exit_of(self._stream.code)

    def _receive(self, data: bytes) -> None:
        if self._beginning.code is None:
            data = self._beginning.feed(data)
        if data:
            self._stream.feed(data)
        if self._stream.code is not None:
            self._program_ended.set()


def _ignore(data: bytes) -> None:
    """The shell's own greeting, prompt and echo."""
