"""Pictures by address or path, small enough to be sent to a model."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from environments.sandboxes.reading import read_start
from environments.tools.base import ToolInputError, ToolState
from environments.tools.paths import describe, resolve
from environments.tools.web.fetching import FetchError
from environments.tools.web.service import web_of

LARGEST = 10_000_000
"""Bytes of a picture."""

_TYPES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


class NoPicture(Exception):
    """There is no picture to look at; the text is for the model."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Bytes of a picture and their media type."""

    data: bytes
    media_type: str

    def as_url(self) -> str:
        """The picture itself as an address."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"


def picture(data: bytes) -> Picture:
    """Told by its first bytes. Raises ``NoPicture``."""
    if len(data) > LARGEST:
        raise NoPicture(f"the picture has more than {LARGEST:,} bytes; make it smaller")
    for start, kind in _TYPES:
        if data.startswith(start):
            return Picture(data, kind)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Picture(data, "image/webp")
    raise NoPicture("it is no PNG, JPEG, GIF or WebP picture")


async def load(state: ToolState, source: str) -> Picture:
    """A picture of the web, of the sandbox, or in a data URL. Raises ``NoPicture``."""
    source = source.strip()
    if not source:
        raise ToolInputError("image_url is empty; give an http address or a path in the sandbox")
    if source.lower().startswith(("http://", "https://")):
        return picture(await _from_web(state, source))
    if source.lower().startswith("data:"):
        return picture(_from_data_url(source))
    return picture(await _from_sandbox(state, source.removeprefix("file://")))


async def _from_web(state: ToolState, address: str) -> bytes:
    web = await web_of(state)
    try:
        fetched = await web.fetcher.fetch(address)
    except FetchError as error:
        raise NoPicture(str(error)) from None
    if fetched.cut:
        raise NoPicture(f"the picture has more than {len(fetched.body):,} bytes")
    return fetched.body


def _from_data_url(text: str) -> bytes:
    head, _, content = text.partition(",")
    if not head.lower().endswith(";base64"):
        raise NoPicture("a data URL must be in base64")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise NoPicture("the data URL is no valid base64") from None


async def _from_sandbox(state: ToolState, path: str) -> bytes:
    where = resolve(state, path)
    try:
        data, size = await read_start(state.sandbox, where, LARGEST)
    except OSError as error:
        raise NoPicture(f"{path}: {describe(error)}") from None
    if size > LARGEST:
        raise NoPicture(f"{path} has {size:,} bytes, more than {LARGEST:,}; make it smaller")
    return data
