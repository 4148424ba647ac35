"""Request bodies: read and their encodings undone, within limits."""

from __future__ import annotations

import asyncio
import importlib
import io
import zlib
from collections.abc import AsyncIterator
from typing import Any

from environments.trajectory_api.refusals import Refused

_STEP = 1 << 20

_PATIENCE = 8
"""Times the limit that is read of a body that is too long, before the connection is closed."""


_BYTES_PER_VALUE = 8
"""Bytes of JSON that a value has at least, on average, in a body near the limit: a list of numbers takes
many times the memory of its text, and one of single digits the most.
"""


async def read_body(stream: AsyncIterator[bytes], limit: int, stall: float, declared: str | None) -> bytes:
    """The body as it comes. One that is too long is read to its end, so that its sender gets the refusal
    and not a broken connection, but not kept; not where its ``declared`` length is beyond all patience.

    Raises ``Refused``: 413 beyond ``limit`` bytes, 408 where nothing comes for ``stall`` seconds.
    """
    if declared is not None and declared.isdecimal() and int(declared) > _PATIENCE * limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(stall) as waiting:
            async for part in stream:
                waiting.reschedule(loop.time() + stall)
                size += len(part)
                if size > _PATIENCE * limit:
                    break
                if size <= limit:
                    parts.append(part)
                else:
                    parts.clear()
    except TimeoutError:
        raise Refused("body", "its sending has stopped", status=408) from None
    if size > limit:
        raise too_large(limit)
    return b"".join(parts)


def decode_body(body: bytes, encoding: str, limit: int) -> bytes:
    """The content of a body. ``encoding`` is the Content-Encoding header; ``limit`` bounds the content.

    Raises ``Refused``: 413 beyond the limit, 415 for an unknown encoding, 400 for a broken body.
    """
    names = [name.strip().lower() for name in encoding.split(",") if name.strip()]
    for name in reversed(names):
        if name in ("gzip", "x-gzip"):
            body = _gunzip(body, limit)
        elif name == "deflate":
            body = _inflate(body, zlib.decompressobj(), limit)[0]
        elif name == "zstd":
            body = _unzstd(body, limit)
        elif name != "identity":
            raise Refused("Content-Encoding", f"{name!r} is not known: use gzip, zstd or none", status=415)
    if len(body) > limit:
        raise too_large(limit)
    if body.count(b",") > limit // _BYTES_PER_VALUE:
        raise Refused("body", f"more than {limit // _BYTES_PER_VALUE} values", status=413)
    return body


def too_large(limit: int) -> Refused:
    """The refusal of a body beyond ``limit`` bytes."""
    return Refused("body", f"longer than {limit} bytes", status=413)


def _gunzip(body: bytes, limit: int) -> bytes:
    """Undo gzip, of one member or several."""
    content = b""
    while body:
        part, body = _inflate(body, zlib.decompressobj(zlib.MAX_WBITS | 16), limit - len(content))
        content = content + part if content else part
    return content


def _inflate(body: bytes, decoder: Any, limit: int) -> tuple[bytes, bytes]:
    parts: list[bytes] = []
    size = 0
    try:
        while not decoder.eof:
            part = decoder.decompress(body, max(_STEP, 4 * len(body)) if not parts else _STEP)
            if not part and not decoder.unconsumed_tail and not decoder.eof:
                raise Refused("body", "the compressed body is truncated", status=400)
            body = decoder.unconsumed_tail
            parts.append(part)
            size += len(part)
            if size > limit:
                raise too_large(limit)
    except zlib.error as error:
        raise Refused("body", f"Invalid gzip payload: {error}", status=400) from error
    return b"".join(parts), decoder.unused_data


def zstd_module() -> Any:
    """The ``zstandard`` package where it is installed, else None."""
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        return None


def _unzstd(body: bytes, limit: int) -> bytes:
    zstd = zstd_module()
    if zstd is None:
        raise Refused("Content-Encoding", "zstd needs the package zstandard on the server", status=415)
    reader = zstd.ZstdDecompressor(max_window_size=1 << 27).stream_reader(io.BytesIO(body))
    parts: list[bytes] = []
    size = 0
    try:
        while part := reader.read(_STEP):  # in steps, so that a bomb is found before it swells
            parts.append(part)
            size += len(part)
            if size > limit:
                raise too_large(limit)
    except zstd.ZstdError as error:
        raise Refused("body", f"invalid zstd payload: {error}", status=400) from error
    return b"".join(parts)
