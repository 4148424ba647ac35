"""The framework's side of the process that guardians are forked from."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from environments.errors import SandboxError
from environments.sandboxes.local.inside import wire
from environments.sandboxes.local.shortage import building_failed

_HERE = str(Path(__file__).parent)
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside.nursery import main; main(int(sys.argv[1]))"
)
_PATIENCE = 60.0


class GuardianProcess:
    """A guardian, by number and by descriptor; whoever gets it closes it."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.descriptor = descriptor

    def kill(self) -> None:
        """Kill it, whatever becomes of its number."""
        signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Forget it. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Nursery:
    """Started with the first guardian, and again where it was killed."""

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._waiting: dict[int, asyncio.Future[GuardianProcess]] = {}
        self._number = 0

    async def fork(self, descriptors: tuple[int, int, int, int]) -> GuardianProcess:
        """A new guardian with these descriptors: its end of the orders, both of the requests, its stderr.

        ``SandboxError`` where that fails. A caller that is cancelled must go on to wait.
        """
        async with self._starting:
            if self._orders is None:
                await asyncio.to_thread(self._start)
                assert self._orders is not None
                asyncio.get_running_loop().add_reader(self._orders, self._read)
        self._number += 1
        number = self._number
        answer: asyncio.Future[GuardianProcess] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            wire.send(self._orders, {"id": number}, descriptors=descriptors)
            async with asyncio.timeout(_PATIENCE):
                return await answer
        except (OSError, TimeoutError) as error:
            raise SandboxError(f"a local sandbox cannot be started: {error or 'no answer'}") from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End it. Guardians that still live are not touched."""
        self._hang_up("the backend is closed")
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
            self._process = None

    def _start(self) -> None:
        if self._process is not None:
            self._process.wait()  # it has hung up
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOT, _HERE, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise SandboxError(f"a local sandbox cannot be started: {error}") from error
        ours.setblocking(False)
        self._orders = ours

    def _read(self) -> None:
        assert self._orders is not None
        try:
            message = wire.receive(self._orders)
        except BlockingIOError:
            return
        except (OSError, wire.ProtocolError):
            message = None
        if message is None:
            self._hang_up("the process that starts local sandboxes was killed")
            return
        answer = self._waiting.get(message.header["id"])
        if answer is None or answer.done() or "error" in message.header:
            wire.close_all(message.descriptors)
            if answer is not None and not answer.done():
                text = f"a local sandbox cannot be started: {message.header['error']}"
                answer.set_exception(building_failed(text, message.header["errno"]))
            return
        answer.set_result(GuardianProcess(message.header["pid"], message.descriptors.pop()))

    def _hang_up(self, reason: str) -> None:
        if self._orders is not None:
            asyncio.get_running_loop().remove_reader(self._orders)
            self._orders.close()
            self._orders = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(OSError(reason))
