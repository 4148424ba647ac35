"""The framework's end of a lasting socket to a sandbox's init process, for small file operations."""

from __future__ import annotations

import asyncio
import socket

from environments.sandboxes.local.inside import wire
from environments.sandboxes.local.shortage import shortage_is_ours

_MOST = 32
"""Operations under way at a time: so many answers fit into a socket whose reader is busy."""

LARGEST = wire.INLINE // 2
"""Bytes of a path, and of what is written."""


class Channel:
    """Operations and answers, told apart by a number. Init carries them out itself, one after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        with shortage_is_ours():
            self._socket, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._waiting: dict[int, asyncio.Future[wire.Message | None]] = {}
        self._number = 0
        self.ended = False
        """Whether nothing more will come."""
        self._loop.add_reader(self._socket, self._read)

    @property
    def other_end(self) -> int:
        """Descriptor that goes to the sandbox."""
        return self._other.fileno()

    def handed_over(self) -> None:
        """The sandbox has its end; ours of it is no longer needed."""
        self._other.close()

    @property
    def full(self) -> bool:
        """Whether no other operation should be begun."""
        return len(self._waiting) >= _MOST

    async def ask(self, request: dict[str, object], body: bytes) -> wire.Message | None:
        """The answer to an operation, None where there is none: no room for the request, the sandbox has
        ended, or it no longer listens."""
        self._number = number = self._number + 1
        answer: asyncio.Future[wire.Message | None] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            wire.send(self._socket, request | {"id": number}, body)
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and (message := answer.result()) is not None:
                wire.close_all(message.descriptors)  # it came just when nobody wanted it
            raise
        except BlockingIOError:  # what it was sent before is still to be read
            return None
        except OSError:
            self.close()
            return None
        finally:
            del self._waiting[number]

    def close(self) -> None:
        """Whoever waits gets no answer. Idempotent."""
        self.ended = True
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        self._socket.close()
        self._other.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(None)

    def _read(self) -> None:
        try:
            message = wire.receive(self._socket)
        except BlockingIOError:
            return
        except (OSError, wire.ProtocolError):
            message = None
        if message is None:
            self.close()
            return
        answer = self._waiting.get(message.header.get("id", 0))
        if answer is None or answer.done():  # whoever asked was cancelled
            wire.close_all(message.descriptors)
        else:
            answer.set_result(message)
