"""Telling whether two messages say the same, however they were written down.

A managed session gets the whole conversation with each call. Agents normalise messages on the way:
blanks are cut, empty content becomes None, arguments become objects, thinking is left out. None of
that is a change of history; another text, another call or another result is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.dialects.messages import arguments_of, text_of, thinking_of
from environments.errors import BadRequest
from environments.records import Message

Key = tuple[Any, ...]

_TAGS = re.compile(r"(?:<[^<>]{1,32}>|\[[^][]{1,32}\]|\s)*")


@dataclass(frozen=True, slots=True)
class CallKey:
    """A call by what it does. ``arguments`` is canonical JSON, or the text that is none."""

    id: str
    name: str
    arguments: str

    def does_the_same(self, other: CallKey) -> bool:
        """Whether the two are the same call, whatever their ids."""
        return self.name == other.name and self.arguments == other.arguments


def message_key(message: Message) -> Key:
    """What a message of the history says, for comparing it. Raises ``BadRequest`` for content that is
    no text."""
    if not isinstance(message, Mapping):
        raise BadRequest(f"a message is a mapping with role and content, not {type(message).__name__}")
    role, text = message.get("role"), text_of(message.get("content"))
    if role == "assistant":
        calls = tuple((call.name, call.arguments) for call in call_keys(message))
        return (role, _squeezed(text), calls)
    return (role, text, message.get("tool_call_id"))


def call_keys(message: Message) -> list[CallKey]:
    """The calls of an assistant message."""
    keys = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = arguments_of(function)
        text = arguments if isinstance(arguments, str) else _canonical(arguments)
        keys.append(CallKey(str(call.get("id") or ""), str(function.get("name") or ""), text))
    return keys


def is_reply(own: Message, message: Message) -> bool:
    """Whether ``message`` is the reply ``own`` as it came back in a conversation."""
    if message.get("role") != "assistant":
        return False
    ours, theirs = call_keys(own), call_keys(message)
    if len(ours) != len(theirs) or not all(map(CallKey.does_the_same, ours, theirs)):
        return False
    thinking, returned = _squeezed(thinking_of(own)), _squeezed(thinking_of(message))
    if returned and returned != thinking:
        return False
    text, given = _squeezed(text_of(own.get("content"))), _squeezed(text_of(message.get("content")))
    if text == given:
        return True
    # Some agents put the thinking back into the content, or keep no text beside calls.
    known_by_id = bool(ours) and [call.id for call in ours] == [call.id for call in theirs]
    return (known_by_id and not given) or (bool(thinking) and _is_joined(thinking, text, given))


def as_sampled(own: Message, messages: list[Message], index: int) -> None:
    """Put the reply ``own`` in the place of ``messages[index]``, and let the results behind it refer to
    its calls by the ids that the model sampled, which some templates show."""
    given = messages[index].get("tool_calls") or []
    pairs = zip(own.get("tool_calls") or [], given, strict=True)
    renamed = {theirs.get("id"): ours["id"] for ours, theirs in pairs if theirs.get("id") != ours["id"]}
    messages[index] = own
    for place in range(index + 1, len(messages) if renamed else 0):
        message = messages[place]
        if message.get("role") == "assistant":
            break
        if message.get("tool_call_id") in renamed:
            messages[place] = {**message, "tool_call_id": renamed[message["tool_call_id"]]}


def difference(before: Sequence[Key], after: Sequence[Key]) -> str:
    """The first difference of two histories of which the second is not the shorter one, in words."""
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if one != other:
            role = one[0] if one[0] == other[0] else f"{one[0]}, now {other[0]}"
            return f"message {index} ({role}) was changed"
    return "the thinking of an earlier reply was changed"


def tools_key(tools: Sequence[Mapping[str, Any]] | None, options: Mapping[str, Any]) -> str:
    """What besides the messages the chat template shows."""
    return _canonical([list(tools or []), dict(options)])


def _is_joined(thinking: str, text: str, given: str) -> bool:
    """Whether ``given`` is the thinking, in its tags, and then the text."""
    before, found, behind = given.partition(thinking)
    return (
        bool(found)
        and behind.endswith(text)
        and bool(_TAGS.fullmatch(before) and _TAGS.fullmatch(behind.removesuffix(text)))
    )


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
