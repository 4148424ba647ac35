"""What goes to which provider."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from environments.errors import ConfigError
from environments.inference.providers import OPENAI, OPENROUTER, OWN, PROVIDERS, Provider
from environments.inference.request_body import chat_body

ANTHROPIC = next(p for p in PROVIDERS if p.name == "anthropic")
DEEPSEEK = next(p for p in PROVIDERS if p.name == "deepseek")
GEMINI = next(p for p in PROVIDERS if p.name == "gemini")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def body(
    provider: Provider, messages: list[dict[str, Any]] | None = None, model: str = "m", **sampling: Any
) -> dict[str, Any]:
    before = copy.deepcopy(messages)
    tools = sampling.pop("tools", None)
    result = chat_body(provider, model, messages or [], tools, sampling, provider.echo)
    assert messages == before, "the caller's messages were changed"
    return result


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "x", **fields}


def call(arguments: Any, **fields: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"id": "c", "type": "function", "function": function, **fields}


def test_openai_has_its_own_name_for_the_limit() -> None:
    assert body(OPENAI, max_tokens=5)["max_completion_tokens"] == 5
    assert body(OWN, max_tokens=5)["max_tokens"] == 5


@pytest.mark.parametrize("model", ["o3", "o4-mini", "gpt-5", "gpt-5-mini"])
def test_openais_reasoning_models_get_no_temperature(model: str) -> None:
    sent = body(OPENAI, model=model, temperature=0.5, top_p=0.9, reasoning_effort="low")
    assert "temperature" not in sent
    assert "top_p" not in sent
    assert sent["reasoning_effort"] == "low"


def test_other_models_keep_it() -> None:
    assert body(OPENAI, model="gpt-4o", temperature=0.5)["temperature"] == 0.5
    assert body(OWN, model="gpt-5-clone", temperature=0.5)["temperature"] == 0.5


def test_reasoning_is_asked_for_in_the_providers_words() -> None:
    assert body(OPENROUTER, reasoning_effort="high")["reasoning"] == {"effort": "high"}
    assert body(OPENROUTER, max_reasoning_tokens=2048)["reasoning"] == {"max_tokens": 2048}
    assert body(ANTHROPIC, max_reasoning_tokens=2048)["thinking"]["budget_tokens"] == 2048
    with pytest.raises(ConfigError, match="max_reasoning_tokens"):
        body(OPENAI, max_reasoning_tokens=2048)


def test_template_arguments_are_left_alone() -> None:
    sent = body(OWN, chat_template_kwargs={"enable_thinking": False})
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}


def test_the_extra_body_comes_last() -> None:
    sent = body(OPENROUTER, temperature=1.0, extra_body={"temperature": 0.0, "provider": {"order": ["x"]}})
    assert sent["temperature"] == 0.0
    assert sent["provider"] == {"order": ["x"]}
    assert sent["usage"] == {"include": True}


def test_tool_choice_without_tools_is_not_sent() -> None:
    assert "tool_choice" not in body(OWN, tool_choice="auto")
    assert body(OWN, tool_choice="auto", tools=[TOOL])["tool_choice"] == "auto"


def test_keys_of_our_own_stay_here() -> None:
    sent = body(OWN, [{"role": "user", "content": "x", "name": "n", "timing": 1, "_internal": 2}])
    assert sent["messages"] == [{"role": "user", "content": "x", "name": "n"}]


def test_images_pass_through() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}]
    assert body(OPENAI, [{"role": "user", "content": content}])["messages"][0]["content"] is content


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        (OWN, {"reasoning_content": "thought"}),
        (OPENAI, {}),
        (DEEPSEEK, {}),
        (OPENROUTER, {"reasoning": "thought"}),
    ],
)
def test_reasoning_goes_back_as_the_provider_wants_it(provider: Provider, expected: dict[str, Any]) -> None:
    message = body(provider, [assistant(reasoning_content="thought")])["messages"][0]
    assert {k: v for k, v in message.items() if "reasoning" in k} == expected


def test_openrouter_gets_its_details_back_verbatim() -> None:
    details = [{"type": "reasoning.encrypted", "data": "x", "index": 0}]
    message = assistant(reasoning_content="thought", reasoning_details=details)
    sent = body(OPENROUTER, [message])["messages"][0]
    assert sent["reasoning_details"] == details
    assert "reasoning" not in sent


def test_signatures_of_calls_go_back_only_where_they_are_known() -> None:
    message = assistant(tool_calls=[call("{}", extra_content={"google": {"thought_signature": "s"}})])
    assert "extra_content" in body(GEMINI, [message])["messages"][0]["tool_calls"][0]
    assert "extra_content" not in body(OPENAI, [message])["messages"][0]["tool_calls"][0]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        (None, {}),
        ("", {}),
        ('{"a": ', {"malformed_arguments": '{"a": '}),
        ("[1]", {"malformed_arguments": "[1]"}),
        ([1], {"malformed_arguments": [1]}),
    ],
)
def test_arguments_in_the_history_are_the_text_of_an_object(arguments: Any, sent: dict[str, Any]) -> None:
    message = body(OWN, [assistant(content=None, tool_calls=[call(arguments)])])["messages"][0]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == sent
    assert message["content"] is None


def test_an_empty_message_is_an_empty_text() -> None:
    assert body(OWN, [assistant(content=None)])["messages"][0]["content"] == ""


def test_anthropic_models_on_openrouter_get_cache_marks() -> None:
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {"role": "tool", "tool_call_id": "c", "content": "three"},
    ]
    sent = body(OPENROUTER, messages, model="anthropic/claude-sonnet-4.6")["messages"]
    marked = [i for i, m in enumerate(sent) if isinstance(m["content"], list)]
    assert marked == [0, 3, 4]
    assert all(sent[i]["content"][-1]["cache_control"] == {"type": "ephemeral"} for i in marked)
    plain = body(OPENROUTER, messages, model="openai/gpt-5")["messages"]
    assert plain[0]["content"] == "rules"
