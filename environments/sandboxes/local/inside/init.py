"""The init process of a sandbox: forks one process for every request and knows nothing else.

A request comes with the socket of its job; the forked process answers there. So requests run side
by side, a slow one holds up nobody, and a crash harms only its own job.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from . import files, kernel, wire
from .settings import Settings
from .supervisor import supervise

_ANSWERS: dict[str, Callable[[Settings, wire.Message], dict[str, Any]]] = {
    "write": files.write,
    "stat": files.information,
    "list": files.entries,
    "mkdir": files.make_directory,
    "ping": files.ping,
}


def serve(requests: socket.socket, settings: Settings) -> None:
    """Serve until the framework hangs up."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    _reset_signals()
    gc.collect()
    gc.disable()
    gc.freeze()  # forked processes then touch, and so copy, fewer pages
    while True:
        try:
            message = wire.receive(requests)
        except wire.ProtocolError:
            continue
        if message is None:
            return
        if message.descriptors:
            _fork(requests, message, settings)
            wire.close_all(message.descriptors)


def _reset_signals() -> None:
    """Take back what whoever started us had ignored, for us and all commands."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps our children and all orphans


def _fork(requests: socket.socket, message: wire.Message, settings: Settings) -> None:
    try:
        child = os.fork()
    except OSError as error:  # the sandbox has used up its processes or its memory
        with socket.socket(fileno=os.dup(message.descriptors[0])) as job:
            _fail(job, error)
        return
    if child == 0:
        try:
            requests.close()
            _answer(socket.socket(fileno=message.descriptors[0]), message, settings)
        finally:
            os._exit(0)


def _answer(job: socket.socket, message: wire.Message, settings: Settings) -> None:
    operation = message.header.get("op")
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
        wire.send(job, {"errno": error.errno or 5, "text": error.strerror or str(error)})
    except OSError:  # the framework no longer wants to know
        return
