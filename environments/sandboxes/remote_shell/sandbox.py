"""The whole sandbox protocol over a ``Machine``."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from environments.errors import NotSupported, SandboxBroken, SandboxError, SandboxReleased
from environments.records import SandboxInfo
from environments.sandboxes.arguments import (
    LARGEST_READ,
    bound_of,
    check_data,
    check_mode,
    check_part,
    check_path,
    most_of,
)
from environments.sandboxes.base import (
    Command,
    ExecRequest,
    ExecResult,
    FileInfo,
    Sandbox,
)
from environments.sandboxes.remote_shell import files, program, tar
from environments.sandboxes.remote_shell.attention import Attention
from environments.sandboxes.remote_shell.following import feed, wait, wait_within_bounds
from environments.sandboxes.remote_shell.machine import Channel, Exit, Machine, Receiver
from environments.sandboxes.remote_shell.output import Output, WholeOutput
from environments.sandboxes.remote_shell.process import RemoteProcess

_LONGEST_ARGUMENT = 120_000
"""The kernel refuses arguments above 128 KiB; longer shell text goes through a file."""

_TIMED_OUT = 124
GONE = 125
"""Exit code of a prelude that does not find its sandbox; ``gone_message`` goes to stderr with it."""
_PATIENCE = 10.0
"""Seconds in which a killed command's end must be told."""

_KILL_IN_PASSING = 5.0
"""Seconds for which an error, or a cancellation, waits for the kill of its command."""

_MOST_FILE_OPERATIONS = 8
"""File operations that run at once in one sandbox. Each is a program or two, and what an engine needs to
start them counts against the sandbox's limit of processes, too."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where things are on the machine, and what every command begins with."""

    family: str
    home: str
    working_directory: str
    scratch: str
    user: str
    environment: Mapping[str, str] = field(default_factory=dict)
    prelude: str = ""
    revoked: str = ""
    """Where the machine's ``kill`` notes marks whose programs may not have begun yet; see ``Start``."""


class RemoteSandbox(Sandbox):
    """One sandbox; commands and files alike are programs of its machine's shell."""

    def __init__(self, machine: Machine, info: SandboxInfo, place: Place) -> None:
        self.info = info
        self.home = place.home
        self.working_directory = place.working_directory.rstrip("/") or "/"
        self.scratch = place.scratch
        self._machine = machine
        self._place = place
        self._number = 0
        self._processes: list[RemoteProcess] = []
        self._file_operations = asyncio.Semaphore(_MOST_FILE_OPERATIONS)
        self._killing: set[asyncio.Future[None]] = set()
        self._surviving: set[str] = set()
        """Marks of commands that cannot be killed, which there is no use in trying once more."""
        self._closing: asyncio.Future[None] | None = None

    # -- commands -------------------------------------------------------------------------------

    async def _run(self, request: ExecRequest) -> ExecResult:
        if request.user is not None and request.user != self._place.user:
            raise NotSupported(
                f"the {self.info.backend} backend runs everything as {self._place.user!r}, "
                f"not as {request.user!r}"
            )
        start = self._start(request.cwd, request.env)
        start = replace(start, merge=request.merge_output, stdin=request.stdin is not None)
        source = await self._program(request.command, start)
        output = Output(request.output_limit)
        started = time.monotonic()
        channel = await self._open(source, output.receive, start.mark)
        async with self._until_end(channel, start.mark):
            feeding = asyncio.ensure_future(feed(channel, request.stdin))
            try:
                ended = await wait(channel, request.timeout)
                if ended is None:
                    await self._kill_overdue(start.mark)
                    ended_late = await wait(channel, _PATIENCE)
                    return _result(ended_late or Exit(signal=9), output, started, timed_out=True)
                await self._check_end(ended, output.stderr.value())
                return _result(ended, output, started)
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)

    async def _spawn(
        self, command: Command, cwd: str | None, env: Mapping[str, str], pty: bool
    ) -> RemoteProcess:
        start = replace(self._start(cwd, env), merge=not pty, stdin=True)
        source = await self._program(command, start)
        text = command if isinstance(command, str) else " ".join(command)

        async def kill() -> None:
            if self._closing is None:
                await self._machine.kill(start.mark)

        process = RemoteProcess(f"process-{self._number}", text, kill, pty=pty)
        channel = await self._open(source, process.receive, start.mark, pty=pty)
        process.attach(channel)
        self._processes.append(process)
        return process

    async def kill_all(self) -> None:
        """Kill every process of the agent; the sandbox stays usable."""
        self._check_open()
        await self._machine.kill(self._place.family)

    async def alive(self) -> bool:
        """Whether the sandbox can still run a command."""
        return self._closing is None and await self._machine.alive()

    async def close(self) -> None:
        """Release it and everything in it. Goes on to the end even if the caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def keep(self, seconds: float) -> float:
        """Have the machine live on for so long, and let go of it."""
        self._check_open()
        until = await self._machine.keep(seconds)
        await self.detach()
        return until

    async def detach(self) -> None:
        """Let go of it without ending it."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._let_go())
        await asyncio.shield(self._closing)

    # -- files ----------------------------------------------------------------------------------

    async def read_bytes(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a regular file, whole or in part."""
        check_part(offset, length)
        wanted, most = ("" if number is None else str(number) for number in (length, most_of(length)))
        return await self._file(files.READ, path, str(offset), wanted, most, bound=bound_of(length))

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a file, making its parent directories; replaced whole or not at all."""
        data = check_data(data)
        permissions = "" if check_mode(mode) is None else f"{mode:o}"
        name = secrets.token_hex(8)
        await self._file(files.WRITE, path, str(len(data)), permissions, name, stdin=data)

    async def stat(self, path: str) -> FileInfo:
        """Kind, size and mode of one path."""
        return files.parse_stat(self._resolve(path), await self._file(files.STAT, path))

    async def list(self, path: str) -> list[FileInfo]:
        """Entries of a directory, sorted by name."""
        answer = await self._file(files.LIST, path)
        return sorted(files.parse_list(self._resolve(path), answer), key=lambda info: info.path)

    async def upload_tar(self, stream: AsyncIterator[bytes], directory: str) -> None:
        """Unpack a tar stream into a directory, which is made if missing."""
        path = self._resolve(directory)
        output = WholeOutput()
        attention = Attention(self._machine, output.receive)
        async with self._script(files.UNPACK, [path], attention, stdin=True) as channel:
            ended = await tar.send(channel, attention, stream)
        await self._check_end(ended, output.stderr)
        tar.check(ended, output.stderr, path)

    async def download_tar(self, path: str) -> AsyncIterator[bytes]:
        """Pack a file or tree as a tar stream."""
        path = self._resolve(path)
        parent, name = posixpath.split(path.rstrip("/") or "/")
        queue = tar.ChunkQueue()
        attention = Attention(self._machine, queue.receive)
        async with self._script(files.PACK, [parent, name or "."], attention) as channel:
            async with contextlib.aclosing(queue.chunks(channel, attention)) as chunks:
                async for chunk in chunks:
                    yield chunk
            ended = await channel.wait()
        await self._check_end(ended, queue.stderr)
        tar.check(ended, queue.stderr, path)

    # -- parts ----------------------------------------------------------------------------------

    async def _file(
        self,
        script: str,
        path: str,
        *arguments: str,
        stdin: bytes | None = None,
        bound: int = LARGEST_READ,
    ) -> bytes:
        """Run a script on one path; what it printed, or the ``OSError`` that it means."""
        path = self._resolve(path)
        output = WholeOutput(bound)
        attention = Attention(self._machine, output.receive)
        async with (
            self._file_operations,
            self._script(script, [path, *arguments], attention, stdin=stdin is not None) as channel,
        ):
            feeding = asyncio.ensure_future(feed(channel, stdin, attention.sent))
            try:
                ended = await attention.until(channel, wait_within_bounds(channel, output, path))
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        await self._check_end(ended, output.stderr)
        if ended.code:
            raise files.error_of(ended.code, output.stderr, path)
        return output.stdout

    @contextlib.asynccontextmanager
    async def _script(
        self, script: str, arguments: Sequence[str], attention: Attention, *, stdin: bool = False
    ) -> AsyncIterator[Channel]:
        start = replace(self._start("/", None), stdin=stdin, environment={})
        source = program.for_script(script, arguments, start)
        channel = await self._open(source, attention.receive, start.mark)
        async with self._until_end(channel, start.mark):
            yield channel

    async def _open(self, source: bytes, receive: Receiver, mark: str, *, pty: bool = False) -> Channel:
        try:
            return await self._machine.open(source, receive, pty=pty)
        except asyncio.CancelledError:
            await self._kill_in_passing(mark)  # it may have begun at the very moment
            raise
        except SandboxError:
            self._check_open()  # released meanwhile, which then is the reason
            raise

    @contextlib.asynccontextmanager
    async def _until_end(self, channel: Channel, mark: str) -> AsyncIterator[None]:
        """Whatever ends the block before its program ended kills the program and what it started."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, SandboxError):
                self._check_open()
            if self._closing is None and mark not in self._surviving:
                await self._kill_in_passing(mark)
            raise
        finally:
            channel.close()
        self._check_open()

    async def _kill_overdue(self, mark: str) -> None:
        try:
            await self._machine.kill(mark)
        except SandboxError:
            self._surviving.add(mark)
            raise

    async def _kill_in_passing(self, mark: str) -> None:
        """Kill while an error is on its way, which waits for that only a little: it goes on without us."""
        killing = asyncio.ensure_future(self._kill_quietly(mark))
        self._killing.add(killing)
        killing.add_done_callback(self._killing.discard)
        await asyncio.wait({killing}, timeout=_KILL_IN_PASSING)

    async def _kill_quietly(self, mark: str) -> None:
        # Another error is on its way; where the machine is gone there is nothing left to kill.
        with contextlib.suppress(SandboxError):
            await self._machine.kill(mark)

    def _start(self, cwd: str | None, env: Mapping[str, str] | None) -> program.Start:
        self._check_open()
        self._number += 1
        return program.Start(
            mark=program.mark_of(self._place.family, self._number),
            directory=absolute(cwd or "", self.home, self.working_directory),
            environment={**self._place.environment, **(env or {})},
            prelude=self._place.prelude,
            revoked=self._place.revoked,
        )

    async def _program(self, command: Command, start: program.Start) -> bytes:
        if not isinstance(command, str):
            return program.for_arguments(command, start)
        if len(command) > _LONGEST_ARGUMENT // 4:
            data = command.encode("utf-8", "surrogateescape")
            if len(data) > _LONGEST_ARGUMENT:
                file = f"{self.scratch}/command-{start.mark}.sh"
                await self.write_bytes(file, data)
                run = 'if command -v bash >/dev/null 2>&1; then exec bash "$1"; else exec sh "$1"; fi'
                return program.for_script(run, [file], start)
        return program.for_shell(command, start)

    def _resolve(self, path: str) -> str:
        """An absolute path of a file operation."""
        return absolute(check_path(path), self.home, self.working_directory)

    async def _check_end(self, ended: Exit, message: bytes) -> None:
        """Raise where a program failed since there is no sandbox any more."""
        if ended.code and self._closing is None:
            await self._machine.check(ended)
        # The prelude looks for the sandbox before every command, and says so where there is none.
        if ended.status == GONE and message.decode("utf-8", "replace").strip() == gone_message(
            self._place.family
        ):
            raise SandboxBroken(f"the directory of sandbox {self.id} was removed by a command in it")

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxReleased(f"sandbox {self.id} was released")

    async def _close(self) -> None:
        self._release_processes()
        await self._machine.release()

    async def _let_go(self) -> None:
        self._release_processes()
        await self._machine.detach()

    def _release_processes(self) -> None:
        for killing in self._killing:  # what ends the sandbox ends what they look for, too
            killing.cancel()
        for process in self._processes:
            process.release()
        self._processes.clear()


def absolute(path: str, home: str, start: str) -> str:
    """An absolute path: ``~`` is the home; others begin at ``start``, which an empty one means itself."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return start if path in ("", ".") else posixpath.join(start, path)


def gone_message(family: str) -> str:
    """What a prelude says that does not find its sandbox."""
    return f"sandbox {family} is gone"


def _result(ended: Exit, output: Output, started: float, *, timed_out: bool = False) -> ExecResult:
    return ExecResult(
        exit_code=_TIMED_OUT if timed_out else ended.code,
        stdout=output.stdout.value(),
        stderr=output.stderr.value(),
        duration=time.monotonic() - started,
        timed_out=timed_out,
        killed_by=None if timed_out else ended.signal,
        stdout_bytes=output.stdout.total,
        stderr_bytes=output.stderr.total,
    )
