"""One local sandbox."""

from __future__ import annotations

import asyncio
import builtins
import errno
import os
import posixpath
import stat
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from environments.errors import NotSupported, SandboxBroken, SandboxReleased
from environments.records import SandboxInfo
from environments.sandboxes.base import DEFAULT_OUTPUT_LIMIT, Command, ExecResult, FileInfo, Sandbox
from environments.sandboxes.local import tar
from environments.sandboxes.local.guard import Guard
from environments.sandboxes.local.inside import wire
from environments.sandboxes.local.job import Answer
from environments.sandboxes.local.process import LocalProcess

_LONGEST_ARGUMENT = 120_000
"""The kernel refuses arguments above 128 KiB; longer shell text goes through a file."""

_READ_INLINE = 1 << 20
"""Files above this size are read by a thread."""

_KILLED = 137
_ALIVE_ATTEMPTS = 5

_LARGEST_SPECIAL_FILE = 16 << 20
"""Bytes read at most from files that claim to be empty, such as those below /proc."""


class LocalSandbox(Sandbox):
    """Speaks to the init process for commands and files, to the guardian for kills and the end."""

    def __init__(self, guard: Guard, info: SandboxInfo, report: Mapping[str, Any]) -> None:
        self.info = info
        self.home = str(report["home"])
        self.working_directory = str(report["working_directory"])
        self.scratch = str(report["scratch"])
        self._guard = guard
        self._number = 0
        self._processes: builtins.list[LocalProcess] = []
        self._waiting: set[Answer] = set()
        self._closing: asyncio.Future[None] | None = None
        guard.on_end = self._end

    @property
    def released(self) -> bool:
        """Whether it is gone, with all that was in it."""
        return self._closing is not None and self._closing.done()

    # -- commands -------------------------------------------------------------------------------

    async def exec(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        user: str | None = None,
        merge_output: bool = False,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run a command to its end; see ``Sandbox.exec``."""
        if user not in (None, "user", "1000"):
            raise NotSupported(f"the local backend runs everything as 'user', not as {user!r}")
        details: dict[str, object] = {
            "merge": merge_output,
            "limit": output_limit,
            "stdin": stdin is not None,
        }
        request = await self._run_request(command, cwd, env, **details)
        descriptors = [] if stdin is None else [wire.memory_file(stdin)]
        return await self.run_to_end(request, descriptors, timeout)

    async def run_to_end(
        self, request: dict[str, object], descriptors: builtins.list[int], timeout: float | None
    ) -> ExecResult:
        """Run a prepared request. ``descriptors`` go with it and are closed; the list is emptied."""
        started = time.monotonic()
        job = self._answer()
        timed_out = False
        try:
            try:
                await self._post(job, request, tuple(descriptors))
            finally:
                wire.close_all(descriptors)
            try:
                message = await job.wait(timeout)
            except TimeoutError:
                timed_out = True
                message = await self._interrupt(job)
            if message is None and not timed_out:
                await self._explain_loss()
        except asyncio.CancelledError:
            job.hang_up()
            await self._kill(job.number)
            raise
        finally:
            self._forget(job)
        return _result(message, time.monotonic() - started, timed_out)

    async def spawn(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        pty: bool = False,
    ) -> LocalProcess:
        """Start a background process; see ``Sandbox.spawn``."""
        request = await self._run_request(command, cwd, env, spawn=True, pty=pty)
        self._number += 1
        text = command if isinstance(command, str) else " ".join(command)
        process = LocalProcess(self._number, text, self._guard)
        # Landlock keeps commands from opening terminals: this one comes from outside.
        terminal = os.openpty() if pty and self.info.isolation == "landlock" else ()
        try:
            await self._post(process.job, request, terminal)
            await process.started.wait()
            if process.exit_code == _KILLED:
                await self._explain_loss()
        except BaseException:
            process.job.hang_up()
            await self._kill(process.job.number)
            process.release()
            raise
        finally:
            wire.close_all([*terminal])
        self._processes.append(process)
        return process

    async def kill_all(self) -> None:
        """Kill every process of the agent; the sandbox stays usable."""
        self._check_open()
        await self._guard.order("kill_all")

    async def alive(self) -> bool:
        """Whether the sandbox can still run a command."""
        for _ in range(_ALIVE_ATTEMPTS):
            if self._closing is not None or self._guard.ended.is_set():
                return False
            if await self._answers():
                return True
            await asyncio.sleep(0.05)  # the answer may have been killed with everything else
        return False

    async def _answers(self) -> bool:
        job = self._answer()
        try:
            await self._post(job, {"op": "ping"}, ())
            return await job.wait(5.0) is not None
        except (TimeoutError, SandboxBroken, SandboxReleased):
            return False
        finally:
            self._forget(job)

    async def close(self) -> None:
        """Release it and everything in it. Goes on to the end even if the caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    # -- files ----------------------------------------------------------------------------------

    async def read_bytes(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a regular file, whole or in part."""
        message = await self._file_request(path, "open")
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
            if status.st_size and size <= _READ_INLINE:
                return wire.read_whole(descriptor, size, offset)
            reading = asyncio.ensure_future(asyncio.to_thread(wire.read_whole, descriptor, size, offset))
            descriptor, held = -1, descriptor
            reading.add_done_callback(lambda _: os.close(held))
            return await asyncio.shield(reading)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a file, making its parent directories; replaced whole or not at all."""
        attached = len(data) > wire.INLINE // 2
        descriptors = (wire.memory_file(data),) if attached else ()
        try:
            body = b"" if attached else bytes(data)
            await self._file_request(path, "write", body, descriptors, mode=mode, attached=attached)
        finally:
            wire.close_all([*descriptors])

    async def stat(self, path: str) -> FileInfo:
        """Kind, size and mode of one path."""
        return _file_info((await self._file_request(path, "stat")).header)

    async def list(self, path: str) -> list[FileInfo]:
        """Entries of a directory, sorted by name."""
        found = (await self._file_request(path, "list")).header.get("entries")
        if not isinstance(found, builtins.list):
            raise SandboxBroken("the sandbox answered without a list of files")
        return sorted(map(_file_info, found), key=lambda info: info.path)

    async def upload_tar(self, stream: AsyncIterator[bytes], directory: str) -> None:
        """Unpack a tar stream into a directory, which is made if missing."""
        made = await self._file_request(directory, "mkdir")
        await tar.unpack(self, stream, str(made.header["path"]))

    async def download_tar(self, path: str) -> AsyncIterator[bytes]:
        """Pack a file or tree as a tar stream."""
        info = await self.stat(path)
        async for chunk in tar.pack(self, posixpath.normpath(info.path)):
            yield chunk

    async def tar_request(self, command: builtins.list[str], *, stdin: bool) -> dict[str, object]:
        """Request for a program whose input or output is a pipe of the caller's."""
        return await self._run_request(command, "/", None, stdin=stdin, stdout=not stdin)

    # -- requests -------------------------------------------------------------------------------

    async def _run_request(
        self, command: Command, cwd: str | None, env: Mapping[str, str] | None, **details: object
    ) -> dict[str, object]:
        self._check_open()
        shell = isinstance(command, str)
        if isinstance(command, str) and len(command) > _LONGEST_ARGUMENT // 4:
            data = command.encode("utf-8", "surrogateescape")
            if len(data) > _LONGEST_ARGUMENT:
                self._number += 1
                script = f"{self.scratch}/command-{self._number}.sh"
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

    async def _file_request(
        self,
        path: str,
        operation: str,
        body: bytes = b"",
        descriptors: tuple[int, ...] = (),
        **details: object,
    ) -> wire.Message:
        self._check_open()
        job = self._answer()
        try:
            await self._post(job, {"op": operation, "path": path, **details}, descriptors, body)
            message = await job.wait()
        finally:
            self._forget(job)
        if message is None:
            await self._explain_loss()
            raise SandboxBroken("a file operation was killed")
        if "errno" in message.header:
            raise OSError(message.header["errno"], message.header.get("text"), path)
        return message

    def _answer(self) -> Answer:
        self._number += 1
        job = Answer(self._number)
        self._waiting.add(job)
        return job

    def _forget(self, job: Answer) -> None:
        job.close()
        self._waiting.discard(job)

    async def _post(
        self, job: Any, request: dict[str, object], descriptors: tuple[int, ...], body: bytes = b""
    ) -> None:
        """Send a request to the init process; waits while its socket is full."""
        self._check_open()
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    wire.send(
                        self._guard.requests,
                        request | {"id": job.number},
                        body,
                        (job.other_end, *descriptors),
                    )
                    return
                except BlockingIOError:
                    await _writable(loop, self._guard.requests.fileno())
        except OSError:
            raise await self._guard.wait_for_failure() from None
        finally:
            job.handed_over()

    async def _interrupt(self, job: Answer) -> wire.Message | None:
        """Kill a command and take what it had printed."""
        job.hang_up()
        await self._kill(job.number)
        try:
            return await job.wait(2.0)
        except TimeoutError:
            return None

    async def _kill(self, number: int) -> None:
        if not self._guard.ended.is_set() and self._closing is None:
            await asyncio.shield(asyncio.ensure_future(self._guard.order("kill", job=number)))

    async def _explain_loss(self) -> None:
        """A job ended without an answer: raise if that is because the sandbox is gone."""
        self._check_open()
        if not await self.alive():
            self._check_open()
            raise await self._guard.wait_for_failure()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxReleased(f"sandbox {self.id} was released")
        if self._guard.ended.is_set():
            raise self._guard.failure()

    async def _close(self) -> None:
        await self._guard.close()
        self._end()

    def _end(self) -> None:
        """The guardian is gone: tell everybody who waits for something from the sandbox."""
        for job in self._waiting:
            job.lose()
        for process in self._processes:
            process.release()
        self._waiting.clear()
        self._processes.clear()


def _result(message: wire.Message | None, duration: float, timed_out: bool) -> ExecResult:
    header = message.header if message is not None else {"exit": -9}
    body = message.body if message is not None else b""
    if message is not None:
        wire.close_all(message.descriptors)
    if "errno" in header:
        text = f"cannot start a process: {header.get('text')}\n".encode()
        return ExecResult(126, b"", text, duration, timed_out, None, 0, len(text))
    status, split = int(header["exit"]), int(header.get("split", 0))
    return ExecResult(
        exit_code=124 if timed_out else status if status >= 0 else 128 - status,
        stdout=body[:split],
        stderr=body[split:],
        duration=duration,
        timed_out=timed_out,
        killed_by=-status if status < 0 and not timed_out else None,
        stdout_bytes=int(header.get("stdout", 0)),
        stderr_bytes=int(header.get("stderr", 0)),
    )


def _file_info(values: dict[str, Any]) -> FileInfo:
    return FileInfo(
        path=values["path"],
        kind=values["kind"],
        size=values["size"],
        mode=values["mode"],
        modified_at=values["modified_at"],
    )


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _writable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, _set, ready)
    try:
        async with asyncio.timeout(30):
            await ready
    except TimeoutError:
        raise SandboxBroken("the sandbox takes no more requests") from None
    finally:
        loop.remove_writer(descriptor)
