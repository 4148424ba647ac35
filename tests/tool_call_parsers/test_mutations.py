"""Replies that a model has garbled: pieces doubled, lost, moved, and markers where none belong.

Whatever comes of them, nothing is lost or invented, and a reply that is cut gives no call that the whole
reply does not give.
"""

from __future__ import annotations

import json
import random

import pytest

from environments.tool_call_parsers import CallStatus, get_parser
from tool_call_parsers.checks import check_attempts, exact, found
from tool_call_parsers.formats import FORMATS, TOOLS, Call, Format
from tool_call_parsers.further_formats import FURTHER_FORMATS

formats = pytest.mark.parametrize(
    "form", [*FORMATS, *FURTHER_FORMATS], ids=lambda form: f"{form.name}-{form.write.__name__}"
)
VALUES = ("x", "a\nb", " lead", "é\u2028", "</b>", '{"a": [1, {"b": "]}"}]}', "'", '"', "\\", "rm -rf /x", "")
ROUNDS = 25


def any_call(chance: random.Random) -> Call:
    arguments: dict[str, object] = {}
    if chance.random() < 0.8:
        arguments["text"] = chance.choice(VALUES)
    if chance.random() < 0.5:
        arguments["count"] = chance.randint(-5, 10**6)
    if chance.random() < 0.3:
        arguments["items"] = [1, "x", {"a": None}]
    return chance.choice(["f", "write_file"]), arguments


def garbled(form: Format, text: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(text) + 1)
        other = chance.randrange(len(text) + 1)
        marks = [mark for mark in form.marks if mark in text] or ["x"]
        mark = chance.choice(marks)
        at = text.find(mark, other)
        match chance.randrange(6):
            case 0:
                text = text[:place] + chance.choice([*form.marks, *form.think, "\n", " "]) + text[place:]
            case 1 if at >= 0:
                text = text[:at] + text[at + len(mark) :]
            case 2 if at >= 0:
                text = text[:at] + mark + text[at:]
            case 3:
                text = text[:place] + text[place + chance.randint(1, 6) :]
            case 4:
                begin, end = sorted((place, other))
                text = text[:end] + text[begin:end] + text[end:]
            case _:
                text = text[:place] + form.write([any_call(chance)]) + text[place:]
    return text


@formats
def test_garbled_replies(form: Format) -> None:
    chance, parser = random.Random(form.name), get_parser(form.name)
    for number in range(ROUNDS):
        calls = [any_call(chance) for _ in range(chance.randint(1, 3))]
        text = garbled(form, chance.choice(["", "Hi ", "So:\n"]) + form.write(calls), chance)
        tools = chance.choice([None, TOOLS])
        result = parser.parse(text, tools=tools, generation_prompt="assistant:")
        check_attempts(result, text)
        whole = exact(found(result))
        cuts = range(len(text)) if number == 0 else [chance.randrange(len(text) + 1) for _ in range(5)]
        for cut in cuts:
            begun = parser.parse(text[:cut], tools=tools, generation_prompt="assistant:", finished=False)
            part = exact(found(begun))
            assert part == whole[: len(part)], text


def test_a_list_that_another_opening_breaks_off() -> None:
    text = '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {a}]],[TOOL_CALLS] [{"name": "g", "arguments": {}}]'
    result = get_parser("mistral").parse(text)
    check_attempts(result, text)
    assert [name for name, _ in found(result)] == ["f", "g"]


def test_a_call_with_a_separator_behind_it_is_whole() -> None:
    call = '{"name": "f", "arguments": {}}'
    for text in (f"<tool_calls>[{call},] junk", f"<tool_calls>[{call},]", f"<tool_calls>[{call},"):
        assert len(found(get_parser("jamba").parse(text, finished=False))) == 1, text


def test_a_call_inside_a_broken_one_in_the_middle_of_a_line_is_none() -> None:
    inner = '<function name="f"><param name="text">x</param></function>'
    text = f'Hi <function name="f"><param name="text"> lead</param><param name={inner}'
    result = get_parser("minicpm5").parse(text, tools=TOOLS, finished=False)
    assert (result.tool_calls, len(result.problems)) == (None, 1)


@pytest.mark.parametrize("text", ["f(a={'b': 1, 'b': 2})", "f(a=[{'b': 1, 'c': [], 'b': 2}])"])
def test_a_member_of_a_python_mapping_that_is_given_twice(text: str) -> None:
    assert get_parser("llama4_pythonic").parse(f"<|python_start|>[{text}]<|python_end|>").tool_calls is None


@formats
def test_a_parameter_that_is_given_twice_is_no_call(form: Format) -> None:
    doubled = form.write([("f", {"text": "1", "count": 1})]).replace("count", "text")
    result = get_parser(form.name).parse(doubled)
    (attempt,) = result.attempts
    if form.name == "minimax_m3":  # its lists are elements of one name
        assert attempt.arguments == {"text": [1, 1]}
        return
    assert attempt.status in (CallStatus.MALFORMED, CallStatus.INVALID_JSON)
    assert "twice" in attempt.problem and result.tool_calls is None


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": 1}, "arguments": {"a": 2}',
        '{"a": 1}, "name": "g"',
        '{"a": {"b": 1, "b": 1}}',
        '{"a": [{}, {"": 1, "b": 2, "\\u0062": 3}]}',
    ],
)
def test_a_member_that_is_given_twice_anywhere(arguments: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    (attempt,) = get_parser("hermes").parse(text).attempts
    assert attempt.status is CallStatus.INVALID_JSON and "twice" in attempt.problem


def test_of_many_broken_calls_the_first_are_told() -> None:
    result = get_parser("hermes").parse('<tool_call>{"name": 1}</tool_call>\n' * 1000)
    assert len(result.attempts) == 1000
    assert len(result.problems) == 9
    assert result.problems[-1] == "992 more tool calls cannot be read"


def test_the_name_may_stand_anywhere_in_a_call() -> None:
    for text in (
        '{"name": "f", "arguments": {"a": 1}, "id": "x"}',
        '{"arguments": {"a": 1}, "name": "f"}',
        '{ "name" : "f" ,\n"arguments" :\t{"a": 1} }',
        '{"name": "\\u0066", "arguments": {"a": 1}}',
    ):
        result = get_parser("hermes").parse(f"<tool_call>{text}</tool_call>")
        assert [(n, json.dumps(a)) for n, a in found(result)] == [("f", '{"a": 1}')], text


def test_calls_in_the_form_that_a_family_does_not_have_are_reported() -> None:
    for name, text in (
        ("granite", '<|tool_call|> {"name": "f", "arguments": {}}'),
        ("phi4_mini", 'functools{"name": "f", "arguments": {}}'),
        ("granite_20b_fc", '<function_call> [{"name": "f", "arguments": {}}]'),
    ):
        result = get_parser(name).parse(f"So: {text} tail")
        check_attempts(result, f"So: {text} tail")
        assert (result.tool_calls, len(result.problems)) == (None, 1), name
    for prose in ("from functools {a} and functools", "functools [1, 2]"):
        assert get_parser("phi4_mini").parse(prose).attempts == []
