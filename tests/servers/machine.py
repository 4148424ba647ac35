"""A provider's machine, for the servers that stand in for providers: namespaces of this one.

Its processes, ``/proc``, ``/root`` and ``/tmp`` are its own; its system files are this machine's. It
needs ``unshare`` and ``nsenter`` of util-linux, and no rights where users may make namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import shutil
import signal
import tempfile
from pathlib import Path

_INIT = """
mount --bind "$1/root" /root && mount --bind "$1/tmp" /tmp || exit 1
cd / && echo up && shift && exec "$@"
"""


class Machine:
    """Runs commands for real, until it is stopped or its first process ends."""

    def __init__(self, environment: dict[str, str], *, network: bool) -> None:
        base = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        self.environment = base | environment
        self.network = network
        self._directory = Path(tempfile.mkdtemp(prefix="machine-", dir="/var/tmp"))
        self._first: asyncio.subprocess.Process | None = None
        self._pid = 0
        self._entered: list[asyncio.subprocess.Process] = []
        self.stopped = False

    async def start(self, *arguments: str) -> None:
        """Start it with ``arguments`` as its first process."""
        for name in ("root", "tmp"):
            (self._directory / name).mkdir()
        (self._directory / "tmp").chmod(0o1777)
        rootless = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        network = [] if self.network else ["--net"]
        self._first = await asyncio.create_subprocess_exec(
            *("unshare", *rootless, *network, "--mount", "--pid", "--fork", "--mount-proc"),
            *("--kill-child", "sh", "-c", _INIT, "sh", str(self._directory), *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self.environment,
        )
        assert self._first.stdout is not None
        if await self._first.stdout.readline() != b"up\n":
            raise RuntimeError("this machine makes no namespaces")
        pid = self._first.pid
        self._pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    @property
    def exit_code(self) -> int | None:
        """Exit code of the first process once it has ended."""
        code = self._first.returncode if self._first is not None else None
        return code if code is None or code >= 0 else 128 - code

    async def wait(self) -> int:
        """Wait for the end of the first process."""
        assert self._first is not None
        await until_ended(self._first)
        return self.exit_code or 0

    async def spawn(self, *arguments: str, directory: str = "", environment: dict[str, str] | None = None):
        """Start a command with three pipes."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._enter(directory, *arguments),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=self.environment | (environment or {}),
            limit=1 << 18,
        )
        self._entered.append(process)
        return process

    async def spawn_terminal(
        self, *arguments: str, directory: str = "", environment: dict[str, str] | None = None
    ) -> tuple[asyncio.subprocess.Process, int]:
        """Start a command on a terminal; its process and the terminal's other end."""
        master, slave = pty.openpty()
        try:
            process = await asyncio.create_subprocess_exec(
                *("setsid", "--ctty", *self._enter(directory, *arguments)),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=self.environment | {"TERM": "xterm"} | (environment or {}),
            )
        finally:
            os.close(slave)
        os.set_blocking(master, False)
        self._entered.append(process)
        return process, master

    async def stop(self) -> None:
        """Kill everything in it and remove its files."""
        self.stopped = True
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        for process in self._entered:  # one stops where its command does, and would hold up the end of all
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if self._first is not None:
            await until_ended(self._first)
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    def _enter(self, directory: str, *arguments: str) -> list[str]:
        rootless = [] if os.getuid() == 0 else ["--user", "--preserve-credentials"]
        network = [] if self.network else ["--net"]
        enter = ["nsenter", *rootless, *network, "--mount", "--pid", f"--target={self._pid}"]
        return [*enter, "env", f"--chdir={directory or '/root'}", *arguments]


async def until_ended(process: asyncio.subprocess.Process) -> int:
    """Wait for the end of a process; ``process.wait`` also waits for others that hold its pipes."""
    while process.returncode is None:
        await asyncio.sleep(0.01)
    return process.returncode
