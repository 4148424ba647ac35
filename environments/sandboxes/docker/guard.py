"""Killing inside a container, by a small shell program that waits there for orders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from environments.sandboxes.docker.engine import Engine
from environments.sandboxes.docker.execution import STDOUT, Execution, NotStarted, Request, start
from environments.sandboxes.docker.scripts import GUARD

_ANSWER_TIMEOUT = 10.0
_TRIES = 4
_PROGRAM = "HERMES_GUARD"
_ROOM_FOR_GUARD = 64


class Guard:
    """Sends orders to the program, which is started again whenever the agent has killed it."""

    def __init__(self, engine: Engine, container: str, processes: int, scratch: str) -> None:
        self._engine = engine
        self._container = container
        self._processes = processes
        self._scratch = scratch
        self._turn = asyncio.Lock()
        self._execution: Execution | None = None
        self._lines: asyncio.StreamReader | None = None
        self._reading: asyncio.Task[None] | None = None
        self._number = 0

    async def start(self) -> None:
        """Start the program. Raises ``NotStarted`` or ``EngineError``."""
        argv = [
            "/bin/sh",
            "-c",
            f'eval "${_PROGRAM}"',
            "sh",
            self._scratch,
        ]  # not on the command line, for the sake of `ps`
        request = Request(argv, {_PROGRAM: GUARD}, user="0", stdin=True)
        self._execution = await start(self._engine, self._container, request, number=False)
        self._lines = asyncio.StreamReader()
        self._reading = asyncio.create_task(_copy(self._execution, self._lines))
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            line = await self._lines.readline()
        if line != b"ready\n":
            raise NotStarted(line + await self._lines.read(4096), None)

    async def get_ready(self) -> None:
        """Start the program if that is possible; the next order tries again where it is not."""
        async with self._turn:
            try:
                if self._execution is None:
                    await self.start()
            except (NotStarted, TimeoutError, ConnectionError):
                await self.close()

    async def kill_tree(
        self, process: int, age: float, command: str, *, alone: bool, others: Iterable[str]
    ) -> bool:
        """Kill a command begun ``age`` seconds ago with all that it started. False if impossible."""
        marks = [mark.rstrip(".") for mark in (command, *others)]
        words = [str(process), str(int(age * 100)), marks[0], str(int(alone)), *marks[1:]]
        return await self._order("tree", words) is not None

    async def kill_everything(self) -> bool:
        """Kill all but process 1. False if impossible."""
        return await self._order("all", []) is not None

    async def wake(self, process: int) -> bool:
        """Let a program of ours go on. Whether it, or what it started, was stopped or cannot be helped."""
        return await self._order("wake", [str(process)]) != 0

    async def close(self) -> None:
        """Let go of the program."""
        if self._execution is not None:
            self._execution.close()
            self._execution = None
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def _order(self, name: str, words: list[str]) -> int | None:
        """The program's answer, or None where it cannot give one."""
        async with self._turn:
            for attempt in range(_TRIES):
                try:
                    if self._execution is None:
                        await self.start()
                    if (answer := await self._ask(name, words)) is not None:
                        return answer
                except (TimeoutError, ConnectionError):
                    pass
                except NotStarted:  # it cannot run where the agent holds all processes: make room
                    if attempt + 1 == _TRIES or not await self._make_room():
                        await self.close()
                        return None
                await self.close()
            return None

    async def _ask(self, name: str, words: list[str]) -> int | None:
        assert self._execution is not None and self._lines is not None
        self._number += 1
        await self._execution.send(" ".join([name, str(self._number), *words, "\n"]).encode())
        expected = b"done %d " % self._number
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            while line := await self._lines.readline():
                if line in (expected + b"0\n", expected + b"1\n"):
                    return line[-2] - ord("0")
        return None

    async def _make_room(self) -> bool:
        from environments.sandboxes.docker.engine import EngineError

        try:
            self._processes += _ROOM_FOR_GUARD
            body = {"PidsLimit": self._processes}
            await self._engine.call("POST", f"/containers/{self._container}/update", body=body)
        except EngineError:  # Podman before 4.5 has no such call
            return False
        return True


async def _copy(execution: Execution, lines: asyncio.StreamReader) -> None:
    async for stream, data in execution.chunks():
        if stream == STDOUT:
            lines.feed_data(data)
    lines.feed_eof()
