"""One local sandbox."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import os
import posixpath
import stat
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from environments.errors import NotSupported, SandboxBroken
from environments.records import SandboxInfo
from environments.sandboxes.arguments import (
    LARGEST_READ,
    check_data,
    check_mode,
    check_part,
    check_path,
    too_large,
)
from environments.sandboxes.base import (
    DEFAULT_OUTPUT_LIMIT,
    Command,
    ExecRequest,
    ExecResult,
    FileInfo,
    Sandbox,
)
from environments.sandboxes.editing import LoadedFile, SavedFile
from environments.sandboxes.egress.proxy import FilteringProxy
from environments.sandboxes.local import tar
from environments.sandboxes.local.answers import KILLED, file_info, result, told
from environments.sandboxes.local.channel import LARGEST
from environments.sandboxes.local.conversation import Conversation
from environments.sandboxes.local.guard import Guard
from environments.sandboxes.local.inside import wire
from environments.sandboxes.local.job import Answer
from environments.sandboxes.local.process import LocalProcess
from environments.sandboxes.local.shortage import shortage_is_ours, until_there_are_processes

_LONGEST_ARGUMENT = 120_000
"""The kernel refuses arguments above 128 KiB; longer shell text goes through a file."""

_READ_INLINE = 1 << 20
"""Files above this size are read by a thread."""

_LARGEST_SPECIAL_FILE = 16 << 20
"""Bytes read at most from files that claim to be empty, such as those below /proc."""


class LocalSandbox(Sandbox):
    """Speaks to the init process for commands and files, to the guardian for kills and the end."""

    def __init__(
        self,
        guard: Guard,
        info: SandboxInfo,
        report: Mapping[str, Any],
        proxy: FilteringProxy | None = None,
    ) -> None:
        """``proxy`` is its only way out, where it has one."""
        self.info = info
        self.home = str(report["home"])
        self.working_directory = str(report["working_directory"])
        self.scratch = str(report["scratch"])
        self._guard = guard
        self._proxy = proxy
        self._init = Conversation(guard)
        self._processes: builtins.list[LocalProcess] = []
        self._closing: asyncio.Future[None] | None = None
        self.kept = False
        """Whether it lives on without us."""
        guard.on_end = self._end
        guard.in_use = self._in_use

    def _in_use(self) -> bool:
        return self._init.busy or any(process.running for process in self._processes)

    @property
    def released(self) -> bool:
        """Whether it is gone, with all that was in it."""
        return self._closing is not None and self._closing.done()

    # -- commands -------------------------------------------------------------------------------

    async def _run(self, request: ExecRequest) -> ExecResult:
        if request.user not in (None, "user", "1000"):
            raise NotSupported(f"the local backend runs everything as 'user', not as {request.user!r}")
        details: dict[str, object] = {
            "merge": request.merge_output,
            "limit": request.output_limit,
            "stdin": request.stdin is not None,
        }
        message = await self._run_request(request.command, request.cwd, request.env, **details)
        with shortage_is_ours():
            descriptors = [] if request.stdin is None else [wire.memory_file(request.stdin)]
        return await self.run_to_end(message, descriptors, request.timeout)

    async def run_to_end(
        self, request: dict[str, object], descriptors: builtins.list[int], timeout: float | None
    ) -> ExecResult:
        """Run a prepared request. ``descriptors`` go with it and are closed; the list is emptied."""
        try:
            return await until_there_are_processes(lambda: self._run_once(request, descriptors, timeout))
        finally:
            wire.close_all(descriptors)

    async def _run_once(
        self, request: dict[str, object], descriptors: builtins.list[int], timeout: float | None
    ) -> ExecResult:
        started = time.monotonic()
        job = await self._init.run(request, tuple(descriptors))
        message, timed_out = await self._follow(job, timeout)
        if _not_begun(job, message):
            job = await self._init.run_anew(request, tuple(descriptors))
            message, timed_out = await self._follow(job, timeout)
        if message is not None:
            await self._init.check_room(message.header)
        return result(message, time.monotonic() - started, timed_out)

    async def _follow(self, job: Answer, timeout: float | None) -> tuple[wire.Message | None, bool]:
        """What the supervisor of a command said in the end, and whether the time was over."""
        more = False
        try:
            try:
                message = await self._init.answer_to(job, timeout)
            except TimeoutError:
                return await self._init.interrupt(job), True
            if message is None and not _not_begun(
                job, message
            ):  # while the job counts as running: so the loss is its doing
                await self._init.explain_loss()
            more = message is not None and message.header.get("more") is True
            return message, False
        except asyncio.CancelledError:
            await self._init.abandon(job)
            raise
        finally:
            self._init.finish(job, more=more)

    async def _spawn(
        self, command: Command, cwd: str | None, env: Mapping[str, str], pty: bool
    ) -> LocalProcess:
        request = await self._run_request(command, cwd, env, spawn=True, pty=pty)
        text = command if isinstance(command, str) else " ".join(command)
        return await until_there_are_processes(lambda: self._spawn_once(text, request, pty))

    async def _spawn_once(self, text: str, request: dict[str, object], pty: bool) -> LocalProcess:
        process = LocalProcess(self._init.next_number(), text, self._guard)
        # Landlock keeps commands from opening terminals: this one comes from outside.
        terminal = os.openpty() if pty and self.info.isolation == "landlock" else ()
        try:
            await self._init.post(process.job, request, terminal)
            await self._guard.awake(process.job.number, process.started)
            await self._init.check_room(process.refusal)
            if process.exit_code == KILLED:
                await self._init.explain_loss()
        except BaseException:  # cancelled, too: nothing half-made stays
            await self._init.abandon(process.job)
            process.release()
            raise
        finally:
            wire.close_all([*terminal])
        self._processes.append(process)
        return process

    async def kill_all(self) -> None:
        """Kill every process of the agent; the sandbox stays usable."""
        self._init.check_open()
        await self._guard.order("kill_all")

    async def alive(self) -> bool:
        """Whether the sandbox can still run a command."""
        return await self._init.alive()

    async def close(self) -> None:
        """Release it and everything in it. Goes on to the end even if the caller is cancelled."""
        if self._closing is None:
            self._init.released = True
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def keep(self, seconds: float) -> float:
        """Have the guardian go on without us for so long."""
        self._init.check_open()
        await self._guard.keep(seconds)
        self.kept = True
        await self.detach()
        return time.time() + seconds

    async def detach(self) -> None:
        """Let go of it without ending it."""
        self._init.released = True
        self._guard.let_go()
        self._end()
        self._closing = self._closing or asyncio.ensure_future(asyncio.sleep(0))
        await asyncio.shield(self._closing)

    # -- files ----------------------------------------------------------------------------------

    async def read_bytes(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a regular file, whole or in part."""
        check_path(path)
        check_part(offset, length)
        message = await self._init.ask_briefly({"op": "open", "path": path, "follow": False})
        return (await self._content(message, path, offset, length))[0]

    async def load(self, path: str, limit: int) -> LoadedFile:
        """Up to ``limit`` bytes of a regular file; see ``Sandbox.load``."""
        check_path(path)
        message = await self._init.ask_briefly({"op": "open", "path": path, "follow": True})
        data, size = await self._content(message, path, 0, limit + 1)
        where, mode = told(message, "path", str), told(message, "mode", int)
        return LoadedFile(where, mode, data[:limit], max(len(data), size))

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a file, making its parent directories; replaced whole or not at all."""
        await self._write(path, data, mode)

    async def save(self, path: str, data: bytes) -> SavedFile:
        """The same, and what came of it; see ``Sandbox.save``."""
        message = await self._write(path, data, None)
        return SavedFile(told(message, "path", str), told(message, "made", bool))

    async def stat(self, path: str) -> FileInfo:
        """Kind, size and mode of one path."""
        message = await self._init.ask_briefly({"op": "stat", "path": check_path(path)})
        return file_info(message.header)

    async def list(self, path: str) -> list[FileInfo]:
        """Entries of a directory, sorted by name."""
        found = (await self._file_request(path, "list")).header.get("entries")
        if not isinstance(found, builtins.list):
            raise SandboxBroken("the sandbox answered without a list of files")
        return sorted(map(file_info, found), key=lambda info: info.path)

    async def upload_tar(self, stream: AsyncIterator[bytes], directory: str) -> None:
        """Unpack a tar stream into a directory, which is made if missing."""
        made = await self._file_request(directory, "mkdir")
        await tar.unpack(self, stream, str(made.header["path"]))

    async def download_tar(self, path: str) -> AsyncIterator[bytes]:
        """Pack a file or tree as a tar stream."""
        info = await self.stat(path)
        async with contextlib.aclosing(tar.pack(self, posixpath.normpath(info.path))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def tar_request(self, command: builtins.list[str], *, stdin: bool) -> dict[str, object]:
        """Request for a program whose input or output is a pipe of the caller's."""
        return await self._run_request(command, "/", None, stdin=stdin, stdout=not stdin)

    # -- requests -------------------------------------------------------------------------------

    async def _run_request(
        self, command: Command, cwd: str | None, env: Mapping[str, str] | None, **details: object
    ) -> dict[str, object]:
        self._init.check_open()
        shell = isinstance(command, str)
        if isinstance(command, str) and len(command) > _LONGEST_ARGUMENT // 4:
            data = command.encode("utf-8", "surrogateescape")
            if len(data) > _LONGEST_ARGUMENT:
                script = f"{self.scratch}/command-{self._init.next_number()}.sh"
                await self.write_bytes(script, data)
                command, shell = ["bash", script], False
        return {
            "op": "run",
            "argv": [command] if isinstance(command, str) else builtins.list(command),
            "shell": shell,
            "cwd": cwd,
            "env": dict(env or {}),
            "merge": False,
            "limit": DEFAULT_OUTPUT_LIMIT,
            "stdin": False,
            "stdout": False,
            "pty": False,
            "spawn": False,
        } | details

    async def _content(
        self, message: wire.Message, path: str, offset: int, length: int | None
    ) -> tuple[bytes, int]:
        """Bytes of the file that came with a message, and how many it says to have."""
        if len(message.descriptors) != 1:
            wire.close_all(message.descriptors)
            raise SandboxBroken("the sandbox answered without a file")
        descriptor = message.descriptors[0]
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):  # checked inside too, but inside is not trusted
                raise OSError(errno.EINVAL, "not a regular file", path)
            size = max(0, status.st_size - offset) if status.st_size else _LARGEST_SPECIAL_FILE
            size = size if length is None else min(size, length)
            if size > LARGEST_READ:
                raise too_large(path)
            if status.st_size and size <= _READ_INLINE:
                return wire.read_whole(descriptor, size, offset), status.st_size
            reading = asyncio.ensure_future(asyncio.to_thread(wire.read_whole, descriptor, size, offset))
            descriptor, held = -1, descriptor
            reading.add_done_callback(lambda _: os.close(held))
            return await asyncio.shield(reading), status.st_size
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    async def _write(self, path: str, data: bytes, mode: int | None) -> wire.Message:
        check_path(path)
        check_mode(mode)
        data = check_data(data)
        if len(data) + len(path) <= LARGEST:
            request: dict[str, object] = {"op": "write", "path": path, "mode": mode, "attached": False}
            return await self._init.ask_briefly(request, data)
        with shortage_is_ours():
            descriptor = wire.memory_file(data)
        try:
            return await self._file_request(path, "write", (descriptor,), mode=mode, attached=True)
        finally:
            os.close(descriptor)

    async def _file_request(
        self,
        path: str,
        operation: str,
        descriptors: tuple[int, ...] = (),
        **details: object,
    ) -> wire.Message:
        request = {"op": operation, "path": check_path(path), **details}
        return await self._init.ask(request, descriptors=descriptors)

    async def _close(self) -> None:
        if self._proxy is not None:
            await self._proxy.close()
        await self._guard.close()
        self._end()

    def _end(self) -> None:
        """The guardian is gone: tell everybody who waits for something from the sandbox."""
        self._init.end()
        for process in self._processes:
            process.release()
        self._processes.clear()


def _not_begun(job: Answer, message: wire.Message | None) -> bool:
    """Whether a supervisor that was there before could not take a command: it had been killed, or it may not
    have another process, as a new one may."""
    return job.used and (job.unread if message is None else "full" in message.header)
