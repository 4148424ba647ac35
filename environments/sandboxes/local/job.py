"""The framework's end of one request to a sandbox: a socket of its own, read by the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from environments.sandboxes.local.inside import wire
from environments.sandboxes.local.sending import Sender
from environments.sandboxes.local.shortage import shortage_is_ours

Receiver = Callable[[wire.Message | None], None]


class Job:
    """Hands each message of its socket to ``receiver``; None when the other side has ended."""

    def __init__(self, number: int, receiver: Receiver) -> None:
        self.number = number
        self.unread = False
        """Whether the other side ended without having read what it was sent last."""
        self._over = False
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        with shortage_is_ours():
            self._socket, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self.sender = Sender(self._socket)
        self._loop.add_reader(self._socket, self._read)

    @property
    def other_end(self) -> int:
        """Descriptor that goes to the sandbox with the request."""
        return self._other.fileno()

    def handed_over(self) -> None:
        """The sandbox has its end; ours of it is no longer needed."""
        self._other.close()

    def send(self, header: dict[str, object], body: bytes = b"", descriptors: tuple[int, ...] = ()) -> bool:
        """Send a message to the supervisor. False when it is gone or does not keep up."""
        try:
            wire.send(self._socket, header, body, descriptors)
        except OSError:
            return False
        return True

    def hang_up(self) -> None:
        """Tell the supervisor that nothing more will come; a command not begun yet is not run."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the other side is gone
            return

    def catch_up(self) -> None:
        """Take what has come already and the event loop has not told of yet."""
        while not self._over and self._socket.fileno() >= 0 and self._read():
            continue

    def lose(self) -> None:
        """The sandbox is gone: nothing more will come."""
        self.close()
        self._receiver(None)

    def close(self) -> None:
        """Forget the job. Idempotent."""
        self.sender.stop()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        self._socket.close()
        self._other.close()

    def _read(self) -> bool:
        """Hand on the next message. False where there is none, or will be none."""
        try:
            message = wire.receive(self._socket, tell_of_reset=True)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            self.unread = True
            message = None
        except (OSError, wire.ProtocolError):  # reset, or a hostile answer: the job is lost
            message = None
        if message is None:
            self._over = True
            self._loop.remove_reader(self._socket)
        self._receiver(message)
        return message is not None


class Answer(Job):
    """A job that is answered once for each request."""

    def __init__(self, number: int) -> None:
        super().__init__(number, self._receive)
        self.used = False
        """Whether it had a request before the present one."""
        self.ended = False
        """Whether the other side is gone."""
        self.begun = False
        """Whether the command of the present request is known to have been started."""
        self._future: asyncio.Future[wire.Message | None] = self._loop.create_future()

    def renew(self) -> None:
        """Expect the answer to another request."""
        self.used = True
        self.begun = False
        self._future = self._loop.create_future()

    @property
    def answer(self) -> asyncio.Future[wire.Message | None]:
        """What ``wait`` waits for. Not to be cancelled."""
        return self._future

    async def wait(self, timeout: float | None = None) -> wire.Message | None:
        """The answer, None if the other side ended without one. Raises ``TimeoutError``."""
        if timeout is None:
            return await asyncio.shield(self._future)
        done, _ = await asyncio.wait({self._future}, timeout=max(0.0, timeout))
        if not done:
            raise TimeoutError
        return self._future.result()

    def _receive(self, message: wire.Message | None) -> None:
        self.ended = self.ended or message is None
        if message is not None and "started" in message.header:
            self.begun = True
            wire.close_all(message.descriptors)
        elif not self._future.done():
            self._future.set_result(message)
        elif message is not None:
            wire.close_all(message.descriptors)
