"""Messages in the form that chat templates expect, with their content marked.

Templates want the arguments of a call as an object, and content as one text. Where they keep thinking
differs: most have a field for it, the others see it inside the content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from environments.dialects.marks import Guard
from environments.errors import BadRequest
from environments.records import Message

_KNOWN = frozenset({"role", "content", "tool_calls", "reasoning_content", "reasoning", "refusal"})


@dataclass(frozen=True, slots=True)
class Style:
    """What a template expects of messages; found out by trying."""

    thinking: Literal["field", "inline"] = "inline"
    thinking_field: str = "reasoning_content"
    empty_content: str | None = None
    """Content of a message that has calls only."""
    arguments: Literal["object", "text"] = "object"
    calls: bool = True
    """Whether the template writes calls at all."""
    text_beside_calls: bool = True
    """Whether it still does where the message has content, too."""
    opening: str = "<think>\n"
    closing: str = "\n</think>\n\n"


def to_template(messages: Sequence[Message], guard: Guard, style: Style) -> list[dict[str, Any]]:
    """All messages as the template sees them. Raises ``BadRequest`` for content that is no text."""
    return [_to_template(message, guard, style) for message in messages]


def set_thinking(message: dict[str, Any], thinking: str, style: Style) -> bool:
    """Put marked thinking where the template looks for it; False where it has no place for it."""
    if style.thinking == "field":
        message[style.thinking_field] = thinking
    elif message.get("tool_calls") and not style.text_beside_calls:
        return False
    else:
        message["content"] = f"{style.opening}{thinking}{style.closing}{message['content'] or ''}"
    return True


def text_of(content: Any) -> str:
    """The text of a message's content: a string, nothing, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text_of_part(part) for part in content)
    raise BadRequest(f"content of type {type(content).__name__} has no form as tokens")


def thinking_of(message: Mapping[str, Any]) -> str:
    """The thinking of an assistant message, empty where there is none."""
    thinking = message.get("reasoning_content") or message.get("reasoning")
    return thinking if isinstance(thinking, str) else ""


def has_thinking(message: Mapping[str, Any]) -> bool:
    """Whether an assistant message has thinking, be it empty."""
    return any(isinstance(message.get(name), str) for name in ("reasoning_content", "reasoning"))


def arguments_of(call: Any) -> Any:
    """The arguments of a call as an object, or whatever else they are."""
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return {} if arguments is None else arguments


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise BadRequest(f"content of type {kind!r} has no form as tokens: exact tokens are for text")


def _to_template(message: Message, guard: Guard, style: Style) -> dict[str, Any]:
    result = {key: guard.everywhere(value, ends=False) for key, value in message.items() if key not in _KNOWN}
    result["role"] = message.get("role")
    content = text_of(message.get("content"))
    calls = message.get("tool_calls") or []
    result["content"] = guard.content(content) if content or not calls else style.empty_content
    if calls:
        result["tool_calls"] = [_call(call, guard, style) for call in calls]
    if message.get("role") == "assistant" and (thinking := thinking_of(message)):
        set_thinking(result, guard.content(thinking), style)
    return result


def set_arguments(call: dict[str, Any], arguments: Any, style: Style) -> None:
    """Put marked arguments where the template looks for them, in the form that it wants."""
    if style.arguments == "text" and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    call["function"]["arguments"] = arguments


def _call(call: Mapping[str, Any], guard: Guard, style: Style) -> dict[str, Any]:
    function = call.get("function") or {}
    result: dict[str, Any] = {
        "id": guard.inner(str(call.get("id") or "")),
        "type": "function",
        "function": {"name": guard.inner(str(function.get("name") or ""))},
    }
    set_arguments(result, guard.everywhere(arguments_of(function), ends=True), style)
    return result
