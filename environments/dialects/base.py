"""The interface of a dialect: how one model family writes a conversation as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from environments.records import Message
from environments.tool_call_parsers.base import ParseResult


@dataclass(frozen=True, slots=True)
class Rendered:
    """Tokens that a template wrote. ``generation_prompt`` is the text at their end that begins the
    model's turn; it may have opened the thinking."""

    ids: list[int]
    generation_prompt: str = ""


@dataclass(frozen=True, slots=True)
class MustFork:
    """A conversation cannot go on in its token sequence. ``reason`` says why."""

    reason: str


class Dialect(Protocol):
    """How one model family writes a conversation as tokens, and reads a reply from them."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end the model's turn."""
        ...

    @property
    def parser_name(self) -> str:
        """Name of the parser that reads replies."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generation: bool = True,
    ) -> Rendered:
        """A whole conversation; ``generation`` adds the beginning of the model's turn.

        Raises ``BadRequest`` where the template refuses the conversation.
        """
        ...

    def bridge(
        self,
        sequence: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        new: int,
    ) -> Rendered | MustFork:
        """What to append to ``sequence`` so that the model can go on.

        ``sequence`` is the last prompt and what was sampled after it, its stop token included where
        there was one. ``messages`` is the whole conversation; the last ``new`` of them are not in
        the sequence yet, and the one before those is the reply that the sequence ends with.
        """
        ...

    def parse(
        self,
        ids: Sequence[int],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        generation_prompt: str = "",
        finish_reason: str = "stop",
    ) -> ParseResult:
        """The message that the sampled ``ids`` are. Never raises."""
        ...

    def with_options(self, options: Mapping[str, Any]) -> Dialect:
        """The same dialect with further ``chat_template_kwargs``."""
        ...
