"""What a parser found: the content, the calls, and every attempt at a call with its state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from environments.tool_call_parsers.calls import ToolCall

_EXCERPT = 120
_MOST_PROBLEMS = 8


class CallStatus(StrEnum):
    """What became of an attempt at a call."""

    OK = "ok"
    UNKNOWN_TOOL = "unknown_tool"
    """Well formed, but none of the offered tools has this name."""
    INVALID_JSON = "invalid_json"
    MISSING_NAME = "missing_name"
    MALFORMED = "malformed"
    UNCLOSED = "unclosed"
    """Another call begins before this one is whole."""
    TRUNCATED = "truncated"
    """The text ends before the call is whole."""


@dataclass(slots=True)
class CallAttempt:
    """One place where the model began a call.

    ``raw`` is ``text[span[0]:span[1]]``. ``arguments`` are the parsed arguments, None where there
    are none to trust. ``problem`` says what is wrong, in words for the model; empty for ``ok``.
    """

    status: CallStatus
    raw: str
    span: tuple[int, int]
    name: str | None = None
    arguments: dict[str, Any] | None = None
    id: str | None = None
    problem: str = ""

    @property
    def runnable(self) -> bool:
        """Whether it is among the tool calls of the result."""
        return self.status in (CallStatus.OK, CallStatus.UNKNOWN_TOOL)

    def describe(self) -> str:
        """One line that says what is wrong, with the beginning of what the model wrote."""
        shown = self.raw if len(self.raw) <= _EXCERPT else self.raw[:_EXCERPT] + "..."
        return f"{self.status} tool call ({self.problem}): {shown.strip()}"


class ParseResult(tuple[str | None, list[ToolCall] | None]):
    """What was found in a model's raw text: the pair ``content, tool_calls``, and more by name.

    ``content`` is the text without thinking and without the calls, None where nothing is left; where
    there was neither, it is the text itself. An attempt that is no call stays in it, word for word.
    ``tool_calls`` holds the attempts that are ``ok`` or name an unknown tool (the loop answers those
    with an error of its own), None where there are none. ``reasoning_closed`` is None where no
    thinking was begun.
    """

    reasoning: str | None
    reasoning_closed: bool | None
    attempts: list[CallAttempt]

    def __new__(
        cls,
        content: str | None,
        tool_calls: list[ToolCall] | None = None,
        *,
        reasoning: str | None = None,
        reasoning_closed: bool | None = None,
        attempts: list[CallAttempt] | None = None,
    ) -> ParseResult:
        result = super().__new__(cls, (content, tool_calls))
        result.reasoning, result.reasoning_closed = reasoning, reasoning_closed
        result.attempts = attempts if attempts is not None else []
        return result

    @property
    def content(self) -> str | None:
        """The text around the calls."""
        return self[0]

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """The calls to run."""
        return self[1]

    @property
    def problems(self) -> list[str]:
        """What is wrong with the attempts that cannot be run: of many, the first, and how many more."""
        broken = [attempt for attempt in self.attempts if not attempt.runnable]
        told = [attempt.describe() for attempt in broken[:_MOST_PROBLEMS]]
        more = len(broken) - len(told)
        return [*told, f"{more} more tool calls cannot be read"] if more else told
