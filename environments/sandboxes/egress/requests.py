"""The head of a proxy request: read, judged, and written anew for the server.

Nothing of the head is passed on as it came, so that the proxy and the server cannot understand it
differently; the body is counted, so that no second request travels behind the first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

LONGEST_HEAD = 64 * 1024

_PART = 1 << 16
_ONLY_HERE = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"),
    *(b"te", b"trailer", b"upgrade", b"host", b"http2-settings"),
}
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class BadRequest(Exception):
    """What arrived is no request for a proxy; the text is for the client."""


class Reader(Protocol):
    """The part of a stream reader that a body is taken from."""

    async def read(self, n: int) -> bytes: ...
    async def readexactly(self, n: int) -> bytes: ...
    async def readline(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Request:
    """Where a client wants to go. ``head`` is None for a tunnel (CONNECT)."""

    host: str
    port: int
    head: bytes | None = None
    length: int | None = 0
    """Bytes of the body; None where it comes in chunks."""


def parse(head: bytes) -> Request:
    """A request from the bytes up to and with its empty line. Raises ``BadRequest``."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not set(words[0]) <= _TOKEN:
        raise BadRequest("this is a proxy for HTTP/1.1; that was no request")
    method, target = words[0], words[1].decode("latin-1")
    if method == b"CONNECT":
        host, port = _authority(target, None)
        return Request(host, port)
    return _plain_request(method, target, [_field(line) for line in lines])


async def body(request: Request, reader: Reader) -> AsyncIterator[bytes]:
    """The body of a request, to its end and no further. Raises ``BadRequest``, ``EOFError``."""
    if request.length is not None:
        left = request.length
        while left:
            part = await reader.read(min(left, _PART))
            if not part:
                raise EOFError
            left -= len(part)
            yield part
        return
    while True:
        line = await reader.readline()
        size = _chunk_size(line)
        yield b"%x\r\n" % size
        while size:
            part = await reader.read(min(size, _PART))
            if not part:
                raise EOFError
            size -= len(part)
            yield part
            if not size and await reader.readexactly(2) != b"\r\n":
                raise BadRequest("a chunk does not end where it said")
            if not size:
                yield b"\r\n"
                break
        else:
            while (await reader.readline()).strip():  # trailers, which nobody needs
                continue
            yield b"\r\n"
            return


def _plain_request(method: bytes, target: str, fields: list[tuple[bytes, bytes]]) -> Request:
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise BadRequest(f"{target[:200]!r} is no URL") from error
    if parts.scheme.lower() != "http" or not parts.netloc:
        raise BadRequest("this is a proxy: it takes http://host/path and CONNECT host:port")
    host, port = _authority(parts.netloc.rpartition("@")[2], 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    named = f"[{host}]" if ":" in host else host
    named += "" if port == 80 else f":{port}"
    length = _body_length(fields)
    kept = [(name, value) for name, value in fields if name.lower() not in _ONLY_HERE]
    lines = [b"%s %s HTTP/1.1" % (method, path.encode("latin-1")), b"Host: " + named.encode("latin-1")]
    lines += [name + b": " + value for name, value in kept]
    return Request(host, port, b"\r\n".join([*lines, b"Connection: close", b"", b""]), length)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or not set(name) <= _TOKEN or b"\n" in value or b"\r" in value:
        raise BadRequest("a header cannot be read")
    return name, value.strip(b" \t")


def _body_length(fields: list[tuple[bytes, bytes]]) -> int | None:
    lengths = {value for name, value in fields if name.lower() == b"content-length"}
    codings = [value.lower() for name, value in fields if name.lower() == b"transfer-encoding"]
    if codings:
        if lengths or codings != [b"chunked"]:
            raise BadRequest("the length of the body is not clear")
        return None
    if not lengths:
        return 0
    text = lengths.pop()
    if lengths or not text.isdigit() or len(text) > 18:
        raise BadRequest("the length of the body is not clear")
    return int(text)


def _authority(text: str, default_port: int | None) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, "" if default_port is None else str(default_port)
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or len(host) > 255:
        raise BadRequest(f"{text[:300]!r} is not host:port")
    if not all(character.isprintable() and character not in " /\\?#@%" for character in host):
        raise BadRequest(f"{host!r} is no host")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _chunk_size(line: bytes) -> int:
    digits = line.split(b";")[0].strip()
    if (
        not line.endswith(b"\n")
        or not digits
        or len(digits) > 15
        or not set(digits) <= set(b"0123456789abcdefABCDEF")
    ):
        raise BadRequest("the size of a chunk cannot be read")
    return int(digits, 16)
