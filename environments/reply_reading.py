"""What a model's reply means for the conversation: how it ends it, and in what form it goes into it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Container, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from environments.records import Ending, Message

if TYPE_CHECKING:
    from environments.inference.types import Choice, ToolCall

_NUMBERED_ID = re.compile(r"(functions\..+:)\d{1,9}", re.DOTALL)


def unused_id(given: Any, used: Container[Any]) -> str:
    """A call's id, another where its server gave none or gave it before: a result would then belong to a
    foreign call. Some templates read the tool's name out of ids like ``functions.read_file:0``, so of
    these only the number changes."""
    if isinstance(given, str) and given and given not in used:
        return given
    if isinstance(given, str) and (numbered := _NUMBERED_ID.fullmatch(given)):
        return next(other for n in count() if (other := f"{numbered[1]}{n}") not in used)
    return f"call_{uuid.uuid4().hex[:24]}"


def ending_of_reply(choice: Choice, calls: Sequence[ToolCall]) -> Ending | None:
    """How a reply ends the rollout by itself, None where it does not (calls, or a natural stop)."""
    message = choice.message
    if choice.finish_reason == "length":
        return Ending.OUTPUT_LIMIT
    if choice.finish_reason in ("content_filter", "refusal") or (message.refusal and not calls):
        return Ending.REFUSED
    if not calls and not has_text(message.content):
        return Ending.EMPTY_REPLY
    return None


def has_text(content: Any) -> bool:
    """Whether a message's content says anything."""
    if isinstance(content, list):
        return any(has_text(part.get("text")) for part in content if isinstance(part, dict))
    return isinstance(content, str) and bool(content.strip())


def message_of_reply(message: Message) -> Message:
    """The reply as it goes into the conversation: arguments of every call are text, as the API has it."""
    for call in message.get("tool_calls") or []:
        function = call["function"]
        function["arguments"] = argument_text(function.get("arguments"))
        function["name"] = str(function.get("name") or "")
    return message


def argument_text(arguments: Any) -> str:
    """Arguments as text: what the model wrote, or the JSON of what its server made of it."""
    if isinstance(arguments, str):
        return arguments
    return "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)
