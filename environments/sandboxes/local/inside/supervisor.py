"""The supervisor of one command: runs it, keeps its output within bounds, adopts its orphans.

It is a subreaper: whatever the command detaches becomes a child of the supervisor, which stays as
long as one of them lives. The output is read here and not by the framework, so that a command
that prints without end costs the sandbox its own time and the framework none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import termios
import time
from typing import Any

from . import kernel, wire
from .output import CappedOutput
from .settings import Settings

_CHUNK = 65536
_LAST_OUTPUT_PATIENCE = 0.5


class Supervisor:
    """One job. ``exec`` jobs answer once with everything; ``spawn`` jobs are asked from time to time."""

    def __init__(self, job: socket.socket, message: wire.Message, settings: Settings) -> None:
        self._job = job
        self._request = message.header
        self._settings = settings
        self._attached = message.descriptors[1:]
        self._spawned: bool = self._request["spawn"]
        self._outputs: dict[int, CappedOutput] = {}
        self._output = CappedOutput(self._request["limit"])
        self._errors = CappedOutput(self._request["limit"])
        self._input: int | None = None
        self._unwritten = bytearray()
        self._close_input = False
        self._poll = select.poll()
        self._main = 0
        self._status: int | None = None
        self._reported = False
        self._childless = False

    def run(self) -> None:
        """Run the command to its end, then stay for what it left behind."""
        kernel.set_name(f"job-{self._request['id']}")
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        self._die_with_parent()
        wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._start()
        self._poll.register(wake, select.POLLIN)
        self._poll.register(self._job, select.POLLIN | select.POLLRDHUP)
        while not (self._reported and self._childless):
            for descriptor, _ in self._poll.poll():
                if descriptor == wake:
                    os.read(wake, _CHUNK)
                elif descriptor == self._job.fileno():
                    self._serve()
                elif descriptor in self._outputs:
                    self._read(descriptor, _CHUNK)
                elif descriptor == self._input:
                    self._write_input()
            self._reap()
            if self._status is not None and not self._reported:
                self._report(self._status)
        if self._spawned:
            self._read_to_end()
            self._send({"end": True}, self._output.take())

    # -- the command ----------------------------------------------------------------------------

    def _start(self) -> None:
        command_side = self._open_terminal() if self._request["pty"] else self._open_pipes()
        gate, open_gate = os.pipe2(os.O_CLOEXEC)
        self._main = os.fork()
        if self._main == 0:
            os.close(open_gate)
            self._become_command(gate, *command_side)
        for descriptor in {gate, *command_side, *self._attached}:
            os.close(descriptor)
        # A guardian that was told to kill this job looked either before the fork, then the framework
        # has hung up by now, or after it, then it has found the process. One that hangs up later, as
        # it does where a sandbox is kept, wants the command to go on.
        if not self._hung_up():
            os.write(open_gate, b"1")
        os.close(open_gate)
        if self._spawned:
            self._send({"started": True})

    def _die_with_parent(self) -> None:
        """Without a process namespace, whose end ends all, a dead init process takes its children along."""
        if not self._settings.namespaces:
            kernel.die_with_parent()

    def _open_pipes(self) -> tuple[int, int, int]:
        attached = list(self._attached)
        if self._request["stdin"]:
            standard_input = attached.pop(0)
        elif self._spawned:
            standard_input, self._input = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._input, False)
        else:
            standard_input = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        standard_output = attached.pop(0) if self._request["stdout"] else self._pipe_into(self._output)
        merged = self._request["merge"] or self._spawned
        standard_error = standard_output if merged else self._pipe_into(self._errors)
        return standard_input, standard_output, standard_error

    def _open_terminal(self) -> tuple[int, int, int]:
        if self._attached:  # made by the framework, where this sandbox may not make one
            master, slave = os.dup(self._attached[0]), os.dup(self._attached[1])
        else:
            master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.set_blocking(master, False)
        self._input = os.dup(master)
        self._listen(master, self._output)
        return slave, slave, slave

    def _pipe_into(self, output: CappedOutput) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self._listen(read, output)
        return write

    def _listen(self, descriptor: int, output: CappedOutput) -> None:
        self._outputs[descriptor] = output
        self._poll.register(descriptor, select.POLLIN)

    def _become_command(
        self, gate: int, standard_input: int, standard_output: int, standard_error: int
    ) -> None:
        try:
            if not os.read(gate, 1):
                return
            self._die_with_parent()
            os.setsid()
            if self._request["pty"]:
                fcntl.ioctl(standard_input, termios.TIOCSCTTY, 0)
            for target, source in enumerate((standard_input, standard_output, standard_error)):
                os.dup2(source, target)
            self._execute()
        finally:
            os._exit(126)

    def _execute(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # those too that whoever started us had ignored
        variables = self._settings.variables() | self._request["env"]
        arguments = self._request["argv"]
        try:
            self._limit_resources()
            os.chdir(self._settings.resolve(self._request["cwd"] or "."))
            if self._request["shell"]:
                self._execute_shell(arguments[0], variables)
            else:
                os.execvpe(arguments[0], arguments, variables)
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            subject = self._request["cwd"] or ("sh" if self._request["shell"] else arguments[0])
            os.write(2, f"cannot run {subject}: {error}\n".encode("utf-8", "replace"))
            os._exit(127 if missing else 126)

    def _execute_shell(self, text: str, variables: dict[str, str]) -> None:
        for shell in ("/usr/bin/bash", "/bin/bash", "/usr/bin/sh", "/bin/sh"):
            try:
                os.execve(shell, [os.path.basename(shell), "-c", text], variables)
            except FileNotFoundError:
                continue
        raise FileNotFoundError(errno.ENOENT, "there is no shell")

    def _limit_resources(self) -> None:
        for name, value in self._settings_limits():
            _, hard = resource.getrlimit(name)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(name, (value, value))

    def _settings_limits(self) -> list[tuple[int, int]]:
        limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, self._settings.process_limit)]
        if self._settings.limit_data:
            limits.append((resource.RLIMIT_DATA, self._settings.memory))
        return limits

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
        if self._spawned:
            self._send({"exit": status})
            return
        output, errors = self._output.take(), self._errors.take()
        totals = {
            "exit": status,
            "stdout": self._output.total,
            "stderr": self._errors.total,
            "split": len(output),
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
        if operation == "read":
            self._drain()
            self._send({"data": True}, self._output.take())
        elif operation == "write" and self._input is not None:
            self._unwritten += message.body
            self._write_input()
        elif operation == "close":
            self._close_input = True
            self._write_input()

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

    def _hung_up(self) -> bool:
        try:
            return not self._job.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
