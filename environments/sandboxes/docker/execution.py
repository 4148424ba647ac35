"""Commands in a container through the engine's exec calls: start one, read its streams, learn its end."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from environments.errors import SandboxError
from environments.sandboxes.docker.engine import Connection, Engine, EngineError

MARK = "HERMES_COMMAND"
"""Variable in the environment of every command, by which its orphans are told from others."""

STDOUT, STDERR = 1, 2

_PROCESS_NUMBER = re.compile(rb"(\d+)\r?\n")
_SHORT_ENGINE = re.compile(
    r"fork/exec \S+: resource temporarily unavailable|runc did not terminate successfully"
)
"""What an engine says that has no process left for what is to start one; until then it is in no container."""
_CHUNK = 1 << 18
_INSPECT_PAUSES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.0)


@dataclass(frozen=True, slots=True)
class Request:
    """One command as the engine is asked for it."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stdin: bool = False
    tty: bool = False
    mark: str = ""
    """Identity of the command, in its environment."""


class EndMark:
    """Finds, in one stream, the place where a command of ours says that it has ended."""

    def __init__(self, mark: str) -> None:
        self.code: int | None = None
        self.held = b""
        """Bytes that may be the beginning of the message."""
        self._message = b"\0" + mark.encode() + b" " if mark else b""

    def cut(self, data: bytes) -> bytes:
        """The part of ``data`` that is certainly the command's own."""
        if not self._message:
            return data
        if self.code is not None:
            return b""
        data, self.held = self.held + data, b""
        place = data.find(self._message)
        if place >= 0:
            code, end, _ = data[place + len(self._message) :].partition(b"\n")
            if end and code.isdigit():
                self.code = int(code)
            elif not end:
                self.held = data[place:]
            else:
                return data
            return data[:place]
        place = data.rfind(b"\0", -len(self._message))
        if place >= 0 and self._message.startswith(data[place:]):
            self.held = data[place:]
            return data[:place]
        return data


class NotStarted(SandboxError):
    """The engine could not start the command; ``output`` is what it said."""

    def __init__(self, output: bytes, exit_code: int | None) -> None:
        self.output, self.exit_code = output, exit_code
        text = output.decode("utf-8", "replace")
        self.by_the_engine = bool(_SHORT_ENGINE.search(text))
        """Whether the engine's machine lacks processes, which is not the sandbox's doing."""
        super().__init__(text.strip() or "the engine started no process")


class Execution:
    """A command that runs. ``process`` is its number inside the container, 0 where it does not say."""

    def __init__(self, engine: Engine, identity: str, connection: Connection, tty: bool, mark: str) -> None:
        self.process = 0
        self.loop_time = asyncio.get_running_loop().time()
        """When it was about to start, by the loop's clock."""
        self._engine = engine
        self._identity = identity
        self._reader, self._writer = connection
        self._tty = tty
        self._frames = self._read()
        self._backlog: list[tuple[int, bytes]] = []
        self._ends = {stream: EndMark(mark) for stream in (STDOUT, STDERR)}

    @property
    def can_end_input(self) -> bool:
        """Whether its standard input can be closed alone; TLS connections cannot."""
        return self._writer.can_write_eof()

    @property
    def told_code(self) -> int | None:
        """Exit code of a command that left processes behind, which still hold its streams."""
        codes = [end.code for end in self._ends.values()]
        return codes[0] if None not in codes else None

    async def chunks(self) -> AsyncIterator[tuple[int, bytes]]:
        """Its output as (stream, bytes), until it has ended or nothing can come any more."""
        async for stream, data in self._all_frames():
            if own := self._ends[stream].cut(data):
                yield stream, own
            if self.told_code is not None:
                return
        for stream, end in self._ends.items():
            if end.held and end.code is None:
                yield stream, end.held

    async def discard(self) -> None:
        """Read and drop what processes that it left behind still print, until they are gone."""
        async for _ in self._all_frames():
            pass
        self.close()

    async def _all_frames(self) -> AsyncIterator[tuple[int, bytes]]:
        while self._backlog:
            yield self._backlog.pop(0)
        async for item in self._frames:
            yield item

    async def send(self, data: bytes) -> None:
        """Write to its standard input; waits while the command does not read."""
        view = memoryview(data)
        for start in range(0, len(data), _CHUNK):
            self._writer.write(view[start : start + _CHUNK])
            await self._writer.drain()

    def end_input(self) -> None:
        """Close its standard input."""
        if self._tty:
            self._writer.write(b"\x04")
        elif self._writer.can_write_eof():
            self._writer.write_eof()

    async def feed(self, data: bytes) -> None:
        """Send all of ``data`` and close; a command that reads no more is no error."""
        with contextlib.suppress(ConnectionError):
            await self.send(data)
            self.end_input()

    async def exit_code(self) -> int | None:
        """Its exit code; None while the engine still calls it running. Raises ``EngineError``."""
        state = await self._engine.call("GET", f"/exec/{self._identity}/json")
        return None if state["Running"] else state["ExitCode"]

    async def result(self) -> int | None:
        """Its exit code once the streams have ended; None if the engine never says."""
        for pause in _INSPECT_PAUSES:
            await asyncio.sleep(pause)
            code = await self.exit_code()
            if code is not None:
                return code
        return None

    def close(self) -> None:
        """Give the connection up; the command may go on."""
        self._writer.close()

    async def await_start(self) -> None:
        """Read the process number that every command of ours prints first. ``NotStarted`` without it."""
        head = b""
        other: list[tuple[int, bytes]] = []
        async for stream, data in self._frames:
            if stream != (STDOUT if self._tty else STDERR):
                other.append((stream, data))
                continue
            head += data
            if found := _PROCESS_NUMBER.match(head):
                self.process = int(found[1])
                rest = head[found.end() :]
                self._backlog = other + ([(stream, rest)] if rest else [])
                return
        raise NotStarted(b"".join(data for _, data in other) + head, await self.result())

    async def _read(self) -> AsyncIterator[tuple[int, bytes]]:
        try:
            if self._tty:
                while data := await self._reader.read(_CHUNK):
                    yield STDOUT, data
                return
            while True:
                header = await self._reader.readexactly(8)
                left = int.from_bytes(header[4:])
                while left:
                    data = await self._reader.read(min(left, _CHUNK))
                    if not data:
                        return
                    left -= len(data)
                    yield header[0], data
        except (asyncio.IncompleteReadError, ConnectionError):  # the end; inspection tells how it came
            return


async def start(engine: Engine, container: str, request: Request, *, number: bool = True) -> Execution:
    """Start a command; with ``number`` it must be one of ours, which print their process number.

    Raises ``EngineError`` where the container cannot run anything, ``NotStarted``.
    """
    variables = {**request.environment, MARK: request.mark} if request.mark else request.environment
    body = {
        "Cmd": list(request.argv),
        "AttachStdin": request.stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": request.tty,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": request.user or "",
    }
    begun = asyncio.get_running_loop().time()
    made = await engine.call("POST", f"/containers/{container}/exec", body=body)
    settings = {"Detach": False, "Tty": request.tty}
    try:
        connection = await engine.take_over(f"/exec/{made['Id']}/start", settings)
    except EngineError as error:
        if error.status is None:
            raise
        raise NotStarted(str(error).encode(), None) from error
    execution = Execution(engine, made["Id"], connection, request.tty, request.mark)
    execution.loop_time = begun
    if number:
        try:
            await execution.await_start()
        except BaseException:  # cancelled, too: nobody else has the connection
            execution.close()
            raise
    return execution
