"""Starting the command of a job: a process with a session of its own and the limits of commands.

The first command of a supervisor is forked. The supervisor may have more processes than a command, so
that this works in a sandbox that is full too. Before its second one it takes the limits of commands upon
itself; from then on the kernel can start commands without copying it (``posix_spawn``). Only with
namespaces, though: without them a command must ask the kernel to die with its parent, which a copy alone
can do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import termios
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import kernel
from .settings import Settings

_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""By Python, so by us, but not by commands. All others are as they are from the start."""

_SHELLS = ("/usr/bin/bash", "/bin/bash", "/usr/bin/sh", "/bin/sh")


class Streams(NamedTuple):
    """Descriptors that become the command's standard streams."""

    input: int
    output: int
    error: int


class Command:
    """One command, as the framework asked for it."""

    def __init__(self, request: dict[str, Any], settings: Settings) -> None:
        self._request = request
        self._settings = settings

    def fork(self, job: socket.socket, streams: Streams) -> int:
        """Start it in a copy of this process. It does not begin where the framework has hung up.

        ``NoProcess`` where the kernel gives none.
        """
        child = kernel.fork()
        if child == 0:
            try:
                self._become(job, streams)
            finally:
                os._exit(126)
        return child

    def spawn(self, streams: Streams) -> int:
        """Start it without copying this process, which has the limits of commands.

        ``OSError`` or ``ValueError`` as of ``exec``; ``BlockingIOError`` where there are too many processes.
        """
        variables = self._settings.variables() | self._request["env"]
        os.chdir(self._settings.resolve(self._request["cwd"] or "."))
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(streams)]
        reason = "there is no shell" if self._request["shell"] else os.strerror(errno.ENOENT)
        failure: OSError = FileNotFoundError(errno.ENOENT, reason)
        for program in self._programs(variables):
            try:
                return os.posix_spawn(
                    program,
                    self._arguments(program),
                    variables,
                    file_actions=actions,
                    setsid=True,
                    setsigdef=_IGNORED,
                )
            except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
                if not isinstance(failure, PermissionError):
                    failure = error
        raise failure

    def complaint(self, error: OSError | ValueError) -> tuple[int, bytes]:
        """Exit code and message for a command that cannot be run."""
        missing = isinstance(error, FileNotFoundError)
        reason = "a NUL, or another character that no argument can have"
        if isinstance(error, OSError):
            reason = f"[Errno {error.errno}] {error.strerror}"
        request = self._request
        subject = request["cwd"] or ("sh" if request["shell"] else request["argv"][0])
        return 127 if missing else 126, f"cannot run {subject}: {reason}\n".encode("utf-8", "replace")

    def _become(self, job: socket.socket, streams: Streams) -> None:
        # A guardian that was told to kill this job looked either before the fork, then the framework
        # has hung up by now, or after it, then it has found this process. One that hangs up later, as
        # it does where a sandbox is kept, wants the command to go on.
        if has_hung_up(job):
            return
        if not self._settings.namespaces:
            kernel.die_with_parent()
        os.setsid()
        if self._request["pty"]:
            fcntl.ioctl(streams.input, termios.TIOCSCTTY, 0)
        for target, source in enumerate(streams):
            os.dup2(source, target)
        signal.set_wakeup_fd(-1)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        try:
            limit_resources(self._settings)
            self._execute()
        except (OSError, ValueError) as error:
            code, text = self.complaint(error)
            os.write(2, text)
            os._exit(code)

    def _execute(self) -> None:
        variables = self._settings.variables() | self._request["env"]
        os.chdir(self._settings.resolve(self._request["cwd"] or "."))
        arguments = self._request["argv"]
        if not self._request["shell"]:
            os.execvpe(arguments[0], arguments, variables)
        for shell in _SHELLS:
            try:
                os.execve(shell, self._arguments(shell), variables)
            except FileNotFoundError:
                continue
        raise FileNotFoundError(errno.ENOENT, "there is no shell")

    def _programs(self, variables: dict[str, str]) -> Iterator[str]:
        """Files that may be the program, as a shell would look for it."""
        name = self._request["argv"][0]
        if self._request["shell"]:
            yield from _SHELLS
        elif "/" in name:
            yield name
        else:
            for directory in os.get_exec_path(variables):
                path = os.path.join(directory, name)
                if not _is_missing(path):  # to try costs more than to look
                    yield path

    def _arguments(self, program: str) -> list[str]:
        arguments: list[str] = self._request["argv"]
        return [os.path.basename(program), "-c", arguments[0]] if self._request["shell"] else arguments


def _is_missing(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # to be met again where it is tried
        return False
    return False


def has_hung_up(job: socket.socket) -> bool:
    """Whether the framework will send nothing more."""
    try:
        return not job.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def limit_resources(settings: Settings) -> None:
    """Take the limits of commands upon this process, for good."""
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, settings.process_limit)]
    if settings.limit_data:
        limits.append((resource.RLIMIT_DATA, settings.memory))
    for name, value in limits:
        _, hard = resource.getrlimit(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
    if settings.open_files is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (settings.open_files, hard))
