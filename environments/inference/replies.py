"""From a server's JSON to our reply types, whatever dialect it is in."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from environments.inference.types import (
    ChatCompletion,
    ChatMessage,
    Choice,
    Completion,
    CompletionChoice,
    Function,
    ToolCall,
)
from environments.records import Usage
from environments.tool_call_parsers.calls import new_call_id

_THINK, _END_THINK = "<think>", "</think>"
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "tool_calls", "refusal", "reasoning", "reasoning_content", "function_call", "audio"}
)
_CALL_FIELDS = frozenset({"id", "type", "function", "index"})


class MalformedReply(Exception):
    """A reply without what every reply must have. The text says what is missing."""


def read_chat(payload: Any, *, split_think: bool) -> ChatCompletion:
    """The reply of a chat call. Raises ``MalformedReply``.

    ``split_think`` moves a leading ``<think>`` section of the content into ``reasoning_content``.
    """
    choices = _choices(payload)
    return ChatCompletion(
        choices=[_read_choice(choice, index, split_think) for index, choice in enumerate(choices)],
        usage=read_usage(payload.get("usage")),
        id=str(payload.get("id") or ""),
        model=str(payload.get("model") or ""),
        created=_integer(payload.get("created")),
    )


def read_completion(payload: Any) -> Completion:
    """The reply of a text completion. Raises ``MalformedReply``."""
    choices = []
    for index, choice in enumerate(_choices(payload)):
        if not isinstance(choice.get("text"), str):
            raise MalformedReply("a choice has no text")
        choices.append(CompletionChoice(choice["text"], choice.get("finish_reason"), index))
    return Completion(
        choices=choices,
        usage=read_usage(payload.get("usage")),
        id=str(payload.get("id") or ""),
        model=str(payload.get("model") or ""),
    )


def read_usage(usage: Any) -> Usage:
    """Token counts and cost as the server states them; what it does not state stays zero."""
    if not isinstance(usage, dict):
        return Usage()
    prompt_details = _mapping(usage.get("prompt_tokens_details"))
    completion_details = _mapping(usage.get("completion_tokens_details"))
    cost = usage.get("cost")
    return Usage(
        prompt_tokens=_integer(usage.get("prompt_tokens")),
        cached_tokens=_integer(prompt_details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))),
        completion_tokens=_integer(usage.get("completion_tokens")),
        reasoning_tokens=_integer(completion_details.get("reasoning_tokens", usage.get("reasoning_tokens"))),
        cost=float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None,
    )


def split_leading_think(content: str) -> tuple[str | None, str]:
    """``(reasoning, rest)`` of a content that begins with a think section.

    A section without its opening tag counts too, as templates often write that tag themselves; one
    that was never closed (a reply cut off) is all reasoning.
    """
    stripped = content.lstrip()
    head, closed, rest = stripped.partition(_END_THINK)
    if stripped.startswith(_THINK):
        return head.removeprefix(_THINK).strip("\n"), rest.lstrip("\n") if closed else ""
    if closed and _THINK not in head:
        return head.strip("\n"), rest.lstrip("\n")
    return None, content


def _choices(payload: Any) -> list[dict[str, Any]]:
    if not isinstance(payload, dict):
        raise MalformedReply("the reply is not a JSON object")
    choices = payload.get("choices")
    if not isinstance(choices, list) or not choices:
        raise MalformedReply("the reply has no choices")
    if not all(isinstance(choice, dict) for choice in choices):
        raise MalformedReply("a choice is not an object")
    return choices


def _read_choice(choice: dict[str, Any], index: int, split_think: bool) -> Choice:
    message = choice.get("message")
    if not isinstance(message, dict):
        raise MalformedReply("a choice has no message")
    return Choice(_read_message(message, split_think), choice.get("finish_reason"), index)


def _read_message(message: dict[str, Any], split_think: bool) -> ChatMessage:
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise MalformedReply("the content of a message is neither text nor a list")
    reasoning = _reasoning(message, content)
    if split_think and reasoning is None and isinstance(content, str):
        reasoning, content = split_leading_think(content)
    refusal = message.get("refusal")
    return ChatMessage(
        content=content,
        tool_calls=_read_calls(message) or None,
        reasoning_content=reasoning,
        refusal=refusal if isinstance(refusal, str) and refusal else None,
        extra={k: v for k, v in message.items() if k not in _MESSAGE_FIELDS and v not in (None, [], {}, "")},
    )


def _reasoning(message: dict[str, Any], content: Any) -> str | None:
    """Reasoning text from the fields of the dialects, in the order of how exact they are."""
    for key in ("reasoning_content", "reasoning"):
        if isinstance(message.get(key), str) and message[key]:
            return str(message[key])
    details = message.get("reasoning_details")
    parts = [
        text
        for detail in (details if isinstance(details, list) else [])
        if isinstance(detail, dict) and isinstance(text := detail.get("text") or detail.get("summary"), str)
    ]
    parts += [
        text for block in (content if isinstance(content, list) else []) if (text := _thinking_text(block))
    ]
    return "\n".join(parts) or None


def _thinking_text(block: Any) -> str:
    """Text of a thinking block in a content list (Anthropic: a string; Mistral: a list of texts)."""
    if not isinstance(block, dict) or block.get("type") != "thinking":
        return ""
    thinking = block.get("thinking")
    if isinstance(thinking, list):
        return "".join(str(part.get("text", "")) for part in thinking if isinstance(part, dict))
    return thinking if isinstance(thinking, str) else ""


def _read_calls(message: dict[str, Any]) -> list[ToolCall]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise MalformedReply("tool_calls is not a list")
    found = [_read_call(call) for call in calls if isinstance(call, dict)]
    if calls and not found:
        raise MalformedReply("no entry of tool_calls is an object")
    legacy = message.get("function_call")
    if not found and isinstance(legacy, dict) and legacy.get("name"):
        found.append(_read_call({"function": legacy}))
    return found


def _read_call(call: dict[str, Any]) -> ToolCall:
    """A call as it is: a missing name or odd arguments are the agent loop's to answer."""
    function = _mapping(call.get("function")) or call
    identifier = call.get("id")
    return ToolCall(
        id=identifier if isinstance(identifier, str) and identifier else new_call_id(),
        function=Function(str(function.get("name") or ""), function.get("arguments")),
        extra={k: v for k, v in call.items() if k not in _CALL_FIELDS and v is not None}
        if "function" in call
        else {},
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: Any) -> int:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return int(value) if number else 0


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text. Raises ``MalformedReply``.

    Half a surrogate pair, which models write and servers escape, becomes a replacement character: no
    file or server that gets the conversation later could take it.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _parse_with_lone_surrogates(data)


def _parse_with_lone_surrogates(data: bytes | str) -> Any:
    try:
        text = json.dumps(json.loads(data), ensure_ascii=False)
        return orjson.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        raise MalformedReply("the reply is not JSON") from None
