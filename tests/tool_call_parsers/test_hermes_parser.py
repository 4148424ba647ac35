"""The Hermes format: good blocks always count, everything else stays text and is reported."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tool_call_parsers import get_parser

PARSER = get_parser("hermes")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
calls = st.tuples(st.text(min_size=1).filter(str.strip), st.dictionaries(st.text(), json_values, max_size=3))


def block(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def found(text: str) -> list[tuple[str, object]]:
    _, tool_calls = PARSER.parse(text)
    return [(call.function.name, json.loads(call.function.arguments)) for call in tool_calls or []]


@given(st.lists(calls, min_size=1, max_size=4))
def test_what_was_rendered_is_read_back(expected: list[tuple[str, dict]]) -> None:
    text = "\n".join(block(name, arguments) for name, arguments in expected)
    content, _ = PARSER.parse(text)
    assert content is None
    assert found(text) == expected


@given(st.lists(calls, min_size=1, max_size=3), st.data())
def test_a_cut_reply_gives_the_complete_calls_and_no_other(expected: list, data: st.DataObject) -> None:
    text = "before " + "\n".join(block(name, arguments) for name, arguments in expected)
    cut = data.draw(st.integers(0, len(text)))
    part = found(text[:cut])
    assert part == expected[: len(part)]


@given(st.text(alphabet=st.sampled_from(list('<tool_cal>/{}[]":, \n\\ae1')), max_size=200))
def test_no_text_makes_it_fail(text: str) -> None:
    parsed = PARSER.parse(text)
    assert parsed.tool_calls or parsed.content == text


@pytest.mark.parametrize(
    "bad",
    [
        "<tool_call>{broken</tool_call>",
        "<tool_call>not json</tool_call>",
        '<tool_call>["a list"]</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>',
        '<tool_call>{"name": "f", "arguments": {},}</tool_call>',
    ],
)
def test_a_malformed_block_costs_no_good_one_and_is_reported(bad: str) -> None:
    text = f"first {block('a', {'x': 1})} between {bad} then {block('b', {})} last"
    parsed = PARSER.parse(text)
    assert [call.function.name for call in parsed.tool_calls or []] == ["a", "b"]
    assert len(parsed.problems) == 1
    assert parsed.content is not None
    for kept in ("first", "between", bad, "then", "last"):
        assert kept in parsed.content


def test_a_truncated_call_is_text_and_is_reported() -> None:
    text = 'I delete it. <tool_call>{"name": "terminal", "arguments": {"command": "rm -rf /'
    parsed = PARSER.parse(text)
    assert parsed.tool_calls is None
    assert parsed.content == text
    assert "truncated" in parsed.problems[0]


def test_the_closing_tag_may_be_missing_where_the_json_is_whole() -> None:
    first, second = '{"name": "a", "arguments": {}}', '{"name": "b", "arguments": {}}'
    assert found(f"<tool_call>{first}<tool_call>{second}") == [("a", {}), ("b", {})]


def test_tags_inside_arguments_are_text() -> None:
    text = block("write", {"content": "<tool_call>{}</tool_call>"})
    assert found(text) == [("write", {"content": "<tool_call>{}</tool_call>"})]


def test_arguments_stay_as_they_were_written() -> None:
    raw = '{"n": 1e5, "s": "123", "code": "    indented\\n", "é": "\\u00e9"}'
    _, tool_calls = PARSER.parse(f'<tool_call>{{"name": "f", "arguments": {raw}}}</tool_call>')
    assert tool_calls is not None
    assert tool_calls[0].function.arguments == raw


def test_string_arguments_are_not_encoded_twice() -> None:
    assert found('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>') == [("f", {"x": 1})]


def test_line_breaks_inside_strings_become_proper_json() -> None:
    assert found('<tool_call>{"name": "f", "arguments": {"c": "a\nb"}}</tool_call>') == [("f", {"c": "a\nb"})]


def test_text_without_calls_is_returned_untouched() -> None:
    assert PARSER.parse("  plain {} text\n") == ("  plain {} text\n", None)


def test_ids_differ() -> None:
    _, tool_calls = PARSER.parse(block("a", {}) + block("a", {}))
    assert tool_calls is not None
    assert tool_calls[0].id != tool_calls[1].id


def test_several_objects_in_one_block() -> None:
    first, second = '{"name": "a", "arguments": {"x": 1}}', '{"name": "b", "arguments": {}}'
    assert found(f"<tool_call>\n{first}\n{second}\n</tool_call>") == [("a", {"x": 1}), ("b", {})]
    parsed = PARSER.parse(f"<tool_call>\n{first}\n{{broken\n</tool_call>")
    assert len(parsed.tool_calls or []) == len(parsed.problems) == 1


def test_a_tag_written_twice() -> None:
    parsed = PARSER.parse('<tool_call><tool_call>{"name": "a", "arguments": {}}</tool_call></tool_call>')
    assert [call.function.name for call in parsed.tool_calls or []] == ["a"]
    assert parsed.problems == []


@pytest.mark.parametrize("text", ["the <tool_call> tag opens a call", "<tool_call> and then, well, nothing"])
def test_a_tag_in_a_sentence_is_no_attempt(text: str) -> None:
    parsed = PARSER.parse(text)
    assert (parsed.content, parsed.attempts) == (text, [])


def test_a_call_inside_a_broken_one_is_not_run() -> None:
    inner = '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'
    text = f'<tool_call>{{"name": "write", "arguments": {{"content": "{inner}"}}}}</tool_call>'
    parsed = PARSER.parse(f"{text} {block('good', {})}")
    assert [call.function.name for call in parsed.tool_calls or []] == ["good"]
    assert PARSER.parse(text[: text.index("</tool_call>") + len("</tool_call>")]).tool_calls is None


def test_stop_tokens_at_the_end_are_no_content() -> None:
    parsed = PARSER.parse(f"So. {block('a', {})}<|im_end|>")
    assert parsed.content == "So."
    assert PARSER.parse("Done.<|im_end|>").content == "Done."


def test_a_value_longer_than_the_first_look_is_read_whole() -> None:
    for size in (4090, 4096, 5000, 200_000):
        assert found(block("f", {"x": "y" * size, "n": 12})) == [("f", {"x": "y" * size, "n": 12})]
