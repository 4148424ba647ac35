"""One program on the remote machine: a session channel of an SSH connection."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from environments.errors import SandboxError
from environments.sandboxes.remote_shell.machine import Channel, Exit, Receiver

QUIET = 0.15
"""Seconds of silence after a program's end until its output counts as complete, where a process that
it left behind keeps the stream open; else the end of the stream says so."""

TALK = 1.5
"""Seconds after which it counts as complete although that process goes on talking."""

_STDERR = 1  # asyncssh's EXTENDED_DATA_STDERR, which is SSH's own number


class SSHChannel(Channel):
    """Session of asyncssh (by its methods, so that asyncssh is imported only when used) and channel."""

    def __init__(self, receive: Receiver, where: str, on_closed: Callable[[], None]) -> None:
        self._receive = receive
        self._where = where
        self._on_closed = on_closed
        self._channel: Any = None
        self._exit: Exit | None = None
        self._closed = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Exit] = self._loop.create_future()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def made(self) -> bool:
        """Whether the server opened it; from then on ``on_closed`` is called when it ends."""
        return self._channel is not None

    # -- Channel --------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Write to its standard input, waiting for room."""
        await self._room.wait()
        if self._closed or self._exit is not None:
            raise BrokenPipeError(32, "the program has ended")
        try:
            self._channel.write(data)
        except OSError as error:  # the channel was closed from the other side
            raise BrokenPipeError(32, str(error)) from error

    def close_stdin(self) -> None:
        """Close its standard input."""
        if not self._closed and not self._channel.is_closing():
            self._channel.write_eof()

    async def wait(self) -> Exit:
        """Its end, once all that it had printed has been received."""
        return await asyncio.shield(self._ended)

    def pause(self) -> None:
        """Receive nothing until ``resume``."""
        if not self._paused and not self._closed:
            self._paused = True
            self._channel.pause_reading()

    def resume(self) -> None:
        """Receive again."""
        if self._paused:
            self._paused = False
            self._channel.resume_reading()
            self._wait_for_silence()

    def close(self) -> None:
        """Let go of it. What it left behind may go on writing; nobody reads it."""
        self._receive = _ignore
        if self._channel is not None and not self._closed:
            self.close_stdin()
            self.resume()
        if not self._ended.done():
            self._ended.cancel()

    # -- what asyncssh calls --------------------------------------------------------------------

    def connection_made(self, channel: Any) -> None:
        self._channel = channel

    def session_started(self) -> None: ...

    def xon_xoff_requested(self, client_can_do: bool) -> None: ...

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._receive(2 if datatype == _STDERR else 1, data)
        if self._exit is not None:
            self._wait_for_silence()

    def eof_received(self) -> bool:
        if self._exit is not None:
            self._finish(self._exit)
        return True

    def exit_status_received(self, status: int) -> None:
        self._end(Exit(status))

    def exit_signal_received(self, name: str, core_dumped: bool, message: str, language: str) -> None:
        number = getattr(signal, f"SIG{name}", signal.SIGKILL)
        self._end(Exit(signal=int(number)))

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._room.set()
        if self._exit is not None:
            self._finish(self._exit)
        elif not self._ended.done():
            reason = f": {error}" if error is not None else ""
            self._ended.set_exception(SandboxError(f"lost the connection to {self._where}{reason}"))
            self._ended.exception()  # nobody may be waiting any more
        self._on_closed()

    # -- parts ----------------------------------------------------------------------------------

    def _end(self, ended: Exit) -> None:
        self._exit = ended
        self._deadline = self._loop.time() + TALK
        self._room.set()
        self._wait_for_silence()

    def _wait_for_silence(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._exit is not None and not self._paused and not self._ended.done():
            when = min(self._loop.time() + QUIET, self._deadline)
            self._timer = self._loop.call_at(when, self._finish, self._exit)

    def _finish(self, ended: Exit) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended.done():
            self._ended.set_result(ended)


def _ignore(stream: int, data: bytes) -> None:
    """Drop output that nobody wants any more."""
