"""The APIs that look at pictures and make them, in OpenAI's form."""

from __future__ import annotations

import base64
import os
from typing import Any
from urllib.parse import urlsplit

from environments.errors import EngineUnusable
from environments.tools.asking import Call, NoAnswer, ask
from environments.tools.vision.pictures import Picture
from environments.tools.vision.settings import EndpointSettings

SIZES = {"landscape": "1536x1024", "square": "1024x1024", "portrait": "1024x1536"}

VISION_KEY = "VISION_API_KEY"
IMAGE_KEY = "IMAGE_API_KEY"

_OPENAI_KEY = "OPENAI_API_KEY"
_LONGEST_TEXT = 2_000_000
_LONGEST_PICTURE = 50_000_000


class EndpointFailed(Exception):
    """The API gave nothing that could be used; the text is for the model."""


def missing(settings: EndpointSettings, section: str) -> str | None:
    """What is not configured; ``section`` is ``vision`` or ``image``."""
    if settings.base_url and settings.model:
        if urlsplit(settings.base_url).scheme in ("http", "https"):
            return None
        return f"--env.{section}_base_url must be an http address, not {settings.base_url[:100]!r}"
    return f"needs an OpenAI-compatible API: set --env.{section}_base_url and --env.{section}_model"


async def describe(settings: EndpointSettings, picture: Picture, question: str) -> str:
    """What a model says of a picture. Raises ``EndpointFailed``, ``EngineUnusable`` for a bad key."""
    content = [
        {"type": "text", "text": question},
        {"type": "image_url", "image_url": {"url": picture.as_url()}},
    ]
    body = {"model": settings.model, "messages": [{"role": "user", "content": content}]}
    reply = await _post(settings, "/chat/completions", body, VISION_KEY, _LONGEST_TEXT)
    try:
        text = _text(reply["choices"][0]["message"]["content"])
    except (KeyError, IndexError, TypeError):
        text = ""
    if not text:
        raise EndpointFailed("the model that looks at pictures said nothing")
    return text


async def draw(settings: EndpointSettings, prompt: str, size: str) -> bytes | str:
    """A picture, or its address where the API gives only that. Raises as ``describe`` does."""
    body = {"model": settings.model, "prompt": prompt, "n": 1, "size": size}
    reply = await _post(settings, "/images/generations", body, IMAGE_KEY, _LONGEST_PICTURE)
    try:
        entry = reply["data"][0]
        if entry.get("b64_json"):
            return _decoded(entry["b64_json"])
        address = entry["url"]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        address = None
    if not isinstance(address, str):
        raise EndpointFailed("the API made no picture")
    return address


def key_for(settings: EndpointSettings, name: str) -> str:
    """The key of the variable ``name``; OpenAI's own key goes to OpenAI alone."""
    key = os.environ.get(name, "").strip()
    host = urlsplit(settings.base_url or "").hostname or ""
    if not key and (host == "openai.com" or host.endswith(".openai.com")):
        key = os.environ.get(_OPENAI_KEY, "").strip()
    return key


def _text(content: Any) -> str:
    """The text of a message, which may come whole or in parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    return content.strip() if isinstance(content, str) else ""


def _decoded(text: str) -> bytes:
    """A picture in base64, in lines or as a data URL as well. Raises ``ValueError``."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    return base64.b64decode("".join(text.split()), validate=True)


async def _post(settings: EndpointSettings, path: str, body: Any, key_name: str, longest: int) -> Any:
    import orjson

    key = key_for(settings, key_name)
    url = f"{(settings.base_url or '').rstrip('/')}{path}"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = await ask(
            Call(url, "POST", headers, body=body, key=key), timeout=settings.timeout, longest=longest
        )
        return orjson.loads(answer)
    except NoAnswer as error:
        if error.refused:
            raise EngineUnusable(f"{url} refuses the key in {key_name}: {error}") from None
        raise EndpointFailed(f"{urlsplit(url).hostname} failed: {error}") from None
    except ValueError:
        raise EndpointFailed(f"{urlsplit(url).hostname} answered with something that is not JSON") from None
