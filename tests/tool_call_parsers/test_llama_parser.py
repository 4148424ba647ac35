"""Llama's bare JSON: what is a call, and what is an answer or an example."""

from __future__ import annotations

import pytest

from environments.tool_call_parsers import CallStatus, ParseResult, get_parser
from tool_call_parsers.formats import TOOLS

CALL = '{"name": "f", "parameters": {"text": "x"}}'
PARSER = get_parser("llama3_json")


def parse(text: str, tools: object = TOOLS) -> ParseResult:
    return PARSER.parse(text, tools=tools)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (CALL, None),
        (f"\n {CALL}\n", None),
        (CALL.replace("parameters", "arguments"), None),
        ('{"type": "function", ' + CALL[1:], None),
        (f"{CALL} Some words after.", "Some words after."),
        (f"I will look.\n\n{CALL}", "I will look."),
        (f"<think>hm</think>{CALL}", None),
        (f"<|python_tag|>{CALL}<|eom_id|>", None),
    ],
)
def test_calls(text: str, content: str | None) -> None:
    result = parse(text)
    assert [call.function.arguments for call in result.tool_calls or []] == ['{"text": "x"}']
    assert result.content == content


@pytest.mark.parametrize(
    "text",
    [
        f"You could write {CALL} here.",
        f"For instance:\n```json\n{CALL}\n```",
        '{"name": "Alice", "age": 3}',
        '{"name": "f", "description": "a tool", "parameters": {}}',
        '{"name": "f"}',
        '{"parameters": {}}',
        '{"name": "other", "parameters": {}}',
        f'{{"calls": [\n{CALL}\n]}}',
        f'{{"calls": [\n{CALL}',
        'See:\n{"name": "f", "parameters": {"unknown": 1}}',
    ],
)
def test_answers_in_json_and_examples(text: str) -> None:
    result = parse(text)
    assert tuple(result) == (text, None)
    assert result.attempts == []


def test_several_calls() -> None:
    for separator in ("; ", ";", " ; ", "\n", ";<|python_tag|>", "<|python_tag|>"):
        result = parse(f"{CALL}{separator}{CALL}")
        assert len(result.tool_calls or []) == 2
        assert result.content is None


def test_a_good_call_after_a_broken_one() -> None:
    broken = '{"name": "f", "parameters": {text}}'
    result = parse(f"{broken}; {CALL}")
    assert len(result.tool_calls or []) == 1
    assert [attempt.status for attempt in result.attempts] == [CallStatus.INVALID_JSON, CallStatus.OK]
    assert result.content == broken


def test_without_tools_only_the_beginning_counts() -> None:
    assert len(parse(CALL, None).tool_calls or []) == 1
    assert parse(f"Words.\n{CALL}", None).tool_calls is None


def test_a_call_inside_a_broken_one_is_not_run() -> None:
    result = parse('{"name": "f", "parameters": {' + CALL)
    assert result.tool_calls is None
    assert len(result.problems) == 1
