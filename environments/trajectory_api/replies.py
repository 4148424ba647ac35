"""Replies that are streamed: groups go from the disk to the socket, one group at a time."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from environments.errors import StoreError
from environments.trajectory_api.bodies import zstd_module

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_CHUNK = 1 << 18


class Encoder(Protocol):
    """A streaming compressor of zlib or zstandard."""

    def compress(self, data: bytes) -> bytes:
        """What is ready of the compressed form."""
        ...

    def flush(self) -> bytes:
        """The rest of it."""
        ...


def negotiate(accepted: str, client: str | None) -> tuple[str, Encoder] | None:
    """Content encoding and compressor for a client; None to send as it is.

    On the same machine compression costs more than it saves, so there it is only used where the
    client accepts nothing else.
    """
    weights = _weights(accepted)
    if _is_local(client) and weights.get("identity", 1.0) > 0:
        return None
    if weights.get("zstd", 0) > 0 and (zstd := zstd_module()) is not None:
        return "zstd", zstd.ZstdCompressor(level=1).compressobj()
    if weights.get("gzip", weights.get("*", 0)) > 0:
        return "gzip", zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return None


def _weights(accepted: str) -> dict[str, float]:
    weights = {}
    for part in accepted.split(","):
        name, _, parameters = part.strip().partition(";")
        weight = parameters.strip().removeprefix("q=") or "1"
        try:
            weights[name.strip().lower()] = float(weight)
        except ValueError:
            weights[name.strip().lower()] = 1.0
    return weights


def _is_local(client: str | None) -> bool:
    try:
        return client is not None and ipaddress.ip_address(client).is_loopback
    except ValueError:
        return False


Payload = Callable[[int], Awaitable[bytes | None]]
"""JSON text of a group by its number; None leaves the group out."""


@dataclass(slots=True)
class GroupsReply:
    """An ASGI response with groups. ``sent`` learns whether all of it went out.

    The body is an object with the list under ``name``, followed by ``fields``.
    """

    name: str
    groups: Sequence[int]
    payload: Payload
    fields: dict[str, Any]
    encoding: tuple[str, Encoder] | None
    stall: float
    """Longest time that the client may take to read what is ready."""
    headers: dict[str, str] = field(default_factory=dict)
    sent: Callable[[bool], Awaitable[None]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. A client that is gone is noticed at the end at the latest."""
        whole = False
        try:
            await self._start(send)
            async for part in self._encoded():
                for start in range(0, len(part), _CHUNK):
                    body = part[start : start + _CHUNK]
                    async with asyncio.timeout(self.stall):
                        await send({"type": "http.response.body", "body": body, "more_body": True})
            gone = asyncio.ensure_future(receive())
            await asyncio.sleep(0)
            whole = not (gone.done() and gone.result()["type"] == "http.disconnect")
            gone.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return  # an unfinished reply: the connection is closed
        except StoreError as error:
            logger.error("%s", error)  # likewise: what has been sent cannot be taken back
        finally:
            if self.sent is not None:
                await self.sent(whole)

    async def _start(self, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = [
            (b"content-type", b"application/json"),
            (b"vary", b"Accept-Encoding"),
            *((name.lower().encode(), value.encode()) for name, value in self.headers.items()),
        ]
        if self.encoding is not None:
            headers.append((b"content-encoding", self.encoding[0].encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _encoded(self) -> AsyncIterator[bytes]:
        if self.encoding is None:
            async for part in self._text():
                yield part
            return
        encoder = self.encoding[1]
        async for part in self._text():
            ready = await asyncio.to_thread(encoder.compress, part)
            if ready:
                yield ready
        yield await asyncio.to_thread(encoder.flush)

    async def _text(self) -> AsyncIterator[bytes]:
        """JSON of the reply; the next group is read while this one is sent."""
        yield f'{{"{self.name}":['.encode()
        ahead: asyncio.Future[bytes | None] | None = None
        separator = b""
        try:
            for number, group_id in enumerate(self.groups):
                text = await (ahead or self.payload(group_id))
                following = self.groups[number + 1 : number + 2]
                ahead = asyncio.ensure_future(self.payload(following[0])) if following else None
                if text is not None:
                    yield separator + text
                    separator = b","
        finally:
            if ahead is not None:
                ahead.cancel()
        yield b"]," + json.dumps(self.fields).encode()[1:]


def refusal_headers(status: int) -> dict[str, Any]:
    """Headers of an error: when to come again after 429."""
    return {"Retry-After": "1"} if status == 429 else {}
