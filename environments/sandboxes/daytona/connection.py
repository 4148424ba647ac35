"""A terminal of Daytona's in which the driver runs one command after another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from environments.errors import SandboxError
from environments.sandboxes.daytona import driver
from environments.sandboxes.daytona.frames import Frames
from environments.sandboxes.hosted.end_mark import MarkedStream, new_token
from environments.sandboxes.hosted.input import InputPipe

logger = logging.getLogger(__name__)

_PATIENCE = 20.0
"""Seconds in which a terminal gets ready for a command. One may have stopped its shell, for ever."""

_MOST_UNDER_WAY = 3
"""Parts of a command's input that are sent and not yet taken."""


async def first_of(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Wait until one of them is set, or the time is over."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


class Terminal:
    """One terminal: bytes in, bytes out, an end."""

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        self._receive = receive
        self._handle: Any = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._sending = asyncio.Lock()
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        """How its shell ended; None while it runs, and where only the way to it was lost."""
        self._watching: asyncio.Task[None] | None = None

    async def open(self, process: Any, script: str, *arguments: str) -> None:
        """Have Daytona make it, and start a script in its shell."""
        name = f"hermes-{secrets.token_hex(8)}"
        variables, line = driver.start(script, *arguments)
        self._handle = await process.create_pty_session(id=name, on_data=self._on_data, envs=variables)
        self._watching = asyncio.ensure_future(self._watch())
        await self.send(line)

    async def send(self, data: bytes) -> None:
        """Send bytes, in the order of calls. ``BrokenPipeError`` once it has ended."""
        async with self._sending:
            if self.ended.is_set() or self._handle is None:
                raise BrokenPipeError(32, "the terminal has ended")
            try:
                await self._handle.send_input(data)
            except Exception as error:  # the SDK's own and aiohttp's
                raise BrokenPipeError(32, str(error)) from error

    def pause(self) -> None:
        """Take nothing more from the network until ``resume``."""
        self._flowing.clear()

    def resume(self) -> None:
        """Take it again."""
        self._flowing.set()

    async def close(self) -> None:
        """End it with all that still runs in it. Raises nothing."""
        self.resume()
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        for end in (handle.kill, handle.disconnect):
            with contextlib.suppress(Exception):  # it is gone already, or goes with its sandbox
                async with asyncio.timeout(10):
                    await end()
        if self._watching is not None:
            self._watching.cancel()
        self.ended.set()

    async def _on_data(self, data: bytes) -> None:
        await self._flowing.wait()
        self._receive(data)

    async def _watch(self) -> None:
        with contextlib.suppress(Exception):  # then the way to it was lost, as without an exit code
            self.exit_code = (await self._handle.wait()).exit_code
        self.ended.set()


class Command:
    """One command in a connection: its input, where its output goes, and how it ended."""

    def __init__(
        self, token: str, number: int, receive: Callable[[int, bytes], None], terminal: Terminal
    ) -> None:
        mark = f"{token} {number}"
        self.number = number
        self.done = asyncio.Event()
        self.streams = {
            1: MarkedStream(mark, lambda data: receive(1, data)),
            2: MarkedStream(mark, lambda data: receive(2, data)),
        }

        self._under_way = 1  # the program itself
        self._taken = asyncio.Event()

        async def send(data: bytes) -> None:
            await self._room(terminal)
            self._under_way += 1
            await terminal.send(b"%d\n%s" % (len(data), data))

        async def end() -> None:
            await terminal.send(b"0\n")

        self.input = InputPipe(send, end)

    @property
    def code(self) -> int | None:
        """Its exit code once both streams have told it."""
        codes = [stream.code for stream in self.streams.values()]
        return None if None in codes else codes[0]

    def part_taken(self) -> None:
        """The driver has passed a part of the input on."""
        self._under_way -= 1
        self._taken.set()

    async def _room(self, terminal: Terminal) -> None:
        """Wait until little is under way: the connection's own pings would wait behind all of it."""
        while self._under_way >= _MOST_UNDER_WAY and not terminal.ended.is_set():
            self._taken.clear()
            await first_of(self._taken, terminal.ended)

    def feed(self, stream: int, data: bytes) -> None:
        """Take output."""
        self.streams[stream].feed(data)
        if self.code is not None:
            self.done.set()


class Connection:
    """Runs commands by the driver. Free again once ``settled`` was called back."""

    def __init__(self, on_settled: Callable[[Connection, bool], Awaitable[None]]) -> None:
        self._token = new_token()
        self._terminal = Terminal(self._receive)
        self._frames = Frames(self._token, self._plain, self._frame)
        self._on_settled = on_settled
        self._command: Command | None = None
        self._count = 0
        self._ready = asyncio.Event()
        self._settling: asyncio.Task[None] | None = None

    @property
    def ended(self) -> asyncio.Event:
        """Set when the terminal has ended, with whatever ran in it."""
        return self._terminal.ended

    @property
    def was_killed(self) -> bool:
        """Whether it ended since its shell did, and not since the way to it was lost."""
        return self._terminal.exit_code is not None

    async def open(self, process: Any, scratch: str) -> None:
        """Make the terminal and start the driver. ``SandboxError`` where it does not start."""
        await self._terminal.open(process, driver.driver(), self._token, f"{scratch}/{secrets.token_hex(6)}")
        if not await self._becomes_ready():
            raise SandboxError("the shell of Daytona's terminal does not start our program")

    async def start(self, program: bytes, receive: Callable[[int, bytes], None]) -> Command:
        """Begin a command."""
        self._count += 1
        self._ready.clear()
        self._command = Command(self._token, self._count, receive, self._terminal)
        await self._terminal.send(b"%d\n%d\n%s" % (self._count, len(program), program))
        return self._command

    def settle(self, command: Command) -> None:
        """Get ready for the next command, in the background."""
        if self._settling is None:
            self._settling = asyncio.ensure_future(self._settle(command))

    def pause(self) -> None:
        """Receive nothing until ``resume``."""
        self._terminal.pause()

    def resume(self) -> None:
        """Receive again."""
        self._terminal.resume()

    async def abandon(self) -> None:
        """Take no more commands: one still runs that nobody waits for."""
        await self._on_settled(self, False)

    async def close(self) -> None:
        """End the terminal."""
        if self._settling is not None and self._settling is not asyncio.current_task():
            self._settling.cancel()
        await self._terminal.close()

    async def _settle(self, command: Command) -> None:
        self.resume()
        settled = False
        with contextlib.suppress(BrokenPipeError):
            await command.input.finish()
            await self._terminal.send(b"ok\n")
            settled = await self._becomes_ready()
        self._settling = None
        await self._on_settled(self, settled)

    async def _becomes_ready(self) -> bool:
        await first_of(self._ready, self.ended, timeout=_PATIENCE)
        return self._ready.is_set()

    def _receive(self, data: bytes) -> None:
        self._frames.feed(data)

    def _plain(self, data: bytes) -> None:
        if self._command is not None:
            self._command.feed(1, data)

    def _frame(self, number: int, data: bytes) -> None:
        if not data:
            self._ready.set()
        elif number == 0:
            if self._command is not None:
                self._command.part_taken()
        elif self._command is not None and number == self._command.number:
            self._command.feed(2, data)
