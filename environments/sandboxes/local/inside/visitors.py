"""The guardian's door for other processes of our user: they look at a sandbox, join it, or end it.

The socket lies in the sandbox's directory on the host, outside of what the sandbox sees as its root.
"""

from __future__ import annotations

import os
import socket

DOOR = "door"
"""Name of the socket in the sandbox's directory."""

_MOST = 16
"""Visitors at a time."""


class Visitors:
    """The listening socket and those who came through it. Only who may read the directory can come."""

    def __init__(self, directory: str) -> None:
        """Open the door. Changes the working directory for a moment: the path may be too long for a
        socket's name."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        before, mask = os.open(".", os.O_RDONLY | os.O_DIRECTORY), os.umask(0o177)
        try:
            os.chdir(directory)
            self._listener.bind(DOOR)
        finally:
            os.umask(mask)
            os.fchdir(before)
            os.close(before)
        self._listener.listen(_MOST)
        self._inside: dict[int, socket.socket] = {}

    @property
    def door(self) -> int:
        """Descriptor that is readable when somebody waits outside."""
        return self._listener.fileno()

    def admit(self) -> int | None:
        """Let the next one in; the descriptor to watch, None where nobody came or there are too many."""
        try:
            visitor, _ = self._listener.accept()
        except OSError:  # gone already
            return None
        if len(self._inside) >= _MOST:
            visitor.close()
            return None
        visitor.setblocking(False)  # who does not listen is not waited for
        self._inside[visitor.fileno()] = visitor
        return visitor.fileno()

    def get(self, descriptor: int) -> socket.socket | None:
        """The visitor who is watched by this descriptor."""
        return self._inside.get(descriptor)

    def dismiss(self, descriptor: int) -> None:
        """This one has left."""
        self._inside.pop(descriptor).close()
