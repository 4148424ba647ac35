"""Opening a listening socket inside a network, for somebody outside of it."""

from __future__ import annotations

import os
import socket

from . import kernel

BACKLOG = 128


def open_listener(port: int) -> socket.socket:
    """A socket that listens on the loopback interface of the network that this process is in."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def main(process: int, port: int, answer: int) -> None:
    """Join the network of ``process`` and send a listening socket to the socket ``answer``."""
    namespaces = f"/proc/{process}/ns"
    kinds = [("net", kernel.CLONE_NEWNET)]
    if os.stat(f"{namespaces}/user").st_ino != os.stat("/proc/self/ns/user").st_ino:
        kinds.insert(0, ("user", kernel.CLONE_NEWUSER))  # whoever joins it has all rights in it
    descriptors = [
        (os.open(f"{namespaces}/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in kinds
    ]
    own = os.stat("/proc/self/ns/net").st_ino
    for descriptor, kind in descriptors:
        kernel.setns(descriptor, kind)
    if os.stat("/proc/self/ns/net").st_ino == own:
        raise OSError("it has no network of its own")
    with socket.socket(fileno=answer) as sock, open_listener(port) as listener:
        socket.send_fds(sock, [b"listening"], [listener.fileno()])
