"""What single model families need beyond their chat template.

Most families need nothing: where a turn ends is read from the template. The few here have stop tokens
that their configuration may not name, tokens that end the model's turn by beginning what follows, or
templates that want messages in a form of their own.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

Prepare = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]

_SHORT_ID = 9
_ALPHANUMERIC = string.digits + string.ascii_letters


def _as_they_are(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return messages


@dataclass(frozen=True, slots=True)
class Family:
    """A model family.

    ``stops`` end the model's turn beside those that are configured; ``opens_next`` are those of them
    that are the beginning of what follows the turn, such as a tool's result; ``no_stops`` end only a
    part of the turn, whatever the template ends it with. ``prepare`` puts messages into the form
    that the template takes.
    """

    name: str = "generic"
    stops: tuple[str, ...] = ()
    opens_next: tuple[str, ...] = ()
    no_stops: tuple[str, ...] = ()
    prepare: Prepare = _as_they_are


def family_of(template: str, controls: Container[str]) -> Family:
    """The family whose tokens the tokenizer has and whose template this is."""
    if "<|channel|>" in controls and "<|call|>" in controls:
        return Family("gpt_oss", ("<|return|>", "<|call|>"), (), ("<|end|>",), _thinking_beside_calls)
    if "<|observation|>" in controls and "<|observation|>" in template:
        turns = ("<|observation|>", "<|user|>")
        return Family("glm", ("<|endoftext|>", *turns), turns)
    if "<|tool_response>" in controls:
        return Family("gemma4", ("<turn|>", "<|tool_response>"), ("<|tool_response>",))
    if "<|eom_id|>" in controls:
        return Family("llama3", ("<|eot_id|>", "<|eom_id|>"))
    if "[TOOL_CALLS]" in template:
        short = "length 9" in template or "length != 9" in template
        return Family("mistral", prepare=_short_ids if short else _as_they_are)
    return Family()


def _thinking_beside_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """gpt-oss takes either content or thinking next to a call, and writes both in the same place."""
    for message in messages:
        thinking = message.get("thinking")
        if message.get("tool_calls") and thinking and message.get("content"):
            message["thinking"] = f"{thinking}\n{message['content']}"
            message["content"] = ""
    return messages


def _short_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mistral's templates refuse ids of calls that are not nine letters and digits."""
    for message in messages:
        for call in message.get("tool_calls") or []:
            call["id"] = _short_id(call["id"])
        if isinstance(message.get("tool_call_id"), str):
            message["tool_call_id"] = _short_id(message["tool_call_id"])
    return messages


def _short_id(identifier: str) -> str:
    if len(identifier) == _SHORT_ID and identifier.isascii() and identifier.isalnum():
        return identifier
    number = int.from_bytes(hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).digest())
    digits = []
    for _ in range(_SHORT_ID):
        number, digit = divmod(number, len(_ALPHANUMERIC))
        digits.append(_ALPHANUMERIC[digit])
    return "".join(digits)
