"""The supervisor of commands: runs one, keeps its output within bounds, adopts its orphans.

It is a subreaper: whatever the command detaches becomes a child of the supervisor, which stays as
long as one of them lives. The output is read here and not by the framework, so that a command
that prints without end costs the sandbox its own time and the framework none.

Where a command has left nothing behind, the framework may send the next one over the same socket: a new
supervisor costs more than most commands.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time
from typing import Any

from . import kernel, wire
from .command import Command, Streams, has_hung_up, limit_resources
from .output import CappedOutput
from .settings import Settings

_CHUNK = 65536
_LAST_OUTPUT_PATIENCE = 0.5


def supervise(job: socket.socket, message: wire.Message, settings: Settings) -> None:
    """Run a command, and those that follow it over the same socket."""
    line = Line(job, settings)
    attached = message.descriptors[1:]
    while Supervisor(line, message.header, attached).run():
        following = line.wait_for_next()
        if following is None:
            return
        message, attached = following, following.descriptors


class Line:
    """A socket to the framework, and what the commands that come over it share."""

    def __init__(self, job: socket.socket, settings: Settings) -> None:
        self.job = job
        self.settings = settings
        self.limited = False
        """Whether this process has the limits of commands."""
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if not settings.namespaces:
            kernel.die_with_parent()  # nothing else ends us with the first process
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def wait_for_next(self) -> wire.Message | None:
        """The next request; None where there will be none."""
        if self.settings.namespaces and not self.limited:
            limit_resources(self.settings)
            self.limited = True
        try:
            return wire.receive(self.job)
        except (OSError, wire.ProtocolError):
            return None


class Supervisor:
    """One job. ``exec`` jobs answer once with everything; ``spawn`` jobs are asked from time to time."""

    def __init__(self, line: Line, request: dict[str, Any], attached: list[int]) -> None:
        self._line = line
        self._job = line.job
        self._request = request
        self._attached = attached
        self._spawned: bool = request["spawn"]
        self._outputs: dict[int, CappedOutput] = {}
        self._output = CappedOutput(request["limit"])
        self._errors = CappedOutput(request["limit"])
        self._input: int | None = None
        self._unwritten = bytearray()
        self._close_input = False
        self._poll = select.poll()
        self._followed = 0
        """Requests for output that wait for some."""
        self._told = 0
        """Bytes of output that nobody needs to be told of any more."""
        self._main = 0
        self._status: int | None = None
        self._reported = False
        self._childless = False
        self._may_follow = False

    def run(self) -> bool:
        """Run the command to its end, then stay for what it left behind. Whether another one may follow."""
        if not self._start():
            return False
        self._poll.register(self._line.wake, select.POLLIN)
        self._poll.register(self._job, select.POLLIN | select.POLLRDHUP)
        while not self._has_ended():
            for descriptor, _ in self._poll.poll():
                if descriptor == self._line.wake:
                    os.read(descriptor, _CHUNK)
                elif descriptor == self._job.fileno():
                    self._serve()
                elif descriptor in self._outputs:
                    self._read(descriptor, _CHUNK)
                elif descriptor == self._input:
                    self._write_input()
            if self._output.total > self._told:
                self._answer_followers()
        if self._spawned:
            self._read_to_end()
            self._send({"end": True}, self._output.take())
        for descriptor in self._outputs:
            os.close(descriptor)
        return self._may_follow

    # -- the command ----------------------------------------------------------------------------

    def _start(self) -> bool:
        """Start it; False where there is no room for it here, which the framework is told."""
        command = Command(self._request, self._line.settings)
        streams = self._open_terminal() if self._request["pty"] else self._open_pipes()
        try:
            if not self._line.limited:
                self._main = command.fork(self._job, streams)
            elif has_hung_up(self._job):
                return False
            else:
                self._main = command.spawn(streams)
        except (OSError, ValueError) as error:
            if not self._line.limited:
                raise
            if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM):
                self._send({"full": True})
                return False
            self._status, text = command.complaint(error)
            (self._output if self._request["merge"] else self._errors).add(text)
        finally:
            for descriptor in {*streams, *self._attached} - {self._line.nothing}:
                os.close(descriptor)
        self._send({"started": True})
        return True

    def _has_ended(self) -> bool:
        """Look after children and report; whether all is done."""
        self._reap()
        if self._status is not None and not self._reported:
            self._report(self._status)
        return self._reported and self._childless

    def _open_pipes(self) -> Streams:
        attached = list(self._attached)
        if self._request["stdin"]:
            standard_input = attached.pop(0)
        elif self._spawned:
            standard_input, self._input = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._input, False)
        else:
            standard_input = self._line.nothing
        standard_output = attached.pop(0) if self._request["stdout"] else self._pipe_into(self._output)
        merged = self._request["merge"] or self._spawned
        standard_error = standard_output if merged else self._pipe_into(self._errors)
        return Streams(standard_input, standard_output, standard_error)

    def _open_terminal(self) -> Streams:
        if self._attached:  # made by the framework, where this sandbox may not make one
            master, slave = os.dup(self._attached[0]), os.dup(self._attached[1])
        else:
            master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.set_blocking(master, False)
        self._input = os.dup(master)
        self._listen(master, self._output)
        return Streams(slave, slave, slave)

    def _pipe_into(self, output: CappedOutput) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self._listen(read, output)
        return write

    def _listen(self, descriptor: int, output: CappedOutput) -> None:
        self._outputs[descriptor] = output
        self._poll.register(descriptor, select.POLLIN)

    # -- what happens meanwhile -----------------------------------------------------------------

    def _read(self, descriptor: int, size: int) -> int:
        try:
            data = os.read(descriptor, size)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:  # the other side of a terminal is gone
                raise
            data = b""
        if not data:
            self._poll.unregister(descriptor)
            del self._outputs[descriptor]
            os.close(descriptor)
        elif self._spawned or not self._reported:
            self._outputs[descriptor].add(data)
        return len(data)

    def _drain(self) -> None:
        """Read what the pipes hold at this moment; what is written later does not count."""
        for descriptor in list(self._outputs):
            waiting = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
            while waiting > 0 and descriptor in self._outputs:
                size = self._read(descriptor, min(waiting, _CHUNK))
                if size == 0:
                    break
                waiting -= size

    def _read_to_end(self) -> None:
        """Read what is still on its way: a terminal hands on its last output a moment later.

        All writers are dead, so the end comes, unless they gave a descriptor away.
        """
        deadline = time.monotonic() + _LAST_OUTPUT_PATIENCE
        while self._outputs and time.monotonic() < deadline:
            for descriptor, _ in self._poll.poll(50):
                if descriptor in self._outputs:
                    self._read(descriptor, _CHUNK)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._main:
                self._status = os.waitstatus_to_exitcode(status)

    def _report(self, status: int) -> None:
        self._drain()
        self._reported = True
        self._may_follow = self._childless and not self._spawned
        if self._spawned:
            self._answer_followers()
            self._send({"exit": status})
            return
        output, errors = self._output.take(), self._errors.take()
        totals = {
            "exit": status,
            "stdout": self._output.total,
            "stderr": self._errors.total,
            "split": len(output),
            "more": self._may_follow,
        }
        self._send(totals, output + errors)

    def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        try:
            wire.send(self._job, header, body)
        except OSError:  # the framework has lost interest
            return

    # -- requests to a background process -------------------------------------------------------

    def _serve(self) -> None:
        try:
            message = wire.receive(self._job)
        except wire.ProtocolError:
            return
        except OSError:
            message = None
        if message is None:
            self._poll.unregister(self._job)
            return
        wire.close_all(message.descriptors)
        operation = message.header.get("op")
        if operation in ("read", "follow"):
            self._drain()
            self._followed += 1
            if operation == "read" or self._reported or self._output.total > self._told:
                self._answer_followers()
        elif operation == "write" and self._input is not None:
            self._unwritten += message.body
            self._write_input()
        elif operation == "close":
            self._close_input = True
            self._write_input()

    def _answer_followers(self) -> None:
        """Give the first who waits all that there is; the answers come in the order of the requests."""
        for _ in range(self._followed):
            self._send({"data": True}, self._output.take())
            self._told = self._output.total
        self._followed = 0

    def _write_input(self) -> None:
        if self._input is None:
            return
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._input, self._unwritten[:_CHUNK])]
        except BlockingIOError:
            self._poll.register(self._input, select.POLLOUT)
            return
        except OSError:  # the command has closed its input
            self._unwritten.clear()
            self._close_input = True
        if self._close_input:
            self._finish_input(self._input)
        else:
            self._pause_input(self._input)

    def _finish_input(self, descriptor: int) -> None:
        self._pause_input(descriptor)
        if self._request["pty"]:
            with contextlib.suppress(OSError):  # the terminal is gone or does not take more; so is its reader
                os.write(descriptor, b"\x04")
        os.close(descriptor)
        self._input = None

    def _pause_input(self, descriptor: int) -> None:
        try:
            self._poll.unregister(descriptor)
        except KeyError:  # it was not waiting
            return
