"""Calls inside thinking do not count, and thinking is no content."""

from __future__ import annotations

import pytest

from environments.tool_call_parsers import CallStatus, get_parser
from tool_call_parsers.formats import FORMATS, TOOLS, Format

formats = pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.name}-{form.write.__name__}")
ONE, TWO = ("f", {"text": "thought"}), ("write_file", {"text": "meant"})


def names(result: object) -> list[str]:
    return [call.function.name for call in result.tool_calls or []]  # type: ignore[attr-defined]


def ends_thinking(form: Format) -> bool:
    return form.name == "kimi_k2"


@formats
def test_a_call_while_thinking_does_not_count(form: Format) -> None:
    begin, end = form.think
    thought = "hm" if ends_thinking(form) else f"hm {form.write([ONE])}"
    result = get_parser(form.name).parse(f"{begin}\n{thought}\n{end}\n\n{form.write([TWO])}", tools=TOOLS)
    assert names(result) == ["write_file"]
    assert (result.content, result.reasoning, result.reasoning_closed) == (None, thought, True)
    assert len(result.attempts) == 1


@formats
def test_thinking_that_the_template_began(form: Format) -> None:
    begin, end = form.think
    parser = get_parser(form.name)
    text = f"hm\n{end}\n{form.write([TWO])}"
    for prompt in (f"<|assistant|>{begin}\n", ""):
        result = parser.parse(text, tools=TOOLS, generation_prompt=prompt)
        assert names(result) == ["write_file"]
        assert (result.reasoning, result.reasoning_closed) == ("hm", True)
    result = parser.parse(text, tools=TOOLS, generation_prompt=f"<|assistant|>{begin}\n\n{end}\n\n")
    assert result.reasoning_closed is None  # the template had ended it too: this is text
    assert (result.content or "").startswith(f"hm\n{end}")


@formats
def test_thinking_that_never_ends(form: Format) -> None:
    if ends_thinking(form):
        return
    parser = get_parser(form.name)
    text = f"hm {form.write([ONE])}"
    prompt = f"<|assistant|>{form.think[0]}"
    result = parser.parse(text, tools=TOOLS, generation_prompt=prompt)
    assert (result.content, result.tool_calls, result.reasoning) == (None, None, text)
    assert result.reasoning_closed is False
    if form.write.__name__ != "_llama":  # bare JSON behind words is no call anyway
        assert [attempt.status for attempt in result.attempts] == [CallStatus.MALFORMED]
        assert "thinking" in result.problems[0]
    cut = parser.parse(text, tools=TOOLS, generation_prompt=prompt, finished=False)
    assert cut.attempts == []
    assert cut.reasoning == text


def test_a_section_of_kimi_calls_ends_thinking() -> None:
    form = next(form for form in FORMATS if form.name == "kimi_k2")
    result = get_parser("kimi_k2").parse(f"<think>hm {form.write([TWO])}", tools=TOOLS)
    assert names(result) == ["write_file"]
    assert (result.reasoning, result.reasoning_closed) == ("hm", True)


def test_a_closing_mark_inside_an_argument_ends_no_thinking() -> None:
    result = get_parser("hermes").parse(
        '<tool_call>{"name": "f", "arguments": {"a": "</think>"}}</tool_call>'
    )
    assert names(result) == ["f"]
    assert result.reasoning_closed is None


def test_two_thoughts() -> None:
    result = get_parser("qwen").parse("<think>a</think>one<think>b</think>two")
    assert (result.content, result.reasoning) == ("onetwo", "a\nb")


def test_a_second_closing_mark_is_text() -> None:
    result = get_parser("qwen").parse("<think>a</think>b</think>c")
    assert (result.content, result.reasoning) == ("b</think>c", "a")
