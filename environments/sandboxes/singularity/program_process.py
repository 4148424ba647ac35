"""One program in an instance: a child process of ours, its three streams pipes or one terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from environments.sandboxes.remote_shell.machine import Channel, Exit, Receiver
from environments.sandboxes.singularity import process_table

ACKNOWLEDGEMENT = b"."
"""First byte on stdout: the program has been read and begins."""

_CHUNK = 1 << 18
_PIPE_SIZE = 1 << 20
_IN_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes the terminal on its input the controlling one, then becomes the program."""


class ProgramProcess(Channel):
    """A child process whose output goes to a receiver."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, pty: bool = False
    ) -> None:
        """Start it. ``OSError`` where it cannot be started."""
        self._loop = asyncio.get_running_loop()
        self._receive: Receiver = _drop
        self._awaiting = b"" if pty else ACKNOWLEDGEMENT
        self._begun: asyncio.Future[bool] = self._loop.create_future()
        self._ended: asyncio.Future[Exit] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._over = asyncio.Event()
        self._paused = False
        self._pty = pty
        self._complaint = bytearray()
        """What came on stderr before the program began: the engine's own words."""
        if pty:
            self._start_in_terminal(list(arguments), environment)
            self._begun.set_result(True)
        else:
            self._start(list(arguments), environment)
        for descriptor in {self._stdin, *self._outputs}:
            os.set_blocking(descriptor, False)
        for descriptor in self._outputs:
            self._loop.add_reader(descriptor, self._read, descriptor)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._exited)

    def _start(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        theirs_in, self._stdin = os.pipe2(os.O_CLOEXEC)
        out, theirs_out = os.pipe2(os.O_CLOEXEC)
        err, theirs_err = os.pipe2(os.O_CLOEXEC)
        self._outputs = {out: 1, err: 2}
        try:
            self._process = subprocess.Popen(
                arguments,
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=theirs_err,
                env=environment,
                start_new_session=True,
            )
        except BaseException:  # cancelled, too: the ends that are ours are nobody's
            for descriptor in (self._stdin, out, err):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (theirs_in, theirs_out, theirs_err):
                os.close(descriptor)
        with contextlib.suppress(OSError):  # the user's share of pipe memory may be used up
            fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)

    def _start_in_terminal(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        ours, theirs = os.openpty()
        self._stdin, self._outputs = ours, {ours: 1}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _IN_TERMINAL, *arguments],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=environment,
                start_new_session=True,
            )
        except BaseException:  # cancelled, too: the end that is ours is nobody's
            os.close(ours)
            raise
        finally:
            os.close(theirs)

    @property
    def running(self) -> bool:
        """Whether the child still runs."""
        return not self._gone.is_set()

    @property
    def pid(self) -> int:
        """Number of the child."""
        return self._process.pid

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended the child."""
        return self._process.returncode == -9

    @property
    def complaint(self) -> str:
        """What the engine said before the program began."""
        return self._complaint.decode("utf-8", "replace").strip()

    async def begin(self, program: bytes, receive: Receiver) -> bool:
        """Hand over a program as ``BOOTSTRAP`` reads it, which acknowledges its start; whether it did."""
        self._receive = receive
        with contextlib.suppress(BrokenPipeError):
            await self.write(program)
        return await asyncio.shield(self._begun)

    def listen(self, receive: Receiver) -> None:
        """Send output to ``receive``, for a program that needs no handing over."""
        self._receive = receive

    # -- Channel --------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Write to its standard input, waiting for room."""
        view = memoryview(data)
        while view:
            if self._stdin < 0 or self._gone.is_set():
                raise BrokenPipeError(32, "the program has ended")
            try:
                view = view[os.write(self._stdin, view[:_CHUNK]) :]
            except BlockingIOError:
                await self._writable()
            except OSError as error:  # EPIPE, or EIO of a terminal
                raise BrokenPipeError(32, "the program reads no more") from error

    def close_stdin(self) -> None:
        """Close its standard input."""
        if self._stdin >= 0 and not self._pty:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    async def wait(self) -> Exit:
        """Its end, once all that it had printed has been received."""
        return await asyncio.shield(self._ended)

    async def over(self) -> None:
        """Wait until the child is no more, and nothing that it left behind holds its streams."""
        await self._over.wait()

    def pause(self) -> None:
        """Receive nothing until ``resume``."""
        if not self._paused:
            self._paused = True
            for descriptor in self._outputs:
                self._loop.remove_reader(descriptor)

    def resume(self) -> None:
        """Receive again."""
        if self._paused:
            self._paused = False
            for descriptor in self._outputs:
                self._loop.add_reader(descriptor, self._read, descriptor)
            if self._gone.is_set():
                self._finish()

    def close(self) -> None:
        """Let go of it. What it left behind may go on writing; nobody reads it."""
        self._receive = _drop
        self.close_stdin()
        self.resume()
        if not self._ended.done():
            self._ended.cancel()
        if not self._begun.done():
            self._begun.set_result(False)

    def kill(self) -> None:
        """Kill the child, and with it the program and what that has started."""
        if self.running:
            process_table.kill_tree(self.pid)
        self.close()

    def discard(self) -> None:
        """Close its streams: nothing that could use them lives any more."""
        self.close()
        for descriptor in list(self._outputs):
            self._close_output(descriptor)

    # -- events ---------------------------------------------------------------------------------

    def _read(self, descriptor: int) -> bool:
        """Take one portion of output; False where there is none."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: the last process has left the terminal
            data = b""
        if not data:
            self._close_output(descriptor)
            return False
        self._take(self._outputs[descriptor], data)
        return True

    def _take(self, stream: int, data: bytes) -> None:
        if stream == 2 and not self._begun.done():
            # The acknowledgement was written before all that the program itself says.
            for descriptor in [out for out, number in self._outputs.items() if number == 1]:
                self._read(descriptor)
        if self._begun.done():
            self._receive(stream, data)
        elif stream == 2:
            self._complaint += data[:10_000]
        elif data.startswith(self._awaiting):
            self._begun.set_result(True)
            if len(data) > len(self._awaiting):
                self._receive(1, data[len(self._awaiting) :])

    def _exited(self) -> None:
        if self._process.poll() is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._gone.set()
        if not self._paused:
            self._finish()

    def _finish(self) -> None:
        """Take what is in the pipes still; what is left behind may hold them open for ever."""
        for descriptor in list(self._outputs):
            for _ in range(_PIPE_SIZE // 4096):
                if self._paused:  # by who receives: the rest follows on ``resume``
                    return
                if not self._read(descriptor):
                    break
        if not self._begun.done():
            self._begun.set_result(False)
        if not self._ended.done():
            code = self._process.returncode
            self._ended.set_result(Exit(code) if code >= 0 else Exit(signal=-code))
        self._check_over()

    def _close_output(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        if descriptor in self._outputs:
            del self._outputs[descriptor]
            if descriptor == self._stdin:  # a terminal
                self._loop.remove_writer(descriptor)
                self._stdin = -1
            os.close(descriptor)
        self._check_over()

    def _check_over(self) -> None:
        if self._gone.is_set() and not self._outputs:
            self.close_stdin()
            self._over.set()

    async def _writable(self) -> None:
        """Wait until its input takes more, or it is gone."""
        ready = asyncio.Event()
        gone = asyncio.ensure_future(self._gone.wait())
        gone.add_done_callback(lambda _: ready.set())
        descriptor = self._stdin
        self._loop.add_writer(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            if self._stdin == descriptor:
                self._loop.remove_writer(descriptor)
            gone.cancel()


def _drop(stream: int, data: bytes) -> None:
    """Nobody wants this output."""
