"""A sandbox without isolation: plain subprocesses and files of a temporary directory.

Real enough for tools, which know the protocol only; the backends have tests of their own.
"""

from __future__ import annotations

import asyncio
import os
import pty as pseudo_terminal
import shlex
import signal
import stat as modes
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from environments.errors import SandboxReleased
from environments.records import SandboxInfo
from environments.sandboxes.base import (
    DEFAULT_OUTPUT_LIMIT,
    Command,
    ExecResult,
    FileInfo,
    Process,
    Sandbox,
)


def _argv(command: Command) -> list[str]:
    return ["bash", "-c", command] if isinstance(command, str) else list(command)


def _excerpt(data: bytes, limit: int) -> bytes:
    if len(data) <= limit:
        return data
    head = int(limit * 0.4)
    return data[:head] + data[len(data) - (limit - head) :]


class PlainProcess(Process):
    def __init__(self, command: str, process: asyncio.subprocess.Process, master: int | None) -> None:
        self.id, self.command, self._process, self._master = str(process.pid), command, process, master
        self._output = bytearray()
        self._reader = asyncio.create_task(self._pump())

    async def _pump(self) -> None:
        while data := await self._chunk():
            self._output += data

    async def _chunk(self) -> bytes:
        if self._master is None:
            return await self._process.stdout.read(65536)
        try:
            return await asyncio.to_thread(os.read, self._master, 65536)
        except OSError:
            return b""

    async def read(self) -> bytes:
        if self.exit_code is not None:
            await asyncio.wait([self._reader], timeout=1)
        data = bytes(self._output)
        self._output.clear()
        return data

    async def write(self, data: bytes) -> None:
        if self._master is not None:
            os.write(self._master, data)
            return
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def close_stdin(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def wait(self, timeout: float | None = None) -> int | None:
        try:
            await asyncio.wait_for(asyncio.shield(self._process.wait()), timeout)
        except TimeoutError:
            return None
        return self.exit_code

    @property
    def exit_code(self) -> int | None:
        code = self._process.returncode
        return code if code is None or code >= 0 else 128 - code

    async def kill(self) -> None:
        if self.exit_code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()


class PlainSandbox(Sandbox):
    def __init__(self, root: Path, path: str | None = None) -> None:
        self.info = SandboxInfo("plain", "none", "public", root.name)
        self.root, self._path, self.closed = root, path, False
        for name in ("home", "work", "scratch"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.home, self.working_directory, self.scratch = (
            str(root / name) for name in ("home", "work", "scratch")
        )

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {"PATH": self._path or os.environ["PATH"], "HOME": self.home, **(more or {})}

    async def exec(
        self, command: Command, *, cwd=None, env=None, stdin=None, timeout=None, user=None,
        merge_output=False, output_limit=DEFAULT_OUTPUT_LIMIT,
    ) -> ExecResult:  # fmt: skip
        if self.closed:
            raise SandboxReleased("released")
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *_argv(command),
            cwd=cwd or self.working_directory,
            env=self._environment(env),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if merge_output else asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        timed_out = False
        running = asyncio.ensure_future(process.communicate(stdin or b""))
        try:
            out, err = await asyncio.wait_for(asyncio.shield(running), timeout)
        except TimeoutError:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            out, err = await running
        except asyncio.CancelledError:
            os.killpg(process.pid, signal.SIGKILL)
            await running
            raise
        code = process.returncode
        killed_by = -code if code < 0 else None
        return ExecResult(
            124 if timed_out else (code if code >= 0 else 128 - code),
            _excerpt(out, output_limit), _excerpt(err or b"", output_limit), time.monotonic() - started,
            timed_out, killed_by, len(out), len(err or b""),
        )  # fmt: skip

    async def spawn(self, command: Command, *, cwd=None, env=None, pty=False) -> Process:
        master = slave = None
        if pty:
            master, slave = pseudo_terminal.openpty()
        process = await asyncio.create_subprocess_exec(
            *_argv(command),
            cwd=cwd or self.working_directory,
            env=self._environment(env),
            stdin=slave if pty else asyncio.subprocess.PIPE,
            stdout=slave if pty else asyncio.subprocess.PIPE,
            stderr=slave if pty else asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        if slave is not None:
            os.close(slave)
        return PlainProcess(command if isinstance(command, str) else shlex.join(command), process, master)

    async def read_bytes(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if length is None else length)

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if mode is None and target.exists():
            mode = modes.S_IMODE(target.stat().st_mode)
        target.write_bytes(data)
        if mode is not None:
            target.chmod(mode)

    async def stat(self, path: str) -> FileInfo:
        info = os.lstat(path)
        kinds = {modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "link"}
        kind = kinds.get(modes.S_IFMT(info.st_mode), "other")
        return FileInfo(path, kind, info.st_size, modes.S_IMODE(info.st_mode), info.st_mtime)

    async def list(self, path: str) -> list[FileInfo]:
        return [
            await self.stat(f"{path}/{name}") for name in sorted(entry.name for entry in Path(path).iterdir())
        ]

    async def upload_tar(self, stream: AsyncIterator[bytes], directory: str) -> None:
        raise NotImplementedError

    def download_tar(self, path: str) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def kill_all(self) -> None:
        raise NotImplementedError

    async def alive(self) -> bool:
        return not self.closed

    async def close(self) -> None:
        self.closed = True
