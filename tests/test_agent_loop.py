"""The agent loop: turns, endings, and tool calls of every malformed kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.agent_loop import AgentResult, HermesAgentLoop
from environments.errors import ConfigError, ContextOverflow, SandboxBroken, ServerUnavailable
from environments.inference.prices import Prices
from environments.inference.types import (
    CallTiming,
    ChatCompletion,
    ChatMessage,
    Choice,
    Function,
    ToolCall,
)
from environments.records import Ending, Message, Usage
from environments.tools.base import Tool, ToolState
from environments.tools.toolbox import Toolbox

Reply = ChatCompletion | Exception


def says(content: str | None, *calls: ToolCall, finish: str | None = None, **fields: Any) -> ChatCompletion:
    """A reply with text and tool calls."""
    message = ChatMessage(content=content, tool_calls=list(calls) or None, **fields)
    reason = finish or ("tool_calls" if calls else "stop")
    return ChatCompletion([Choice(message, reason)], Usage(10, 0, 5), timing=CallTiming(1.0, None, 2.0))


def call(name: Any = "echo", arguments: Any = '{"text": "hi"}', id: Any = "c1") -> ToolCall:
    """A tool call as a server might send it."""
    return ToolCall(id, Function(name, arguments))


class Script:
    """A server that gives its replies in turn and keeps what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[list[Message]] = []
        self.sampling: list[dict[str, Any]] = []

    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> ChatCompletion:
        self.asked.append([dict(message) for message in messages])
        self.sampling.append(sampling)
        reply = self.replies.pop(0) if self.replies else says("nothing more to say")
        if isinstance(reply, Exception):
            raise reply
        return reply


async def echo(state: ToolState, text: str = "", number: int = 0) -> dict[str, Any]:
    if text == "break the sandbox":
        raise SandboxBroken("init was killed")
    if text == "wait":
        await asyncio.sleep(30)
    return {"echo": text, "number": number}


ECHO = Tool(
    "echo",
    "Says it again.",
    {
        "type": "object",
        "properties": {"text": {"type": "string"}, "number": {"type": "integer"}},
        "required": ["text"],
    },
    echo,
    toolset="test",
)


def run(server: Script, **options: Any) -> AgentResult:
    toolbox = Toolbox([ECHO], ToolState(sandbox=None))  # type: ignore[arg-type]
    loop = HermesAgentLoop(server, toolbox=toolbox, **options)
    return asyncio.run(loop.run([{"role": "user", "content": "go"}]))


def tool_results(result: AgentResult) -> list[dict[str, Any]]:
    return [json.loads(m["content"]) for m in result.messages if m["role"] == "tool"]


def test_calls_are_run_until_the_model_stops() -> None:
    server = Script(says("let me see", call()), says("done", reasoning_content="it worked"))
    result = run(server)
    assert [m["role"] for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.ending is Ending.STOPPED
    assert result.finished_naturally
    assert result.turns_used == 2
    assert result.reasoning_per_turn == [None, "it worked"]
    assert result.finish_reasons == ["tool_calls", "stop"]
    assert result.usage.completion_tokens == 10
    assert tool_results(result) == [{"echo": "hi", "number": 0}]
    assert server.asked[1][-1]["tool_call_id"] == server.asked[1][-2]["tool_calls"][0]["id"]
    assert result.final_response == "done"


MALFORMED_ARGUMENTS = [
    None,
    "",
    "null",
    {},
    [],
    "[]",
    '["text", "hi"]',
    "{",
    '{"text": "hi"',
    "text=hi",
    '{"text": "hi"} and more',
    5,
    True,
    '{"text": 5}',
    '{"text": null}',
    '{"test": "hi"}',
    '{"text": "hi", "number": "three"}',
    '{"text": "hi", "number": 1.5}',
    '"{\\"text\\": 5"',
]


@pytest.mark.parametrize("arguments", MALFORMED_ARGUMENTS, ids=repr)
def test_malformed_arguments_get_a_helpful_message_and_the_rollout_goes_on(arguments: Any) -> None:
    server = Script(says(None, call(arguments=arguments)), says("I see"))
    result = run(server)
    assert result.ending is Ending.STOPPED
    assert result.turns_used == 2
    (answer,) = tool_results(result)
    if "error" in answer:
        assert len(answer["error"]) > 10
        assert result.tool_errors[0].tool_name == "echo"
        assert result.tool_errors[0].turn == 1


@pytest.mark.parametrize(
    "arguments",
    ['{"text": "hi"}', {"text": "hi"}, '"{\\"text\\": \\"hi\\"}"'],
    ids=["text", "object", "twice"],
)
def test_well_meant_arguments_are_understood(arguments: Any) -> None:
    result = run(Script(says(None, call(arguments=arguments))))
    assert tool_results(result) == [{"echo": "hi", "number": 0}]
    assert result.tool_errors == []


@pytest.mark.parametrize(
    "name", [None, "", 5, "ehco", "Echo ", "functions.echo", "rm -rf", {"a": 1}], ids=repr
)
def test_malformed_names_get_a_helpful_message(name: Any) -> None:
    result = run(Script(says(None, call(name=name)), says("I see")))
    assert result.ending is Ending.STOPPED
    (answer,) = tool_results(result)
    assert "echo" in json.dumps(answer)


@given(
    name=st.one_of(st.just("echo"), st.text(max_size=8), st.none(), st.integers()),
    arguments=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    id=st.one_of(st.none(), st.text(max_size=4), st.integers()),
)
@settings(max_examples=150, deadline=None)
def test_no_call_whatsoever_ends_the_rollout(name: Any, arguments: Any, id: Any) -> None:
    result = run(Script(says(None, call(name, arguments, id), call(name, arguments, id)), says("on we go")))
    assert result.ending is Ending.STOPPED
    assert len(tool_results(result)) == 2
    json.dumps(result.messages)
    ids = [c["id"] for m in result.messages for c in m.get("tool_calls") or []]
    assert len(set(ids)) == 2


def test_a_malformed_call_never_repeats_the_result_of_another_one() -> None:
    result = run(Script(says(None, call(id="a"), call(arguments="{", id="b")), says("ok")))
    good, bad = tool_results(result)
    assert good == {"echo": "hi", "number": 0}
    assert "error" in bad


def test_a_repeated_id_that_names_its_tool_goes_on_naming_it() -> None:
    named = "functions.echo:0"
    result = run(Script(says(None, call(id=named), call(id=named)), says(None, call(id=named)), says("end")))
    answered = [m["tool_call_id"] for m in result.messages if m["role"] == "tool"]
    assert answered == ["functions.echo:0", "functions.echo:1", "functions.echo:2"]


def test_repeated_and_missing_ids_are_told_apart() -> None:
    server = Script(
        says(None, call(id="x"), call(id="x"), call(id="")), says(None, call(id="x")), says("end")
    )
    result = run(server)
    asked = [c["id"] for m in result.messages for c in m.get("tool_calls") or []]
    answered = [m["tool_call_id"] for m in result.messages if m["role"] == "tool"]
    assert asked == answered
    assert len(set(asked)) == 4


@pytest.mark.parametrize(
    ("reply", "ending"),
    [
        (says("half a sen", finish="length"), Ending.OUTPUT_LIMIT),
        (says(None, call(arguments='{"tex'), finish="length"), Ending.OUTPUT_LIMIT),
        (says("", finish="stop"), Ending.EMPTY_REPLY),
        (says("  \n"), Ending.EMPTY_REPLY),
        (says(None, reasoning_content="I think"), Ending.EMPTY_REPLY),
        (says(None, refusal="I will not"), Ending.REFUSED),
        (says("no", finish="content_filter"), Ending.REFUSED),
        (ContextOverflow("too long"), Ending.CONTEXT_LENGTH),
    ],
)
def test_endings_of_one_reply(reply: Reply, ending: Ending) -> None:
    result = run(Script(says("first", call()), reply))
    assert result.ending is ending
    assert not result.finished_naturally
    open_calls = {c["id"] for m in result.messages for c in m.get("tool_calls") or []}
    assert open_calls == {m["tool_call_id"] for m in result.messages if m["role"] == "tool"}


def test_turn_limit() -> None:
    result = run(Script(*(says(None, call(id=f"{n}")) for n in range(9))), max_turns=3)
    assert result.ending is Ending.MAX_TURNS
    assert result.turns_used == 3
    assert len(tool_results(result)) == 3


def test_token_budget_bounds_each_reply_and_ends_the_rollout() -> None:
    server = Script(*(says(None, call(id=f"{n}")) for n in range(9)))
    result = run(server, max_tokens=8, token_budget=12)
    assert [sampling["max_tokens"] for sampling in server.sampling] == [8, 7, 2]
    assert result.ending is Ending.TOKEN_BUDGET


def priced(number: int, cost: float | None) -> ChatCompletion:
    reply = says(None, call(id=f"{number}"))
    reply.usage.cost = cost
    return reply


def test_cost_budget_cuts_replies_to_what_can_be_paid() -> None:
    prices = Prices(prompt=100.0, cached=100.0, completion=1000.0)  # 10 + 5 tokens: 0.006
    server = Script(*(priced(n, 0.006) for n in range(9)))
    result = run(server, max_tokens=12, cost_budget=0.015, prices=prices)
    # Left: 15, then 9, then 3 thousandths; the next prompt takes 1.5 of them (15 tokens) at least.
    assert [sampling["max_tokens"] for sampling in server.sampling] == [12, 7, 1]
    assert result.ending is Ending.COST_BUDGET
    assert result.usage.cost == pytest.approx(0.018)


def test_a_reply_cut_by_the_cost_budget_ends_so() -> None:
    reply = says("and so", finish="length")
    reply.usage.cost = 0.0051
    result = run(Script(reply), cost_budget=0.0051, prices=Prices(0.0, 0.0, 1000.0))
    assert result.ending is Ending.COST_BUDGET


def test_the_smaller_budget_decides() -> None:
    server = Script(*(priced(n, 0.005) for n in range(9)))
    result = run(server, token_budget=8, cost_budget=1.0, prices=Prices(0.0, 0.0, 1000.0))
    assert result.ending is Ending.TOKEN_BUDGET
    assert [sampling["max_tokens"] for sampling in server.sampling] == [8, 3]


def test_cost_budget_by_what_the_server_states() -> None:
    server = Script(*(priced(n, 0.01) for n in range(9)))
    result = run(server, cost_budget=0.025)
    assert result.ending is Ending.COST_BUDGET
    assert result.turns_used == 3
    assert all("max_tokens" not in sampling for sampling in server.sampling)


def test_cost_budget_without_any_cost_is_an_error_that_names_the_cure() -> None:
    with pytest.raises(ConfigError, match=r"openai\.prompt_price"):
        run(Script(priced(0, None)), cost_budget=1.0)
    reply = says("hello")
    reply.usage, reply.server = Usage(), "host:80"
    with pytest.raises(ConfigError, match="host:80 does not say how many tokens"):
        run(Script(reply), cost_budget=1.0, prices=Prices(1.0, 1.0, 1.0))


def test_a_script_costs_nothing() -> None:
    reply = says("done")
    reply.usage = Usage()
    assert run(Script(reply), cost_budget=1.0).ending is Ending.STOPPED


def test_identical_calls_are_noticed_where_asked_for() -> None:
    replies = [says(None, call(id=f"{n}")) for n in range(9)]
    result = run(Script(*replies), repeated_calls_limit=3)
    assert result.ending is Ending.REPEATED_CALLS
    assert result.turns_used == 3


def test_time_limit_ends_the_agent_in_the_middle_of_a_call() -> None:
    result = run(Script(says(None, call(arguments={"text": "wait"}))), time_limit=0.3)
    assert result.ending is Ending.TIME_LIMIT
    (answer,) = tool_results(result)
    assert "time_limit" in answer["error"]


def test_a_broken_sandbox_is_an_ending() -> None:
    result = run(Script(says(None, call(arguments={"text": "break the sandbox"}), call(id="c2"))))
    assert result.ending is Ending.SANDBOX_BROKEN
    assert len(tool_results(result)) == 2


def test_failures_of_the_server_are_raised() -> None:
    with pytest.raises(ServerUnavailable):
        run(Script(ServerUnavailable("down")))


def test_a_simulated_user_keeps_the_conversation_going() -> None:
    answers: list[str | Message | None] = ["and then?", {"role": "user", "content": "sure?"}, None]

    async def next_message(result: AgentResult) -> str | Message | None:
        return answers.pop(0)

    result = run(Script(says("one"), says("two"), says("three")), next_message=next_message)
    assert [m["content"] for m in result.messages] == ["go", "one", "and then?", "two", "sure?", "three"]
    assert result.ending is Ending.STOPPED


def test_the_callers_messages_are_left_alone() -> None:
    messages: list[Message] = [{"role": "user", "content": "go"}]
    loop: Callable[..., Any] = HermesAgentLoop(
        Script(says("done")),
        toolbox=Toolbox([], ToolState(sandbox=None)),  # type: ignore[arg-type]
    ).run
    asyncio.run(loop(messages))
    assert messages == [{"role": "user", "content": "go"}]


def test_a_call_begun_in_the_text_and_not_finished_is_explained() -> None:
    broken = says("<tool_call>{", malformed_calls=["the JSON ends after 1 character"])
    result = run(Script(broken, says("done")))
    assert [m["role"] for m in result.messages] == ["user", "assistant", "user", "assistant"]
    assert "could not be read" in result.messages[2]["content"]
    assert len(result.tool_errors) == 1
    assert result.ending is Ending.STOPPED


def test_a_broken_call_beside_a_good_one_is_explained_behind_the_result() -> None:
    mixed = says("<tool_call>{", call(), malformed_calls=["the JSON ends after 1 character"])
    result = run(Script(mixed, says("done")))
    assert [m["role"] for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    content = result.messages[2]["content"]
    assert "hi" in content
    assert "the JSON ends after 1 character" in content
    assert len(result.tool_errors) == 1
