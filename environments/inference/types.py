"""Replies of a model, with the attribute access of OpenAI's own client.

``reply.choices[0].message.tool_calls[0].function.name`` works as people know it. What the framework
needs beside it (timing, server, how calls were found) stands on the reply itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from environments.records import Message, Usage
from environments.tool_call_parsers.calls import Function as Function
from environments.tool_call_parsers.calls import ToolCall as ToolCall


@dataclass(slots=True)
class ChatMessage:
    """The assistant's message. ``extra`` keeps provider fields that must go back verbatim.

    ``malformed_calls`` says, for each call that the model began in its text but that cannot be run,
    what is wrong with it.
    """

    content: Any = None
    tool_calls: list[ToolCall] | None = None
    role: str = "assistant"
    reasoning_content: str | None = None
    refusal: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    malformed_calls: list[str] = field(default_factory=list)

    @property
    def reasoning(self) -> str | None:
        """Reasoning text, whichever field the provider put it in."""
        return self.reasoning_content

    def to_message(self) -> Message:
        """The message in OpenAI's request form, as it goes into the conversation."""
        message: Message = {"role": self.role, "content": self.content}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.refusal:
            message["refusal"] = self.refusal
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                    **call.extra,
                }
                for call in self.tool_calls
            ]
        message.update(self.extra)
        return message


@dataclass(slots=True)
class Choice:
    """One of the ``n`` answers."""

    message: ChatMessage
    finish_reason: str | None = None
    index: int = 0


@dataclass(slots=True)
class CallTiming:
    """When a call ran. ``waiting`` is time spent on rate limits, back-off and our own limits."""

    started_at: float = 0.0
    first_token_at: float | None = None
    ended_at: float = 0.0
    retries: int = 0
    waiting: float = 0.0


@dataclass(slots=True)
class ChatCompletion:
    """Reply of a chat call."""

    choices: list[Choice]
    usage: Usage = field(default_factory=Usage)
    id: str = ""
    model: str = ""
    created: int = 0
    timing: CallTiming = field(default_factory=CallTiming)
    server: str | None = None
    calls_parsed_from_text: str | None = None
    policy_version: str | None = None


@dataclass(slots=True)
class CompletionChoice:
    """One answer of a text completion."""

    text: str
    finish_reason: str | None = None
    index: int = 0


@dataclass(slots=True)
class Completion:
    """Reply of a text completion."""

    choices: list[CompletionChoice]
    usage: Usage = field(default_factory=Usage)
    id: str = ""
    model: str = ""
    timing: CallTiming = field(default_factory=CallTiming)
    server: str | None = None
