"""The oracle and the policy that does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from environments.config import APIServerConfig
from environments.errors import ConfigError, UserCodeError
from environments.inference.policies import NopSession, OracleSession
from environments.inference.server_manager import ServerManager, as_server_config
from environments.inference.types import ChatCompletion

CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}


def turns(session: OracleSession, count: int) -> list[ChatCompletion]:
    async def run() -> list[ChatCompletion]:
        return [await session.chat_completion([{"role": "user", "content": str(i)}]) for i in range(count)]

    return asyncio.run(run())


def test_a_list_is_played_and_ends_with_an_empty_message() -> None:
    first, second, third = turns(OracleSession([CALL, {"role": "assistant", "content": "done"}]), 3)
    call = first.choices[0].message.tool_calls
    assert call is not None
    assert (call[0].function.name, call[0].function.arguments) == ("f", '{"x":1}')
    assert call[0].id
    assert [r.choices[0].finish_reason for r in (first, second, third)] == ["tool_calls", "stop", "stop"]
    assert (second.choices[0].message.content, third.choices[0].message.content) == ("done", "")
    assert first.id and first.id != second.id
    assert first.usage.prompt_tokens == first.usage.completion_tokens == 0


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_function_sees_the_conversation(asynchronous: bool) -> None:
    def plain(messages: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": f"saw {messages[-1]['content']}"} if messages[-1]["content"] == "0" else None

    async def slow(messages: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        return plain(messages)

    first, second = turns(OracleSession(slow if asynchronous else plain), 2)
    assert first.choices[0].message.content == "saw 0"
    assert second.choices[0].message.content == ""


@pytest.mark.parametrize("bad", ["text", {"tool_calls": [{"function": {}}]}, {"tool_calls": ["f"]}])
def test_a_script_that_is_none(bad: Any) -> None:
    with pytest.raises(UserCodeError):
        turns(OracleSession([bad]), 1)


def test_nop_says_that_it_does_nothing() -> None:
    reply = asyncio.run(NopSession().chat_completion([]))
    assert reply.choices[0].message.content
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].finish_reason == "stop"


def test_the_manager_gives_policies() -> None:
    nop = ServerManager([APIServerConfig(server_type="nop")])
    assert nop.session().wire == "nop"
    assert nop.model == "nop"
    assert asyncio.run(nop.chat_completion(messages=[])).model == "nop"
    oracle = ServerManager([APIServerConfig(server_type="oracle")])
    assert oracle.session(script=[CALL]).wire == "oracle"
    with pytest.raises(ConfigError, match="solutions"):
        oracle.session()
    assert oracle.stats()["server/requests"] == 0


@pytest.mark.parametrize(
    ("types", "reason"),
    [([], "no model server"), (["nop", "openai"], "beside"), (["trl"], "not available in this version")],
)
def test_servers_that_do_not_go_together(types: list[Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ServerManager([APIServerConfig(server_type=kind, base_url="http://h/v1") for kind in types])


def test_configs_of_other_classes() -> None:
    class Foreign:
        def model_dump(self, **_: Any) -> dict[str, Any]:
            return {"model_name": "m", "base_url": "http://h/v1", "server_type": "vllm", "unknown": 1}

    assert as_server_config(Foreign()) == APIServerConfig(
        model_name="m", base_url="http://h/v1", server_type="vllm"
    )
    assert as_server_config({"model_name": "m"}).model_name == "m"
    with pytest.raises(ConfigError, match="unknown"):
        as_server_config({"unknown": 1})
    with pytest.raises(ConfigError, match="APIServerConfig"):
        as_server_config("http://h")


def test_http_sessions_say_what_they_are() -> None:
    session = ServerManager([APIServerConfig(base_url="http://h/v1")]).session()
    assert (session.wire, session.phase, session.sequences(), session.managed_state()) == (
        "chat",
        1,
        [],
        None,
    )
