"""A background process of a local sandbox."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from environments.sandboxes.base import DEFAULT_OUTPUT_LIMIT, Process
from environments.sandboxes.local.guard import Guard
from environments.sandboxes.local.inside import wire
from environments.sandboxes.local.inside.output import CappedOutput
from environments.sandboxes.local.job import Job

_LARGEST_WRITE = 1 << 20


class LocalProcess(Process):
    """Talks to the process's supervisor, which keeps its output until somebody reads it."""

    def __init__(self, number: int, command: str, guard: Guard) -> None:
        self.id = f"process-{number}"
        self.command = command
        self._guard = guard
        self.job = Job(number, self._receive)
        self._reads: deque[asyncio.Future[bytes]] = deque()
        self._rest = CappedOutput(DEFAULT_OUTPUT_LIMIT)
        self._exit_code: int | None = None
        self._exited = asyncio.Event()
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once ``kill`` will find it, or once it is known not to start."""
        self.refusal: dict[str, Any] = {}
        """What was said where it could not be started."""
        self._ended = False

    @property
    def exit_code(self) -> int | None:
        """Exit code once it has ended; 128 + n when killed by signal n."""
        return self._exit_code

    @property
    def running(self) -> bool:
        """Whether it is known to have been started, and not to have ended."""
        self.job.catch_up()
        return self.started.done() and self._exit_code is None

    async def read(self) -> bytes:
        """Output since the last ``read``, without waiting."""
        rest = self._rest.take()
        return rest if self._ended else rest + await self._ask("read")

    async def read_soon(self, timeout: float) -> bytes:
        """Output since the last read, waiting for some; see ``Process.read_soon``."""
        rest = self._rest.take()
        if rest or self._ended:
            return rest
        if self._exit_code is not None:
            return await self._ask("read")
        try:
            async with asyncio.timeout(timeout):
                return await self._ask("follow")
        except TimeoutError:  # what comes later is kept for the next one who reads
            return b""

    async def write(self, data: bytes) -> None:
        """Write to its standard input. ``BrokenPipeError`` where it has ended."""
        for start in range(0, len(data), _LARGEST_WRITE):
            part = data[start : start + _LARGEST_WRITE]
            if self._exit_code is not None or not await self._tell("write", part):
                raise BrokenPipeError(32, "the process has ended")

    async def close_stdin(self) -> None:
        """Close its standard input."""
        await self._tell("close")

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
        if not self._ended:
            await self._guard.order("kill", job=self.job.number)

    def release(self) -> None:
        """Stop listening: its sandbox is gone."""
        self.job.close()
        if not self._ended:
            self._lose()

    async def _ask(self, operation: str) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if not await self._tell(operation, answer=answer):  # its last words are on their way to us
            if self._ended:
                return self._rest.take()
            self._reads.append(answer)
        try:
            return await self._guard.awake(self.job.number, answer)
        except BaseException:  # cancelled, too: what has come is kept for the next reader
            if not answer.cancel():  # it came just when nobody waited any more
                self._rest.add(answer.result())
            raise

    async def _tell(
        self, operation: str, data: bytes = b"", answer: asyncio.Future[bytes] | None = None
    ) -> bool:
        """Send its supervisor a message, which may be one to be answered. False where that is gone."""
        header: dict[str, object] = {"op": operation}
        try:
            if self.job.sender.try_to_send(header, data):
                self._expect(answer)
                return True
            waiting = asyncio.ensure_future(self._send_in_turn(header, data, answer))
            try:
                await self._guard.awake(self.job.number, waiting)
            finally:
                waiting.cancel()
        except OSError:
            return False
        return True

    async def _send_in_turn(
        self, header: dict[str, object], data: bytes, answer: asyncio.Future[bytes] | None
    ) -> None:
        await self.job.sender.send(header, data)
        self._expect(answer)

    def _expect(self, answer: asyncio.Future[bytes] | None) -> None:
        """The answers come in the order of the questions."""
        if answer is not None:
            self._reads.append(answer)

    def _receive(self, message: wire.Message | None) -> None:
        if message is None:
            self._lose()
            return
        wire.close_all(message.descriptors)
        header = message.header
        self._start()
        if "exit" in header:
            self._exit(int(header["exit"]))
        elif "end" in header:
            self._rest.add(message.body)
            self._lose()
        elif "data" in header and self._reads:
            answer = self._reads.popleft()
            if answer.done():  # the reader was cancelled; its output is kept for the next one
                self._rest.add(message.body)
            else:
                answer.set_result(self._rest.take() + message.body)
        elif "errno" in header:
            self.refusal = header
            self._rest.add(f"cannot start a process: {header.get('text')}\n".encode())
            self._exit(126)
            self._lose()

    def _start(self) -> None:
        if not self.started.done():
            self.started.set_result(None)

    def _exit(self, status: int) -> None:
        if self._exit_code is None:
            self._exit_code = status if status >= 0 else 128 - status
        self._exited.set()

    def _lose(self) -> None:
        """The supervisor is gone; if it never said how the process ended, it was killed."""
        self._ended = True
        self._start()
        self._exit(-9)
        while self._reads:
            answer = self._reads.popleft()
            if not answer.done():
                answer.set_result(self._rest.take())
        self.job.close()
