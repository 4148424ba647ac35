"""The rules that hold for the eleven formats hold for the further ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.tool_call_parsers import CallStatus, get_parser
from tool_call_parsers.checks import check_attempts, check_two_good_beside, exact, found
from tool_call_parsers.formats import TOOLS, Call, Format
from tool_call_parsers.further_formats import FURTHER_FORMATS
from tool_call_parsers.test_rules import calls, parse, prose

formats = pytest.mark.parametrize("form", FURTHER_FORMATS, ids=lambda form: form.name)
few = settings(max_examples=25)


def writable(form: Format, expected: list[Call]) -> bool:
    """Whether the format can carry these values: where nothing is escaped, none of its longer markers."""
    if form.name == "minimax_m3" and any(
        {"items", "options"} & arguments.keys() for _, arguments in expected
    ):
        return False  # what is inside has types only where the schema goes as deep
    written = repr(expected)
    return form.escapes or not any(mark in written for mark in form.marks if len(mark) > 3)


@formats
@given(before=prose, expected=calls)
@few
def test_what_the_template_writes_is_read_back(form: Format, before: str, expected: list[Call]) -> None:
    if not writable(form, expected):
        return
    result = parse(form, before + form.write(expected))
    assert exact(found(result)) == exact(expected)
    assert (result.content or "") == before.strip()
    assert {attempt.status for attempt in result.attempts} == {CallStatus.OK}


@formats
@given(before=prose, expected=calls, data=st.data())
@few
def test_a_cut_reply_gives_no_call_that_the_whole_reply_does_not(
    form: Format, before: str, expected: list[Call], data: st.DataObject
) -> None:
    if not writable(form, expected):
        return
    text = before + form.write(expected)
    whole = exact(found(parse(form, text)))
    for end in data.draw(st.lists(st.integers(0, len(text)), max_size=8)):
        for finished in (True, False):
            part = exact(found(parse(form, text[:end], finished=finished)))
            assert part == whole[: len(part)]


@formats
@pytest.mark.parametrize("place", [0, 1, 2])
def test_good_calls_beside_a_broken_one_count(form: Format, place: int) -> None:
    for broken in form.broken:
        parts = [form.write([("f", {"text": "x"})]), form.write([("write_file", {"count": 2})])]
        parts.insert(place, broken)
        result = parse(form, "\n".join(parts))
        check_two_good_beside(result, broken)


@formats
def test_text_before_between_and_after_is_kept(form: Format) -> None:
    first, second = form.write([("f", {})]), form.write([("write_file", {"text": "x"})])
    text = f"before {first}\nbetween\n{second} after"
    result = parse(form, text)
    assert found(result) == [("f", {}), ("write_file", {"text": "x"})]
    assert result.content == text.replace(first, "").replace(second, "").strip()


@formats
@pytest.mark.parametrize(
    "text", ["plain words", "  outer blanks stay \n", '{"answer": 42}', "Write f(text='x') or <b>f</b>.", ""]
)
def test_prose_is_returned_untouched(form: Format, text: str) -> None:
    result = parse(form, text)
    assert tuple(result) == (text, None)
    assert result.attempts == []


@formats
@given(data=st.data())
@settings(max_examples=60)
def test_nothing_makes_a_parser_fail_or_lose_text(form: Format, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.sampled_from([*form.marks, *form.think, " ", "\n", "words"]), max_size=25))
    text = "".join(pieces)
    result = parse(form, text)
    check_attempts(result, text)
    whole = exact(found(result))
    end = data.draw(st.integers(0, len(text)))
    cut = get_parser(form.name).parse(text[:end], tools=TOOLS, generation_prompt="assistant:", finished=False)
    part = exact(found(cut))
    assert part == whole[: len(part)]
