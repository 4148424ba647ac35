"""How many tokens a conversation has: counted with a tokenizer, else estimated."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from environments.errors import ConfigError, HermesError, MissingExtra
from environments.exports.formats import chat_messages

JSON = dict[str, Any]
Counter = Callable[[Sequence[JSON], Sequence[JSON]], int]
"""Tokens of a conversation and its tool schemas."""

BYTES_PER_TOKEN = 3
"""Of the estimate: rather too many tokens than too few, for code and JSON."""

PER_MESSAGE = 8
"""Tokens of the marks around a message."""


class Unrenderable(HermesError):
    """The chat template refuses a conversation."""


def estimate(messages: Sequence[JSON], tools: Sequence[JSON]) -> int:
    """Tokens by the length of the text; usually too many by a fifth."""
    size = sum(len(orjson.dumps(_words(message))) for message in messages)
    if tools:
        size += len(orjson.dumps(list(tools)))
    return size // BYTES_PER_TOKEN + PER_MESSAGE * len(messages)


def _words(message: JSON) -> JSON:
    return {name: value for name, value in message.items() if value and name not in ("id", "tool_call_id")}


def with_tokenizer(name: str) -> Counter:
    """A counter that renders with the chat template of a tokenizer: a directory, or a name on the hub.

    Raises ``MissingExtra`` and ``ConfigError``; what it returns raises ``Unrenderable``.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise MissingExtra(f"--tokenizer {name}", "tokens") from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"--tokenizer {name}: {reason}") from error
    if not tokenizer.chat_template:
        raise ConfigError(f"--tokenizer {name}: it has no chat template to count a conversation with")

    def count(messages: Sequence[JSON], tools: Sequence[JSON]) -> int:
        rows = chat_messages(messages)
        try:
            text = tokenizer.apply_chat_template(rows, tools=list(tools) or None, tokenize=False)
        except Exception as error:  # a chat template may raise anything
            raise Unrenderable(str(error)) from error
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return count
