"""A conversation broken into pieces of plain text, for whoever draws them (terminal or page)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from environments.results.text import harmless, shorten

Kind = Literal["text", "reasoning", "call", "result", "image"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a message. ``title`` is the tool's name for calls and results."""

    kind: Kind
    text: str
    title: str = ""


def pieces(message: Mapping[str, Any], limit: int) -> Iterator[Piece]:
    """The parts of one message in the order they happened: reasoning, text, tool calls.

    Texts longer than ``limit`` characters lose their middle; what people and the model say may be
    four times as long.
    """
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning.strip():
        yield Piece("reasoning", _text(reasoning, limit))
    role = message.get("role")
    if role == "tool":
        title = str(message.get("name") or message.get("tool_call_id") or "")
        yield Piece("result", _text(_result(message.get("content")), limit), harmless(title))
    else:
        yield from _content(message.get("content"), 4 * limit)
    if message.get("refusal"):
        yield Piece("text", _text(str(message["refusal"]), limit), "refusal")
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = _arguments(function.get("arguments"))
            yield Piece("call", _text(arguments, limit), harmless(str(function.get("name"))))
        else:
            yield Piece("call", _text(_as_text(call), limit), "?")


def _content(content: Any, limit: int) -> Iterator[Piece]:
    if isinstance(content, str):
        if content.strip():
            yield Piece("text", _text(content, limit))
        return
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield Piece("text", _text(part["text"], limit))
        elif isinstance(part, dict) and "image_url" in part:
            url = part["image_url"]
            address = str(url.get("url") if isinstance(url, dict) else url)
            shown = f"image, {len(address):,} bytes" if address.startswith("data:") else f"image {address}"
            yield Piece("image", _text(shown, limit))
        else:
            yield Piece("text", _text(_as_text(part), limit))


def _arguments(arguments: Any) -> str:
    """Arguments one per line, multi-line texts as they are; what is no JSON object stays as it is."""
    value = _parsed(arguments)
    if not isinstance(value, dict):
        return (
            arguments
            if isinstance(arguments, str)
            else json.dumps(arguments, ensure_ascii=False, default=str)
        )
    return "\n".join(f"{key}: {_value(item)}" for key, item in value.items())


def _result(content: Any) -> str:
    """A tool's answer; of a JSON object each entry on lines of its own."""
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content
        )
    value = _parsed(content)
    if isinstance(value, dict) and value:
        shown = {key: item for key, item in value.items() if item not in (None, "", [])}
        return "\n".join(f"{key}: {_value(item)}" for key, item in shown.items())
    return _as_text(content)


def _value(value: Any) -> str:
    text = _as_text(value)
    return f"\n{text}" if "\n" in text.strip("\n") else text


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _text(text: str, limit: int) -> str:
    text = text.strip("\n")
    return harmless(shorten(text, limit))
