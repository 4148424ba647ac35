"""Tool calls that a model wrote into its text instead of where the server would have found them.

First the named parser reads the text. Failing that, a message that *is* one JSON call (or a list of
them) counts, and one fenced JSON block in prose, if it names an offered tool and its arguments fit
that tool's schema. Anything looser would turn an example in prose into a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from environments.inference.types import Choice
from environments.tool_call_parsers.base import ToolCallParser
from environments.tool_call_parsers.calls import Function, ToolCall, new_call_id
from environments.tool_call_parsers.json_scan import (
    NotJSON,
    read_object,
    read_value,
    skip_blanks,
    strict_text,
)

JSON = "json"
"""What ``calls_parsed_from_text`` says where no parser but plain JSON gave the call."""

_FENCE = "```"
_FENCE_TAG = re.compile(r"[ \t]*(?:json|JSON|tool_call)?[ \t]*\r?\n?")
_CUT_SHORT = frozenset({"length", "content_filter", "abort"})
_NAME_KEYS = frozenset({"name", "arguments", "parameters", "type", "id"})


def read_text_calls(choice: Choice, tools: Sequence[Mapping[str, Any]], parser: ToolCallParser) -> str | None:
    """Move calls from the text of ``choice`` to its ``tool_calls``; the name of what found them.

    ``finish_reason`` becomes ``tool_calls``, except for a reply that was cut short.
    """
    message = choice.message
    text = message.content
    if message.tool_calls or not tools or not isinstance(text, str) or not text.strip():
        return None
    cut = choice.finish_reason in _CUT_SHORT
    parsed = parser.parse(text, tools=tools, finished=not cut)
    message.malformed_calls = parsed.problems
    if parsed.tool_calls:
        message.content, message.tool_calls, found = parsed.content, parsed.tool_calls, parser.name
        message.reasoning_content = message.reasoning_content or parsed.reasoning
    else:
        unread = not cut and not parsed.attempts
        content, calls = read_json_calls(text, tools) if unread else (None, [])
        if not calls:
            return None
        message.content, message.tool_calls, found = content, calls, JSON
    if not cut:
        choice.finish_reason = "tool_calls"
    return found


def read_json_calls(text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[str | None, list[ToolCall]]:
    """``(content, calls)`` of a text that is a JSON call, or holds exactly one fenced one."""
    offered = _schemas(tools)
    whole = text.strip()
    calls = _calls_in(whole, offered, strict=False)
    if calls:
        return None, calls
    if whole.count(_FENCE) != 2:
        return text, []
    before, fenced, after = whole.split(_FENCE)
    tag = _FENCE_TAG.match(fenced)
    body = fenced[tag.end() if tag else 0 :].strip()
    rest = "\n".join(part for part in (before.strip(), after.strip()) if part)
    calls = _calls_in(body, offered, strict=bool(rest))
    return (rest or None, calls) if calls else (text, [])


def _calls_in(text: str, offered: Mapping[str, Mapping[str, Any]], *, strict: bool) -> list[ToolCall]:
    """The calls of a text that is nothing but JSON: one object, or a list of objects."""
    try:
        if text.startswith("{"):
            calls, end = [_read_call(text, 0, offered, strict=strict)], read_object(text, 0).end
        elif text.startswith("["):
            calls, end = _read_list(text, offered, strict=strict)
        else:
            return []
    except NotJSON:
        return []
    return calls if skip_blanks(text, end) == len(text) else []


def _read_list(
    text: str, offered: Mapping[str, Mapping[str, Any]], *, strict: bool
) -> tuple[list[ToolCall], int]:
    _, end = read_value(text, 0)
    calls: list[ToolCall] = []
    position = skip_blanks(text, 1)
    while text.startswith("{", position):
        calls.append(_read_call(text, position, offered, strict=strict))
        position = skip_blanks(text, read_object(text, position).end)
        position = skip_blanks(text, position + 1) if text.startswith(",", position) else position
    if position != end - 1:
        raise NotJSON("a list of something else than calls")
    return calls, end


def _read_call(
    text: str, position: int, offered: Mapping[str, Mapping[str, Any]], *, strict: bool
) -> ToolCall:
    found = read_object(text, position)
    name = found.members.get("name")
    key = "arguments" if "arguments" in found.members else "parameters"
    arguments = found.members.get(key)
    if not isinstance(name, str) or name not in offered or not isinstance(arguments, dict):
        raise NotJSON("not a call of an offered tool")
    if set(found.members) - _NAME_KEYS or (strict and not _fits(arguments, offered[name])):
        raise NotJSON("its arguments do not fit the tool")
    return ToolCall(new_call_id(), Function(name, strict_text(found.raw[key], arguments)))


def _schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    functions = [tool.get("function", tool) for tool in tools]
    return {f["name"]: f.get("parameters") or {} for f in functions if isinstance(f.get("name"), str)}


def _fits(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether the required arguments are there and no unknown ones."""
    required, known = schema.get("required") or [], schema.get("properties") or {}
    return all(name in arguments for name in required) and all(name in known for name in arguments)
