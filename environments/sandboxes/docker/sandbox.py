"""One sandbox: one container."""

from __future__ import annotations

import asyncio
import copy
import itertools
import posixpath
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from environments.errors import SandboxBroken, SandboxError, SandboxReleased
from environments.records import SandboxInfo
from environments.sandboxes.arguments import check_data, check_mode, check_path
from environments.sandboxes.base import Command, ExecRequest, ExecResult, FileInfo, Sandbox
from environments.sandboxes.docker import files, tar
from environments.sandboxes.docker.commands import Commands
from environments.sandboxes.docker.containers import Container
from environments.sandboxes.docker.ownership import kept_name
from environments.sandboxes.docker.process import DockerProcess
from environments.sandboxes.docker.scripts import (
    COMMAND,
    PROBE,
    SPAWN,
    longest_form,
    plain_variables,
    shell_command,
    with_odd_variables,
)
from environments.sandboxes.egress.proxy import FilteringProxy

_LONGEST_ARGUMENT = 100_000
"""The kernel refuses arguments above 128 KiB; longer shell text goes through a file."""

_ALIVE_TIMEOUT = 30.0


def resolve(path: str, home: str, directory: str) -> str:
    """Absolute form of a path that may begin with ``~``."""
    if path == "~" or path.startswith("~/"):
        path = home.rstrip("/") + path[1:] or "/"
    joined = posixpath.join(directory, path)
    return joined if joined.startswith("/") else f"/{joined}"


class DockerSandbox(Sandbox):
    """Commands run through the engine's exec calls; files through small programs run the same way."""

    def __init__(
        self,
        container: Container,
        commands: Commands,
        info: SandboxInfo,
        home: str,
        directory: str,
        scratch: str,
        on_close: Callable[[str], None],
        proxy: FilteringProxy | None = None,
    ) -> None:
        """``proxy`` is its only way out, where it has one."""
        self.info = info
        self.home = home
        self.working_directory = directory
        self.scratch = scratch
        self._container = container
        self._commands = commands
        self._on_close = on_close
        self._proxy = proxy
        self._numbers = itertools.count(1)
        self._closing: asyncio.Future[None] | None = None

    async def as_user(self, user: str) -> DockerSandbox:
        """See ``Sandbox.as_user``. Raises ``SandboxError`` where the container has no such user."""
        self._check_open()
        other = copy.copy(self)
        other._commands = self._commands.as_user(user)
        probe = await other._commands.program(PROBE)
        home, _, rest = probe.stdout.decode("utf-8", "surrogateescape").partition("\0")
        if not rest:
            reason = probe.stderr.decode("utf-8", "replace").strip().splitlines()
            raise SandboxError(f"no command can be run as {user!r}: {reason[-1] if reason else 'no word'}")
        other.home = home or "/"
        return other

    async def _run(self, request: ExecRequest) -> ExecResult:
        self._check_open()
        return await self._commands.run(
            await self._argv(COMMAND, request.command, request.cwd, request.env, merge=request.merge_output),
            environment=plain_variables(request.env),
            stdin=request.stdin,
            timeout=request.timeout,
            user=request.user,
            limit=request.output_limit,
        )

    async def _spawn(
        self, command: Command, cwd: str | None, env: Mapping[str, str], pty: bool
    ) -> DockerProcess:
        self._check_open()
        argv = await self._argv(SPAWN, command, cwd, env, merge=True)
        text = command if isinstance(command, str) else " ".join(command)
        environment = plain_variables({"TERM": "xterm", **env} if pty else env)
        return await self._commands.spawn(argv, text, environment=environment, pty=pty)

    async def read_bytes(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a regular file, whole or in part."""
        self._check_open()
        return await files.read(self._commands.program, self._resolve(path), offset, length)

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a file, whole or not at all."""
        self._check_open()
        await files.write(self._commands.program, self._resolve(path), check_data(data), check_mode(mode))

    async def stat(self, path: str) -> FileInfo:
        """Kind, size and mode of one path; a link is not followed."""
        self._check_open()
        return await files.stat(self._commands.program, self._resolve(path))

    async def list(self, path: str) -> list[FileInfo]:
        """Entries of a directory, sorted by name."""
        self._check_open()
        return await files.entries(self._commands.program, self._resolve(path))

    async def upload_tar(self, stream: AsyncIterator[bytes], directory: str) -> None:
        """Unpack a tar stream into a directory, which is made if missing."""
        self._check_open()
        path = self._resolve(directory)
        await files.make_directory(self._commands.program, path)
        await tar.unpack(self._commands, self._container, stream, path)

    def download_tar(self, path: str) -> AsyncIterator[bytes]:
        """Pack a file or tree as a tar stream."""
        self._check_open()
        return tar.pack(self._commands, self._container, self._resolve(path))

    async def kill_all(self) -> None:
        """Kill every process but the container's own first one."""
        self._check_open()
        await self._commands.kill_all()

    async def alive(self) -> bool:
        """Whether a command still runs in it. ``SandboxError`` says why where that is nobody's doing."""
        if self._closing is not None:
            return False
        try:
            argv = ["/bin/sh", "-c", 'echo "$$" >&2']
            result = await self._commands.run(argv, timeout=_ALIVE_TIMEOUT)
        except SandboxBroken:
            return False
        return result.exit_code == 0

    async def close(self) -> None:
        """Remove the container with all that is in it."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def keep(self, seconds: float) -> float:
        """Mark the container by its name, which is all of it that can be changed, and let go of it.

        It ends at the deadline that it was made with, or at the next start after this one.
        """
        self._check_open()
        until = min(time.time() + seconds, self._container.deadline)
        await self._container.rename(kept_name(self.id, until))
        await self.detach()
        return until

    async def detach(self) -> None:
        """Let go of it without ending it."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._let_go())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._container.remove()
        await self._let_go()

    async def _let_go(self) -> None:
        if self._proxy is not None:
            await self._proxy.close()
        await self._commands.close()
        self._on_close(self.id)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxReleased(f"sandbox {self.id} was released")

    def _resolve(self, path: str) -> str:
        return resolve(check_path(path), self.home, self.working_directory)

    async def _argv(
        self, program: str, command: Command, cwd: str | None, env: Mapping[str, str], *, merge: bool
    ) -> Sequence[str]:
        directory = self._resolve(cwd) if cwd else self.working_directory
        streams = "merge" if merge else "apart"
        if isinstance(command, str) and longest_form(command) > _LONGEST_ARGUMENT:
            file = posixpath.join(self.scratch, f"command-{next(self._numbers)}")
            await self.write_bytes(file, command.encode("utf-8", "surrogateescape"))
            command = f". {file}"
        command = with_odd_variables(command, env)
        if isinstance(command, str):
            return shell_command(program, streams, directory, "shell", command)
        return shell_command(program, streams, directory, "vector", *command)
