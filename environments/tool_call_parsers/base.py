"""What every tool-call parser shares: its interface and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from environments.tool_call_parsers.calls import ToolCall


@dataclass(slots=True)
class ParsedText:
    """What was found in a model's raw text.

    ``content`` is the text without the calls, None where nothing is left. ``errors`` says for every
    call that the model began but that cannot be run what is wrong with it; its text stays in
    ``content``.
    """

    content: str | None
    tool_calls: list[ToolCall] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class ToolCallParser(Protocol):
    """Reads tool calls out of raw text. Parsers keep no state and never raise on any text."""

    name: str

    def parse(self, text: str) -> tuple[str | None, list[ToolCall] | None]:
        """``(content, tool_calls)``; without a call ``(text, None)``."""
        ...

    def parse_with_errors(self, text: str) -> ParsedText:
        """The same, and what was wrong with the calls that were left in the text."""
        ...
