"""Streams put together again, however they are cut and whatever they leave out."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from environments.inference.replies import read_chat
from environments.inference.streaming import EventReader, ReplyAssembler
from environments.inference.types import ChatCompletion


def assembled(*deltas: dict[str, Any], finish_reason: str = "stop") -> ChatCompletion:
    assembler = ReplyAssembler()
    for delta in deltas:
        assembler.add({"choices": [{"index": 0, "delta": delta}]})
    assembler.add({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    assert assembler.finished
    return read_chat(assembler.build(), split_think=False)


def calls_of(reply: ChatCompletion) -> list[tuple[str, str, Any]]:
    calls = reply.choices[0].message.tool_calls or []
    return [(call.id, call.function.name, call.function.arguments) for call in calls]


def fragments(*parts: dict[str, Any]) -> ChatCompletion:
    return assembled(*({"tool_calls": [part]} for part in parts), finish_reason="tool_calls")


def part(name: str | None = None, arguments: str | None = None, **fields: Any) -> dict[str, Any]:
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    return {**fields, "function": function}


@given(
    st.lists(st.text(alphabet="ab\u00e9\U0001f600 ", max_size=8), max_size=6),
    st.sampled_from(["\n\n", "\r\n\r\n"]),
    st.integers(1, 7),
)
def test_events_are_found_however_the_bytes_are_cut(texts: list[str], end: str, size: int) -> None:
    data = "".join(f": comment{end}event: x\ndata: {json.dumps(text)}{end}" for text in texts).encode()
    reader = EventReader()
    events = [event for i in range(0, len(data), size) for event in reader.feed(data[i : i + size])]
    assert [json.loads(event) for event in [*events, *reader.finish()]] == texts


def test_an_event_without_its_blank_line_counts_at_the_end() -> None:
    reader = EventReader()
    assert reader.feed(b"data: 1\n\ndata: 2") == [b"1"]
    assert reader.finish() == [b"2"]


def test_text_reasoning_and_refusal() -> None:
    reply = assembled(
        {"role": "assistant", "reasoning": "th"},
        {"reasoning": "ink"},
        {"content": "he"},
        {"content": "llo", "refusal": "no"},
    )
    message = reply.choices[0].message
    assert (message.reasoning_content, message.content, message.refusal) == ("think", "hello", "no")


def test_calls_by_index() -> None:
    reply = fragments(
        part("f", "", index=0, id="a", type="function"),
        part("g", "", index=1, id="b", type="function"),
        part(None, '{"x"', index=0),
        part(None, "{}", index=1),
        part(None, ": 1}", index=0),
    )
    assert calls_of(reply) == [("a", "f", '{"x": 1}'), ("b", "g", "{}")]


def test_calls_without_an_index() -> None:
    reply = fragments(part("f", '{"a"', id="a"), part(None, ":1}"), part("g", "{}", id="b"))
    assert calls_of(reply) == [("a", "f", '{"a":1}'), ("b", "g", "{}")]


def test_calls_without_index_and_id_get_ids() -> None:
    (first, second) = calls_of(fragments(part("f", "{}"), part("f", "{}")))
    assert first[0] and second[0] and first[0] != second[0]


def test_several_calls_that_are_all_numbered_zero() -> None:
    reply = fragments(
        part("f", "{", index=0, id="a"),
        part(None, "}", index=0),
        part("g", "[", index=0, id="b"),
        part(None, "]", index=0),
    )
    assert calls_of(reply) == [("a", "f", "{}"), ("b", "g", "[]")]


def test_an_id_or_a_name_that_is_repeated_with_every_fragment() -> None:
    reply = fragments(part("f", "{", index=0, id="a"), part("f", "}", index=0, id="a"))
    assert calls_of(reply) == [("a", "f", "{}")]
    reply = fragments(part("f", "{", index=0, id="a"), part(None, "}", index=0, id="other"))
    assert calls_of(reply) == [("a", "f", "{}")]


def test_arguments_that_are_an_object() -> None:
    assert calls_of(fragments({"id": "a", "function": {"name": "f", "arguments": {"x": 1}}})) == [
        ("a", "f", {"x": 1})
    ]


def test_several_choices_and_usage() -> None:
    assembler = ReplyAssembler()
    for index in (1, 0):
        assembler.add({"choices": [{"index": index, "delta": {"content": str(index)}}]})
        assembler.add({"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]})
    assembler.add({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    reply = read_chat(assembler.build(), split_think=False)
    assert [choice.message.content for choice in reply.choices] == ["0", "1"]
    assert reply.usage.prompt_tokens == 7


def test_reasoning_details_are_joined_and_kept() -> None:
    reply = assembled(
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a"}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b", "signature": "s"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "x"}]},
    )
    message = reply.choices[0].message
    assert message.extra["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
    ]
    assert message.reasoning_content == "ab"


json_values = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers(), max_size=2)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["content", "tool_calls", "reasoning", "reasoning_details", "role", "odd"]),
            json_values
            | st.lists(st.dictionaries(st.sampled_from(["index", "id", "function"]), json_values)),
        ),
        max_size=5,
    )
)
def test_no_delta_makes_it_fail(deltas: list[dict[str, Any]]) -> None:
    assembled(*deltas)
