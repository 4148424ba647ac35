"""Replies in the dialects of the providers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.inference.replies import MalformedReply, parse_json, read_chat, split_leading_think
from environments.inference.types import ChatMessage


def message(fields: dict[str, Any], *, split_think: bool = False) -> ChatMessage:
    payload = {"choices": [{"message": fields, "finish_reason": "stop"}]}
    return read_chat(payload, split_think=split_think).choices[0].message


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "thought"},
        {"reasoning": "thought"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "thought"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "thought"}]},
        {"content": [{"type": "thinking", "thinking": "thought"}, {"type": "text", "text": "x"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "thought"}]}]},
    ],
)
def test_reasoning_of_every_dialect(fields: dict[str, Any]) -> None:
    assert message({"content": "x", **fields}).reasoning == "thought"


def test_details_and_unknown_fields_are_kept_and_go_back() -> None:
    details = [{"type": "reasoning.encrypted", "data": "x"}]
    found = message({"content": "x", "reasoning_details": details, "annotations": [], "images": ["i"]})
    assert found.extra == {"reasoning_details": details, "images": ["i"]}
    assert found.to_message()["reasoning_details"] == details


@pytest.mark.parametrize(
    ("content", "reasoning", "rest"),
    [
        ("<think>\nhm\n</think>\n\nhello", "hm", "hello"),
        ("  <think>hm</think>hello", "hm", "hello"),
        ("hm\n</think>\n\nhello", "hm", "hello"),
        ("<think>never closed", "never closed", ""),
        ("plain", None, "plain"),
        ("say <think> and </think>", None, "say <think> and </think>"),
    ],
)
def test_a_leading_think_section(content: str, reasoning: str | None, rest: str) -> None:
    assert split_leading_think(content) == (reasoning, rest)
    found = message({"content": content}, split_think=True)
    assert (found.reasoning_content, found.content) == (reasoning, rest)
    assert message({"content": content}).content == content


def test_odd_calls_stay_as_they_are() -> None:
    found = message(
        {
            "content": None,
            "tool_calls": [
                {"id": "", "function": {"name": "f", "arguments": {"x": 1}}},
                {"id": "b", "function": {"name": None, "arguments": None}},
                {"id": "c", "function": {"name": "g", "arguments": "{bad"}, "extra_content": {"s": 1}},
                "nonsense",
            ],
        }
    )
    assert found.tool_calls is not None
    first, second, third = found.tool_calls
    assert first.id and first.function.arguments == {"x": 1}
    assert (second.function.name, second.function.arguments) == ("", None)
    assert third.function.arguments == "{bad"
    assert found.to_message()["tool_calls"][2]["extra_content"] == {"s": 1}


def test_the_old_function_call() -> None:
    found = message({"content": None, "function_call": {"name": "f", "arguments": "{}"}})
    assert found.tool_calls is not None
    assert found.tool_calls[0].function.name == "f"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "tool_calls", "function", "name", "usage", "prompt_tokens"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_is_a_reply_or_malformed(payload: Any) -> None:
    try:
        reply = read_chat(payload, split_think=True)
    except MalformedReply:
        return
    assert reply.choices


@given(st.text(st.characters(categories=["Cs", "Lu", "So"])))
def test_half_a_surrogate_pair_does_not_cost_the_reply(text: str) -> None:
    read = parse_json(json.dumps({"content": text}))["content"]
    assert read == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    read.encode()


@pytest.mark.parametrize("data", [b"{", b'{"a": NaN}', b"[" * 100_000, b'"\xff"'[:3] + b"\xff" + b'"', ""])
def test_what_is_not_json_is_a_malformed_reply(data: bytes | str) -> None:
    with pytest.raises(MalformedReply):
        parse_json(data)


def test_calls_in_an_unknown_form_are_the_servers_failure() -> None:
    message = {"role": "assistant", "content": "", "tool_calls": {"name": "terminal"}}
    with pytest.raises(MalformedReply, match="tool_calls"):
        read_chat({"choices": [{"message": message}]}, split_think=False)


@pytest.mark.parametrize(
    "garbled",
    [{"content": 5}, {"content": {}}, {"content": True}, {"tool_calls": [None]}, {"tool_calls": ["ls"]}],
)
def test_garbled_fields_are_the_servers_failure_and_no_empty_reply(garbled: dict[str, Any]) -> None:
    with pytest.raises(MalformedReply):
        read_chat({"choices": [{"message": {"role": "assistant", **garbled}}]}, split_think=False)
