"""Policies without a model: a script that knows the answer, and one that does nothing."""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from environments.errors import UserCodeError
from environments.inference.session import Session
from environments.inference.types import (
    CallTiming,
    ChatCompletion,
    ChatMessage,
    Choice,
    Function,
    ToolCall,
)
from environments.records import Message

ScriptFunction = Callable[[Sequence[Message]], Message | Awaitable[Message | None] | None]
Script = Sequence[Message] | ScriptFunction

_NOTHING = "I do nothing."


class OracleSession(Session):
    """Answers from a script: a list of assistant messages, one per turn, or a function.

    The function gets the conversation and returns the next message, or None to end. Messages are in
    OpenAI's form; the arguments of tool calls may be dicts, ids may be missing. A list that is used
    up, like None, ends the conversation with an empty message and ``finish_reason`` ``stop``.
    """

    wire = "oracle"
    is_script = True
    model = "oracle"

    def __init__(self, script: Script) -> None:
        self._script = script
        self._turn = 0
        self._ids = itertools.count(1)

    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> ChatCompletion:
        """The next message of the script. Raises ``UserCodeError`` for a script that is none."""
        started = time.time()
        message = await self._next(messages)
        return _reply(self.model, f"oracle-{self._turn}", self._to_chat_message(message), started)

    async def _next(self, messages: Sequence[Message]) -> Message:
        turn, self._turn = self._turn, self._turn + 1
        if callable(self._script):
            answer = self._script(messages)
            message = await answer if inspect.isawaitable(answer) else answer
        else:
            message = self._script[turn] if turn < len(self._script) else None
        if message is None:
            return {"role": "assistant", "content": ""}
        if not isinstance(message, Mapping):
            raise UserCodeError(f"the oracle's script gave {type(message).__name__}, not a message")
        return dict(message)

    def _to_chat_message(self, message: Message) -> ChatMessage:
        calls = [self._to_call(call) for call in message.get("tool_calls") or []]
        return ChatMessage(
            content=message.get("content"),
            tool_calls=calls or None,
            reasoning_content=message.get("reasoning_content"),
        )

    def _to_call(self, call: Any) -> ToolCall:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not function.get("name"):
            raise UserCodeError(f"a tool call of the oracle's script has no function name: {call!r:.200}")
        arguments = function.get("arguments", {})
        if isinstance(arguments, Mapping):
            arguments = orjson.dumps(dict(arguments)).decode()
        identifier = call.get("id") or f"call_oracle_{next(self._ids)}"
        return ToolCall(str(identifier), Function(str(function["name"]), arguments))


class NopSession(Session):
    """Answers at once, with a text and no call: what a task is worth if nobody does anything."""

    wire = "nop"
    is_script = True
    model = "nop"

    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> ChatCompletion:
        """One short text."""
        return _reply(self.model, "nop-1", ChatMessage(content=_NOTHING), time.time())


def _reply(model: str, identifier: str, message: ChatMessage, started: float) -> ChatCompletion:
    return ChatCompletion(
        choices=[Choice(message, "tool_calls" if message.tool_calls else "stop")],
        id=identifier,
        model=model,
        created=int(started),
        timing=CallTiming(started_at=started, ended_at=time.time()),
        server=model,
    )
