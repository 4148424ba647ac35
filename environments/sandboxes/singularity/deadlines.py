"""Deadlines of the instances of one run, kept by a process that outlives the run if it must."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from pathlib import Path

from environments.errors import SandboxError

_PROGRAM = str(Path(__file__).with_name("ending.py"))


class Deadlines:
    """Starts its process with the first instance; ``close`` lets go of it, and it ends with the last one."""

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def set(self, pidfd: int, number: int, seconds: float, family: str) -> None:
        """Have the process behind ``pidfd`` killed after so long, anew where ``number`` was given before.

        With it goes what bears a mark of ``family``.
        """
        async with self._starting:
            if self._orders is None:
                self._orders = await asyncio.to_thread(self._start)
        try:
            order = f"{number} {max(0.0, seconds):f} {family}".encode()
            socket.send_fds(self._orders, [order], [pidfd])
        except OSError as error:
            raise SandboxError(f"the process that ends overdue instances is gone: {error}") from error

    async def close(self) -> None:
        """Let go of it; where no instance is left it ends now. Idempotent."""
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._process is not None:
            await asyncio.to_thread(self._wait, self._process)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _PROGRAM],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        return ours

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Collect it. One that still has instances to end outlives us."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
