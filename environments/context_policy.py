"""What happens when a conversation grows beyond what its model can read.

A session that holds tokens counts them. Elsewhere the length is estimated before each call: from the
token counts of the replies so far, and for what came after them by the characters per token that those
counts show; where only such a guess says that a conversation is too long, the server has the last word.
So an overflow is a typed end of the rollout, or is made good by the policy that the configuration names:

* ``stop`` ends the rollout,
* ``drop_oldest_tool_results`` replaces the oldest results of tools by a mark,
* ``summarise`` has the model sum up the middle of the conversation.

Both changes are made in the conversation itself, where they can be read, and are listed in the
result; a session that holds tokens sees a changed history and forks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from environments.errors import ContextOverflow
from environments.records import Message, Usage

Policy = Literal["stop", "drop_oldest_tool_results", "summarise"]

Summarise = Callable[[list[Message]], Awaitable[str]]
"""Asks the model for a summary of a conversation."""

CountTokens = Callable[[Sequence[Message], "Sequence[Any] | None"], int]
"""Tokens of the prompt that a conversation and its tools become."""

_FIRST_GUESS = 3.0
"""Characters per token before any reply was counted; low, so that the first guess is high."""

_DENSEST = 2.0
"""So many times as many characters per token as guessed a conversation has at most."""

_MESSAGE_OVERHEAD = 16
"""Characters that a template adds to a message, about."""

_ROUNDING = 16
"""Tokens by which a template may add more than was counted."""

_ROOM = 0.7
"""Share of the limit that is in use after room was made; more would make room at every turn."""

_KEPT_MESSAGES = 4
"""Newest messages that no policy touches: the model works with them."""

SUMMARY_REQUEST = (
    "The conversation is too long to go on. Write a summary to work on from: the task, what was done and "
    "found out so far with exact names, paths and values, what is left to do. Write nothing else."
)
SUMMARY_INTRODUCTION = "Summary of the conversation so far, whose messages are left out here:\n\n"


@dataclass(frozen=True, slots=True)
class ContextChange:
    """What a policy did. ``turn`` counts from 1: the call before which it was done."""

    turn: int
    policy: str
    messages: int
    """Messages that were replaced or shortened."""
    tokens_before: int
    tokens_after: int


class ContextKeeper:
    """Keeps one conversation within ``limit`` tokens, ``reserve`` of them free for the next reply.

    ``exact`` counts the tokens of a conversation, for a session that cuts each reply to what the context
    has left and refuses what does not fit. Without it lengths are estimates.
    """

    def __init__(
        self, policy: Policy, limit: int | None, reserve: int = 0, exact: CountTokens | None = None
    ) -> None:
        self.policy, self.limit, self.reserve, self.exact = policy, limit, reserve, exact
        self._counted_tokens = 0
        self._counted_characters = 0
        self._characters_per_token = _FIRST_GUESS

    def count(self, messages: Sequence[Message], tools: Sequence[Any] | None, usage: Usage) -> None:
        """Take note of a reply to ``messages``, whose tokens the server counted."""
        if usage.prompt_tokens <= 0 or (self.limit is None and self.policy == "stop"):
            return  # nothing to learn from, or nobody will ask
        self._note(usage.prompt_tokens, size(messages, tools))

    def estimate(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> int:
        """Tokens of a conversation, about."""
        further = size(messages, tools) - self._counted_characters
        return max(1, self._counted_tokens + round(further / self._characters_per_token))

    def cut_short(self, usage: Usage) -> bool:
        """Whether a reply that ended by its length had filled the context, as the server counted."""
        used = usage.prompt_tokens + usage.completion_tokens
        return self.limit is not None and usage.prompt_tokens > 0 and used >= self.limit

    def overflowed(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> None:
        """The server refused this conversation as too long: the limit is below its length."""
        below = self.estimate(messages, tools) - 1
        self.limit = below if self.limit is None else min(self.limit, below)

    async def make_room(
        self, messages: list[Message], tools: Sequence[Any] | None, turn: int, summarise: Summarise
    ) -> ContextChange | None:
        """Change ``messages`` so that they fit; None where they do already.

        Raises ``ContextOverflow`` where they cannot be made to, or the policy is to stop.
        """
        if self.limit is None or (self.exact and self.policy == "stop"):
            return None  # nothing is known, or the session says it by itself
        self._measure(messages, tools)
        before = self.estimate(messages, tools)
        if before + self._reserve_of(self.limit) <= self.limit:
            return None
        if self.policy == "stop":
            self._refuse_what_cannot_fit(messages, tools)
            return None
        target = int((self.limit - self._reserve_of(self.limit)) * _ROOM)
        if self.policy == "summarise":
            changed = await _summarise(messages, summarise)
        else:
            changed = self._drop_results(messages, tools, target)
        if changed:
            self._measure(messages, tools)
        after = self.estimate(messages, tools)
        if after + self._reserve_of(self.limit) > self.limit:
            self._refuse_what_cannot_fit(messages, tools)
        return ContextChange(turn, self.policy, changed, before, after) if changed else None

    def room(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> int | None:
        """Tokens that a reply to ``messages`` may have; None where the context is not known, or the reply
        is not to be bounded here: by a session that counts, or while nothing has been counted.

        What no reply has counted yet is taken a quarter longer than it seems.
        """
        if self.limit is None or self.exact or not self._counted_tokens:
            return None
        tokens = self.estimate(messages, tools)
        guessed = max(0, tokens - self._counted_tokens)
        return max(1, self.limit - tokens - guessed // 4 - _ROUNDING)

    def _note(self, tokens: int, characters: int) -> None:
        self._counted_tokens, self._counted_characters = tokens, characters
        self._characters_per_token = max(1.0, characters / tokens)

    def _measure(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> None:
        if self.exact:
            self._note(max(1, self.exact(messages, tools)), size(messages, tools))

    def _refuse_what_cannot_fit(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> None:
        """Raise ``ContextOverflow`` where the conversation is too long however few tokens the part of it
        has that nobody counted; a guess alone ends no rollout, and hardly any room is room."""
        assert self.limit is not None
        if self.exact:
            return  # the session says it
        tokens = self.estimate(messages, tools)
        guessed = max(0, tokens - self._counted_tokens)
        least = tokens - guessed + round(guessed / _DENSEST)
        if least + min(self.reserve, self.limit // 32) > self.limit:
            raise ContextOverflow(f"the conversation has about {tokens} tokens, the context {self.limit}")

    def _reserve_of(self, limit: int) -> int:
        # A reply's limit is often near the whole context; to keep that free would leave no room at
        # all. And a conversation that is to end at the limit ends when hardly a reply fits.
        return min(self.reserve, limit // 32 if self.policy == "stop" else limit // 4)

    def _drop_results(self, messages: list[Message], tools: Sequence[Any] | None, target: int) -> int:
        changed = 0
        for index, message in enumerate(messages[: -_KEPT_MESSAGES or None]):
            if self.estimate(messages, tools) <= target:
                break
            content = message.get("content")
            if message.get("role") != "tool" or not isinstance(content, str) or _LEFT_OUT.fullmatch(content):
                continue
            mark = json.dumps({"notice": f"result left out to save room; it had {len(content)} characters"})
            if len(mark) < len(content):
                messages[index] = {**message, "content": mark}
                changed += 1
        return changed


_LEFT_OUT = re.compile(r'\{"notice": "result left out to save room; it had \d+ characters"\}')
"""What stands for a result that was left out before; it tells of that one's length."""


def size(messages: Sequence[Message], tools: Sequence[Any] | None = None) -> int:
    """Characters of a conversation and its tool definitions, with what a template adds."""
    total = sum(len(json.dumps(tool, default=str)) for tool in tools or ())
    for message in messages:
        content = message.get("content")
        total += _MESSAGE_OVERHEAD + (len(content) if isinstance(content, str) else _plain_size(content))
        total += _plain_size(message.get("tool_calls")) + len(str(message.get("reasoning_content") or ""))
    return total


def _plain_size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str)) if value else 0


async def _summarise(messages: list[Message], summarise: Summarise) -> int:
    """Put a summary in the place of all between the task and the newest messages."""
    start = next((i + 1 for i, message in enumerate(messages) if message.get("role") == "user"), 0)
    end = max(start, len(messages) - _KEPT_MESSAGES)
    while end > start and messages[end].get("role") == "tool":  # results stay with their calls
        end -= 1
    if end - start < 2:
        return 0
    text = await summarise([*messages[:end], {"role": "user", "content": SUMMARY_REQUEST}])
    messages[start:end] = [{"role": "user", "content": SUMMARY_INTRODUCTION + text}]
    return end - start
