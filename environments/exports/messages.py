"""Messages as training rows have them: texts, tool calls with decoded arguments, no dead ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

JSON = dict[str, Any]


def text_of(content: Any) -> str:
    """The text of a message's content; parts that are no text are left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(
        part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation has images or other parts that are no text."""
    return any(
        isinstance(part, dict) and not isinstance(part.get("text"), str)
        for message in messages
        for part in (message.get("content") if isinstance(message.get("content"), list) else None) or []
    )


def reasoning_of(message: Mapping[str, Any]) -> str:
    """What the model thought before it spoke."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str):
            return str(message[name])
    return ""


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Id, tool and arguments of each call of a message. Arguments that are no JSON stay text."""
    calls = []
    given = message.get("tool_calls")
    for call in given if isinstance(given, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            identifier, name = str(call.get("id") or ""), str(function.get("name") or "")
            calls.append((identifier, name, decoded(function.get("arguments"))))
    return calls


def decoded(value: Any) -> Any:
    """JSON text as data; what is no JSON as it is."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def trimmed(messages: Sequence[JSON]) -> list[JSON]:
    """The conversation up to the model's last message: nothing after it can be learned from."""
    end = len(messages)
    while end and messages[end - 1].get("role") != "assistant":
        end -= 1
    return list(messages[:end])


def without_ids(message: Mapping[str, Any]) -> JSON:
    """A message as far as it says something: identifiers of calls differ between equal rollouts."""
    plain = {k: v for k, v in message.items() if k not in ("tool_call_id", "tool_calls", "content", "name")}
    return {
        **plain,
        "content": text_of(message.get("content")),
        "calls": [(name, arguments) for _, name, arguments in calls_of(message)],
    }
