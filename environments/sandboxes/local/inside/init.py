"""The init process of a sandbox: forks one process for every request, but for small file operations.

A request comes with the socket of its job; the forked process answers there. So requests run side
by side, a slow one holds up nobody, and a crash harms only its own job.

What takes no longer than the fork would, init does itself: to look at a file, to open one, to write a
small one. Such operations come over a lasting socket, a *channel*, of which each process of the framework
that uses the sandbox has one. None of them waits for anybody: regular files are opened without waiting,
others are refused, and whoever does not read his answers loses his channel.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any

from . import files, kernel, wire
from .settings import Settings
from .supervisor import supervise

NAME = "sandbox-init"
"""What this process is called, and what it forks until that has a name of its own."""

_ANSWERS: dict[str, Callable[[Settings, wire.Message], dict[str, Any]]] = {
    "write": files.write,
    "stat": files.information,
    "list": files.entries,
    "mkdir": files.make_directory,
    "ping": files.ping,
}


def serve(requests: socket.socket, settings: Settings) -> None:
    """Serve until the framework hangs up."""
    kernel.set_name(NAME)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    _reset_signals()
    gc.collect()
    gc.disable()
    gc.freeze()  # forked processes then touch, and so copy, fewer pages
    channels: dict[int, socket.socket] = {}
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != requests.fileno():
                if not _serve_channel(channels[descriptor], settings):
                    poll.unregister(descriptor)
                    channels.pop(descriptor).close()
                continue
            try:
                message = wire.receive(requests)
            except wire.ProtocolError:
                continue
            if message is None:
                return
            if message.header.get("op") == "channel":
                channel = socket.socket(fileno=message.descriptors.pop(0))
                channel.setblocking(False)
                channels[channel.fileno()] = channel
                poll.register(channel, select.POLLIN)
            elif message.descriptors:
                _fork(requests, channels, message, settings)
            wire.close_all(message.descriptors)


def _serve_channel(channel: socket.socket, settings: Settings) -> bool:
    """Carry out one operation. False where the channel is of no more use."""
    try:
        message = wire.receive(channel)
        if message is None:
            return False
    except BlockingIOError:
        return True
    except (OSError, wire.ProtocolError):
        return False
    header, descriptors = _carry_out(message, settings)
    try:
        wire.send(channel, header | {"id": message.header["id"]}, descriptors=tuple(descriptors))
    except OSError:  # its reader is gone, or does not read
        return False
    finally:
        wire.close_all(descriptors)
    return True


def _carry_out(message: wire.Message, settings: Settings) -> tuple[dict[str, Any], list[int]]:
    try:
        if message.header["op"] == "open":
            header, descriptor = files.open_for_reading(settings, message)
            return header, [descriptor]
        return _ANSWERS[message.header["op"]](settings, message), []
    except OSError as error:
        return _failure(error), []
    except ValueError as error:  # a name with a NUL byte
        return _failure(OSError(22, str(error))), []
    except Exception as error:  # noqa: BLE001 - no path, however odd, may end the sandbox
        return _failure(OSError(5, f"{type(error).__name__}: {error}")), []


def _reset_signals() -> None:
    """Take back what whoever started us had ignored, for us and all commands."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps our children and all orphans


def _fork(
    requests: socket.socket,
    channels: dict[int, socket.socket],
    message: wire.Message,
    settings: Settings,
) -> None:
    try:
        child = kernel.fork()
    except OSError as error:  # the sandbox, or the machine, has used up its processes or its memory
        with socket.socket(fileno=os.dup(message.descriptors[0])) as job:
            _fail(job, error)
        return
    if child == 0:
        try:
            requests.close()
            for channel in channels.values():
                channel.close()
            _answer(socket.socket(fileno=message.descriptors[0]), message, settings)
        finally:
            os._exit(0)


def _answer(job: socket.socket, message: wire.Message, settings: Settings) -> None:
    operation = message.header.get("op")
    kernel.set_name(f"job-{message.header['id']}")
    try:
        if operation == "run":
            supervise(job, message, settings)
        elif operation == "open":
            header, descriptor = files.open_for_reading(settings, message)
            wire.send(job, header, descriptors=(descriptor,))
        else:
            wire.send(job, _ANSWERS[str(operation)](settings, message))
    except BrokenPipeError:  # the framework no longer wants to know
        return
    except OSError as error:
        _fail(job, error)
    except ValueError as error:  # a name with a NUL byte
        _fail(job, OSError(22, str(error)))


def _fail(job: socket.socket, error: OSError) -> None:
    try:
        wire.send(job, _failure(error))
    except OSError:  # the framework no longer wants to know
        return


def _failure(error: OSError) -> dict[str, Any]:
    header = {"errno": error.errno or 5, "text": error.strerror or str(error)}
    if isinstance(error, kernel.NoProcess) and error.errno == errno.EAGAIN:
        header["no_process"] = True  # nothing of it was begun
    return header
