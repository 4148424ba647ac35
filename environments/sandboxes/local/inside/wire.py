"""Messages between the framework, the guardian, the init process and its supervisors.

One message is one packet of a ``SOCK_SEQPACKET`` socket: a JSON object, a newline, and raw bytes.
Packets are atomic, so several processes may write to one socket. A message that is too long for a
packet travels as a memory file whose descriptor is the last one attached.
"""

from __future__ import annotations

import array
import json
import os
import socket
import stat
from typing import Any, NamedTuple

INLINE = 48 * 1024
"""Longest message that is sent as a packet; well below the default socket buffer."""

LONGEST = 256 * 1024 * 1024
"""Longest message that a receiver takes; the sender may be hostile."""

MAX_DESCRIPTORS = 8
_ANCILLARY = socket.CMSG_LEN(MAX_DESCRIPTORS * array.array("i").itemsize)
_to_text = json.JSONEncoder(separators=(",", ":")).encode
_IN_MEMORY_FILE = b"@"


class Message(NamedTuple):
    """One message and the descriptors that came with it, which the receiver owns."""

    header: dict[str, Any]
    body: bytes
    descriptors: list[int]


class ProtocolError(Exception):
    """The other side sent something that is no message."""


def memory_file(data: bytes) -> int:
    """Descriptor of an anonymous file that holds ``data``, positioned at its start."""
    descriptor = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Bytes of one message."""
    return _to_text(header).encode("ascii") + b"\n" + body


def send(
    sock: socket.socket, header: dict[str, Any], body: bytes = b"", descriptors: tuple[int, ...] = ()
) -> None:
    """Send one message. Raises ``BlockingIOError`` where a non-blocking socket is full."""
    data = encode(header, body)
    if len(data) <= INLINE:
        _send_packet(sock, data, descriptors)
        return
    extra = memory_file(data)
    try:
        _send_packet(sock, _IN_MEMORY_FILE, (*descriptors, extra))
    finally:
        os.close(extra)


def receive(sock: socket.socket, *, tell_of_reset: bool = False) -> Message | None:
    """Receive one message; None at the end of the stream.

    Raises ``BlockingIOError`` where a non-blocking socket is empty, ``ProtocolError`` on nonsense, and
    ``ConnectionResetError``, if wanted, where the other side ended without reading all that it was sent.
    """
    reset = False
    try:
        data, ancillary, flags, _ = sock.recvmsg(INLINE, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # it ended without reading all; what it had sent is still to come
        reset = True
        data, ancillary, flags, _ = sock.recvmsg(INLINE, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    descriptors = _descriptors(ancillary)
    if not data:
        close_all(descriptors)
        if reset and tell_of_reset:
            raise ConnectionResetError
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ProtocolError("a message was cut short")
        if data == _IN_MEMORY_FILE:
            data = _read_memory_file(descriptors)
        head, _, body = data.partition(b"\n")
        header = json.loads(head)
        if not isinstance(header, dict):
            raise ProtocolError("a message is no object")
    except (ValueError, RecursionError, OSError) as error:
        close_all(descriptors)
        raise ProtocolError(f"a message cannot be read: {error}") from error
    except ProtocolError:
        close_all(descriptors)
        raise
    return Message(header, body, descriptors)


def close_all(descriptors: list[int]) -> None:
    """Close descriptors that nobody wants."""
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()


def _send_packet(sock: socket.socket, data: bytes, descriptors: tuple[int, ...]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _read_memory_file(descriptors: list[int]) -> bytes:
    if not descriptors:
        raise ProtocolError("a message came without its memory file")
    descriptor = descriptors.pop()
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST:
            raise ProtocolError("a message is too long")
        return read_whole(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def read_whole(descriptor: int, size: int, offset: int = 0) -> bytes:
    """Up to ``size`` bytes of a regular file from ``offset`` on, in as many reads as it takes."""
    chunks: list[bytes] = []
    while size > 0:
        chunk = os.pread(descriptor, size, offset)
        if not chunk:
            break
        chunks.append(chunk)
        offset += len(chunk)
        size -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
