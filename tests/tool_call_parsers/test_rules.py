"""What holds for each of the eleven formats, whatever the model writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.tool_call_parsers import CallStatus, ParseResult, get_parser
from tool_call_parsers.checks import check_attempts, check_two_good_beside, exact, found
from tool_call_parsers.formats import FORMATS, TOOLS, Call, Format

formats = pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.name}-{form.write.__name__}")

MARKS = sorted({mark for form in FORMATS for mark in (*form.marks, *form.think)})
names = st.sampled_from(["f", "write_file", "get-weather.v2"])
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(
    st.sampled_from([*MARKS, " ", "\n", "é", "\u2028"]), max_size=8
).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "count": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "items": st.lists(json_values, max_size=3),
        "options": st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    },
)
calls = st.lists(st.tuples(names, arguments), min_size=1, max_size=3)
prose = st.sampled_from(["", "I look.", "Zuerst das.\n\n", "a < b & c > d ", "use `<b>` tags: [x]\n"])


def parse(form: Format, text: str, **options: Any) -> ParseResult:
    return get_parser(form.name).parse(text, tools=TOOLS, generation_prompt="assistant:", **options)


def writable(form: Format, expected: list[Call]) -> bool:
    """Whether the format can carry these values: between tags nothing is escaped."""
    written = json.dumps([arguments for _, arguments in expected], ensure_ascii=False)
    return form.escapes or not any(mark in written for mark in form.marks if mark.startswith("<"))


@formats
@given(before=prose, expected=calls)
@settings(max_examples=40)
def test_what_the_template_writes_is_read_back(form: Format, before: str, expected: list[Call]) -> None:
    if not writable(form, expected) or (form.write.__name__ == "_llama" and before):
        return
    result = parse(form, before + form.write(expected))
    assert exact(found(result)) == exact(expected)
    assert (result.content or "") == before.strip()
    assert [attempt.status for attempt in result.attempts] == [CallStatus.OK] * len(expected)
    assert [attempt.arguments for attempt in result.attempts] == [arguments for _, arguments in expected]


@formats
@given(before=prose, expected=calls, data=st.data())
@settings(max_examples=40)
def test_a_cut_reply_gives_no_call_that_the_whole_reply_does_not(
    form: Format, before: str, expected: list[Call], data: st.DataObject
) -> None:
    text = before + form.write(expected)
    whole = exact(found(parse(form, text)))
    for end in data.draw(st.lists(st.integers(0, len(text)), max_size=8)):
        for finished in (True, False):
            part = exact(found(parse(form, text[:end], finished=finished)))
            assert part == whole[: len(part)] or not writable(form, expected)


@formats
def test_a_reply_cut_at_every_character(form: Format) -> None:
    example = form.write([("f", {"text": "x"}), ("write_file", {"count": 1})])
    if not form.escapes:  # a call in a file that is written: nothing tells its tags from the real ones
        example = "an example:\n" + example
    text = form.write([("write_file", {"text": example}), ("f", {})])
    whole = found(parse(form, text))
    assert whole == [("write_file", {"text": example}), ("f", {})]
    for end in range(len(text)):
        for finished in (True, False):
            result = parse(form, text[:end], finished=finished)
            part = found(result)
            assert part == whole[: len(part)]
            assert part or result.attempts or result.content == text[:end]


@formats
@pytest.mark.parametrize("place", [0, 1, 2])
def test_good_calls_beside_a_broken_one_count(form: Format, place: int) -> None:
    for broken in form.broken:
        if broken in ("<|python_tag|>print(1)",) and place < 2:
            continue  # Python code has no end of its own
        parts = [form.write([("f", {"text": "x"})]), form.write([("write_file", {"count": 2})])]
        parts.insert(place, broken)
        if form.write.__name__ == "_llama":
            parts = [p if p.startswith("<") else f"<|python_tag|>{p}" for p in parts]
        result = parse(form, "\n".join(parts))
        check_two_good_beside(result, broken)


@formats
def test_a_broken_call_alone_is_reported_and_stays_text(form: Format) -> None:
    for broken in form.broken:
        result = parse(form, f"Now: {broken}")
        assert result.tool_calls is None
        assert result.content == f"Now: {broken}"
        assert len(result.problems) == 1
        assert result.attempts[0].raw.strip() in broken
        assert result.attempts[0].raw.strip()[:100] in result.problems[0]


@formats
def test_text_before_between_and_after_is_kept(form: Format) -> None:
    first, second = form.write([("f", {})]), form.write([("write_file", {"text": "x"})])
    if form.write.__name__ == "_llama":
        text, expected = f"{first} after", [("f", {})]
    else:
        text, expected = (
            f"before {first}\nbetween\n{second} after",
            [("f", {}), ("write_file", {"text": "x"})],
        )
    result = parse(form, text)
    assert found(result) == expected
    kept = text.replace(first, "").replace(second, "")
    assert (result.content or "") == kept.strip()


@formats
def test_a_truncated_call_is_told_apart_from_a_malformed_one(form: Format) -> None:
    text = form.write([("write_file", {"text": "rm -rf /tmp/x", "count": 1})])
    begin = text.index("rm -rf /") + len("rm -rf /")
    for finished in (True, False):
        result = parse(form, text[:begin], finished=finished)
        assert result.tool_calls is None
        assert [attempt.status for attempt in result.attempts] == [CallStatus.TRUNCATED]
    assert all(attempt.status is not CallStatus.TRUNCATED for attempt in parse(form, form.broken[0]).attempts)


@formats
def test_an_unknown_tool_is_a_call_and_says_so(form: Format) -> None:
    text = form.write([("no_such_tool", {"text": "x"})])
    if form.write.__name__ == "_llama":  # without a marker only an offered name makes JSON a call
        assert parse(form, text).tool_calls is None
        return
    result = parse(form, text)
    assert found(result) == [("no_such_tool", {"text": "x"})]
    assert [attempt.status for attempt in result.attempts] == [CallStatus.UNKNOWN_TOOL]
    assert result.problems == []


@formats
@pytest.mark.parametrize(
    "text",
    [
        "plain words",
        "  outer blanks stay \n",
        '{"answer": 42}',
        'The call would be {"name": "f", "parameters": {"text": "x"}}, roughly.',
        "Write f(text='x') or <b>f</b>.",
        "",
    ],
)
def test_prose_is_returned_untouched(form: Format, text: str) -> None:
    result = parse(form, text)
    assert tuple(result) == (text, None)
    assert result.attempts == []
    assert result.reasoning_closed is None


@formats
@given(data=st.data())
@settings(max_examples=100)
def test_nothing_makes_a_parser_fail_or_lose_text(form: Format, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.sampled_from([*form.marks, *form.think, " ", "\n", "words"]), max_size=25))
    text = "".join(pieces)
    tools = data.draw(st.sampled_from([None, TOOLS]))
    prompt = data.draw(st.sampled_from(["", "assistant:", f"assistant: {form.think[0]}\n"]))
    parser = get_parser(form.name)
    result = parser.parse(text, tools=tools, generation_prompt=prompt)
    check_attempts(result, text)
    if not prompt:
        return  # where nobody said how the reply began, a later </think> changes what came before
    whole = exact(found(result))
    end = data.draw(st.integers(0, len(text)))
    part = exact(found(parser.parse(text[:end], tools=tools, generation_prompt=prompt, finished=False)))
    assert part == whole[: len(part)]
