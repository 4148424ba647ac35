"""The format of Hermes and Qwen 2.5/3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

One scan from left to right. A block ends where its JSON ends, not at the first closing tag, so that a
tag inside an argument is text like any other. A block that is not a complete call stays text and
is reported; the good blocks around it count all the same. Nothing is repaired: a truncated call could
be completed in more than one way.
"""

from __future__ import annotations

from environments.tool_call_parsers.base import ParsedText
from environments.tool_call_parsers.calls import Function, ToolCall, new_call_id
from environments.tool_call_parsers.json_scan import (
    JSONObject,
    NotJSON,
    read_object,
    skip_blanks,
    strict_text,
)

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_EXCERPT = 120


class HermesParser:
    """Reads ``<tool_call>`` blocks. Arguments stay the text that the model wrote."""

    def __init__(self, name: str = "hermes") -> None:
        self.name = name

    def parse(self, text: str) -> tuple[str | None, list[ToolCall] | None]:
        """``(content, tool_calls)``; without a call ``(text, None)``."""
        parsed = self.parse_with_errors(text)
        return (parsed.content, parsed.tool_calls) if parsed.tool_calls else (text, None)

    def parse_with_errors(self, text: str) -> ParsedText:
        """The calls, the text around them, and what was wrong with blocks that are no calls."""
        kept: list[str] = []
        result = ParsedText(None)
        position = 0
        closing = _NextClosing(text)
        while (start := text.find(_OPEN, position)) >= 0:
            kept.append(text[position:start])
            try:
                call, position = _read_block(text, start + len(_OPEN))
                result.tool_calls.append(call)
            except NotJSON as problem:
                position, what = _malformed_block(text, start + len(_OPEN), closing)
                kept.append(text[start:position])
                result.errors.append(_describe(what, str(problem), text[start:position]))
        kept.append(text[position:])
        result.content = _join(kept) if result.tool_calls else text
        return result


class _NextClosing:
    """Where the next closing tag stands; each part of the text is searched once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found = -1

    def after(self, position: int) -> int:
        if self._found < position:
            found = self._text.find(_CLOSE, position)
            self._found = found if found >= 0 else len(self._text)
        return self._found


def _read_block(text: str, start: int) -> tuple[ToolCall, int]:
    """The call whose body begins at ``start``, and where its block ends."""
    found = read_object(text, skip_blanks(text, start))
    call = _to_call(found)
    end = skip_blanks(text, found.end)
    if text.startswith(_CLOSE, end):
        return call, end + len(_CLOSE)
    if end == len(text) or text.startswith(_OPEN, end):
        return call, end  # A stop token may stand for the closing tag; the JSON itself is whole.
    raise NotJSON("something stands between the JSON object and </tool_call>")


def _to_call(found: JSONObject) -> ToolCall:
    name = found.members.get("name")
    if not isinstance(name, str) or not name:
        raise NotJSON('it has no "name"')
    key = "arguments" if "arguments" in found.members else "parameters"
    arguments = found.members.get(key)
    if arguments is None:
        text = "{}"
    elif isinstance(arguments, str):
        text = arguments
    elif isinstance(arguments, dict):
        text = strict_text(found.raw[key], arguments)
    else:
        raise NotJSON(f'its "{key}" are not an object')
    return ToolCall(new_call_id(), Function(name, text))


def _malformed_block(text: str, body: int, closing: _NextClosing) -> tuple[int, str]:
    """Where scanning goes on after a block that is no call, and what kind of fault it is."""
    close, following = closing.after(body), text.find(_OPEN, body)
    if 0 <= following < close:
        return following, "tool call without </tool_call>"
    if close == len(text):
        return close, "truncated tool call"
    return close + len(_CLOSE), "malformed tool call"


def _describe(what: str, reason: str, block: str) -> str:
    shown = block if len(block) <= _EXCERPT else block[:_EXCERPT] + "..."
    return f"{what} ({reason}): {shown.strip()}"


def _join(parts: list[str]) -> str | None:
    """Text around the calls; blanks that only separated blocks vanish with them."""
    content = "\n".join(part for part in (part.strip() for part in parts) if part)
    return content or None
