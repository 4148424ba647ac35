"""Conversations that outgrow their model's context."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.agent_loop import AgentResult, HermesAgentLoop
from environments.context_policy import ContextKeeper, size
from environments.errors import ContextOverflow
from environments.inference.types import ChatCompletion, ChatMessage, Choice
from environments.records import Ending, Message, Usage
from environments.tool_call_parsers.calls import Function, ToolCall
from environments.tools.base import JSON, Tool, ToolState
from environments.tools.toolbox import Toolbox

PER_TOKEN = 4


class Server:
    """A model with a context: calls ``read`` until ``turns`` replies were given, then stops."""

    def __init__(self, context: int, turns: int, *, counts: bool = True) -> None:
        self.context, self.turns, self.counts = context, turns, counts
        self.refused = 0
        self.seen: list[list[Message]] = []

    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[JSON] | None = None, **sampling: Any
    ) -> ChatCompletion:
        tokens = size(messages, tools) // PER_TOKEN
        if tokens + (sampling.get("max_tokens") or 0) > self.context:
            self.refused += 1
            raise ContextOverflow(f"{tokens} tokens, the context has {self.context}")
        self.seen.append([dict(message) for message in messages])
        usage = Usage(prompt_tokens=tokens if self.counts else 0, completion_tokens=5)
        if tools is None:
            return ChatCompletion([Choice(ChatMessage("what was done"), "stop")], usage)
        replies = sum(message["role"] == "assistant" for message in messages)
        if len([s for s in self.seen if "Write a summary" not in str(s[-1])]) > self.turns or replies > 90:
            return ChatCompletion([Choice(ChatMessage("done"), "stop")], usage)
        call = ToolCall(f"c{len(self.seen)}", Function("read", "{}"))
        return ChatCompletion([Choice(ChatMessage(None, [call]), "tool_calls")], usage)


async def read(state: ToolState) -> JSON:
    return {"content": "x" * 2_000}


READ = Tool("read", "Reads.", {"type": "object", "properties": {}}, read, "test")


def hold(server: Server, **options: Any) -> AgentResult:
    toolbox = Toolbox([READ], ToolState(sandbox=None))  # type: ignore[arg-type]
    loop = HermesAgentLoop(server, toolbox=toolbox, max_turns=40, max_tokens=100, **options)
    return asyncio.run(
        loop.run([{"role": "system", "content": "s"}, {"role": "user", "content": "Read on."}])
    )


def test_stop_ends_before_the_call_that_would_not_fit() -> None:
    server = Server(context=2_500, turns=20)
    result = hold(server, context_length=2_500)
    assert result.ending is Ending.CONTEXT_LENGTH
    assert server.refused == 0
    assert 3 <= result.turns_used <= 5
    assert not result.context_changes


def test_a_reply_that_the_context_cuts_short_is_no_output_limit() -> None:
    class Talker(Server):
        async def chat_completion(
            self, messages: Sequence[Message], tools: Sequence[JSON] | None = None, **sampling: Any
        ) -> ChatCompletion:
            limit = sampling["max_tokens"]
            return ChatCompletion([Choice(ChatMessage("w" * limit), "length")], Usage(10, 0, limit))

    assert hold(Talker(80, 1), context_length=80).ending is Ending.CONTEXT_LENGTH
    assert hold(Talker(8_000, 1), context_length=8_000).ending is Ending.OUTPUT_LIMIT


class Terse(Server):
    """Its tokens are longer than anyone would guess; what does not fit it cuts or refuses, as servers do."""

    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[JSON] | None = None, **sampling: Any
    ) -> ChatCompletion:
        room = self.context - size(messages, tools) // 6
        if room <= 0:
            raise ContextOverflow("too long")
        self.seen.append([dict(message) for message in messages])
        self.asked = sampling["max_tokens"]
        used = min(self.asked, room, 60)
        usage = Usage(prompt_tokens=self.context - room, completion_tokens=used)
        return ChatCompletion([Choice(ChatMessage("w"), "stop" if used == 60 else "length")], usage)


class Exact(Terse):
    """The same as a session of phase 2, which counts."""

    phase = 2

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[JSON] | None, **_: Any) -> int:
        return size(messages, tools) // 6


@pytest.mark.parametrize("kind", [Terse, Exact])
@pytest.mark.parametrize("policy", ["stop", "drop_oldest_tool_results", "summarise"])
def test_a_guess_neither_ends_a_conversation_nor_cuts_a_reply(kind: type[Terse], policy: str) -> None:
    task: list[Message] = [{"role": "user", "content": "x" * 6_000}]  # guessed: 2,000 tokens

    def ask(context: int) -> tuple[AgentResult, Terse]:
        server = kind(context, 1)
        toolbox = Toolbox([], ToolState(sandbox=None))  # type: ignore[arg-type]
        options: dict[str, Any] = {"context_policy": policy, "context_length": context, "max_tokens": 100}
        return asyncio.run(HermesAgentLoop(server, toolbox=toolbox, **options).run(task)), server

    result, server = ask(1_500)
    assert (result.ending, server.asked) == (Ending.STOPPED, 100)
    result, server = ask(1_060)
    assert (result.ending, server.asked) == (Ending.CONTEXT_LENGTH, 100), "there was some room"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("policy", ["drop_oldest_tool_results", "summarise"])
def test_policies_let_a_conversation_go_on(policy: str, counts: bool, known: bool) -> None:
    server = Server(context=4_000, turns=20, counts=counts)
    result = hold(server, context_policy=policy, context_length=4_000 if known else None)
    assert result.ending is Ending.STOPPED
    assert result.turns_used == 21
    assert server.refused == (0 if known else server.refused)
    assert result.context_changes
    assert all(c.policy == policy and c.tokens_after < c.tokens_before for c in result.context_changes)
    answered = {m["tool_call_id"] for m in result.messages if m["role"] == "tool"}
    called = {c["id"] for m in result.messages for c in m.get("tool_calls") or ()}
    assert answered == called
    assert result.messages[1]["content"] == "Read on."
    if policy == "drop_oldest_tool_results":
        first, *others, last = [m["content"] for m in result.messages if m["role"] == "tool"]
        assert "left out" in first
        marks = [content for content in [first, *others] if "left out" in content]
        assert all(f"it had {len(last)} characters" in mark for mark in marks), "and not of an earlier mark"
        assert json.loads(last) == {"content": "x" * 2_000}
    else:
        assert "what was done" in str(result.messages[2]["content"])
        assert result.usage.completion_tokens == 5 * len(server.seen), "summaries are paid for as well"


@pytest.mark.parametrize("policy", ["stop", "drop_oldest_tool_results", "summarise"])
def test_a_task_that_never_fits_is_a_typed_end(policy: str) -> None:
    server = Server(context=10, turns=3)
    for length in (10, None):
        assert hold(server, context_policy=policy, context_length=length).ending is Ending.CONTEXT_LENGTH


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=30), st.integers(100, 5_000), st.integers(0, 500))
def test_dropping_keeps_all_but_results_and_never_exceeds(sizes: list[int], limit: int, reserve: int) -> None:
    messages: list[Message] = [{"role": "user", "content": "task"}]
    for number, length in enumerate(sizes):
        call = {"id": f"{number}", "function": {"name": "read", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"{number}", "content": "y" * length})
    before = [dict(message) for message in messages]
    keeper = ContextKeeper("drop_oldest_tool_results", limit, reserve)

    async def never(_: list[Message]) -> str:
        raise AssertionError("nothing is to be summed up")

    try:
        change = asyncio.run(keeper.make_room(messages, None, 1, never))
    except ContextOverflow:
        return
    left = [m["content"] for m in messages[:-4] if m["role"] == "tool" and len(m["content"]) > 80]
    assert keeper.estimate(messages, None) <= limit or not left, "only a guess, and nothing more to drop"
    altered = [index for index, (a, b) in enumerate(zip(before, messages, strict=True)) if a != b]
    assert len(altered) == (change.messages if change else 0)
    assert all(before[index]["role"] == "tool" and index < len(messages) - 4 for index in altered)
