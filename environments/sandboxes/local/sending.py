"""Sending messages over a socket of the event loop, in turn."""

from __future__ import annotations

import asyncio
import socket

from environments.errors import SandboxBroken
from environments.sandboxes.local.inside import wire
from environments.sandboxes.local.shortage import shortage_is_ours

_PATIENCE = 30.0
"""Seconds that the other side may leave a full socket unread."""


class Sender:
    """Sends over one socket, which is read and closed by others; ``stop`` must be called before that."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        """Held by whoever waits for room."""
        self._room = asyncio.Event()

    def try_to_send(
        self, header: dict[str, object], body: bytes = b"", descriptors: tuple[int, ...] = ()
    ) -> bool:
        """False where there is no room, or others wait for some. ``OSError`` where the other side is gone."""
        return not self._turn.locked() and self._sent(header, body, descriptors)

    async def send(
        self, header: dict[str, object], body: bytes = b"", descriptors: tuple[int, ...] = ()
    ) -> None:
        """Send a message after those that were to be sent before; waits while the socket is full.

        ``OSError`` where the other side is gone, ``SandboxBroken`` where it does not read.
        """
        if self.try_to_send(header, body, descriptors):
            return
        async with self._turn:
            while not self._sent(header, body, descriptors):
                await self._wait_for_room()

    def stop(self) -> None:
        """The socket is about to be closed: whoever waits learns that it is. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)
        self._room.set()

    def _sent(self, header: dict[str, object], body: bytes, descriptors: tuple[int, ...]) -> bool:
        try:
            with shortage_is_ours():
                wire.send(self._socket, header, body, descriptors)
        except BlockingIOError:
            return False
        return True

    async def _wait_for_room(self) -> None:
        self._room.clear()
        self._loop.add_writer(self._socket, self._room.set)
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._room.wait()
        except TimeoutError:
            raise SandboxBroken("the sandbox takes no more requests") from None
        finally:
            if self._socket.fileno() >= 0:
                self._loop.remove_writer(self._socket)
