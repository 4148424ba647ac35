"""Calls that a model wrote into its text, and text that only looks like calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from environments.inference.text_calls import read_text_calls
from environments.inference.types import ChatMessage, Choice
from environments.tool_call_parsers import get_parser

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path"],
}
TOOLS = [{"type": "function", "function": {"name": "write_file", "parameters": PARAMETERS}}]
CALL = '{"name": "write_file", "arguments": {"path": "a.txt", "content": "x"}}'


def read(text: Any, finish_reason: str = "stop") -> tuple[str | None, Choice]:
    choice = Choice(ChatMessage(content=text), finish_reason)
    return read_text_calls(choice, TOOLS, get_parser("hermes")), choice


def arguments(choice: Choice) -> list[Any]:
    return [json.loads(call.function.arguments) for call in choice.message.tool_calls or []]


def test_the_named_parser_comes_first() -> None:
    found, choice = read(f"I write. <tool_call>{CALL}</tool_call> Done.")
    assert found == "hermes"
    assert arguments(choice) == [{"path": "a.txt", "content": "x"}]
    assert choice.message.content == "I write.  Done."
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n {CALL}\n",
        CALL.replace("arguments", "parameters"),
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```",
        f"```json\n[{CALL}]\n```",
        f"[{CALL}]",
        '{"name": "write_file", "arguments": {"path": "a.txt", "content": "x"}}',
    ],
)
def test_a_message_that_is_json(text: str) -> None:
    found, choice = read(text)
    assert found == "json"
    assert arguments(choice) == [{"path": "a.txt", "content": "x"}]
    assert choice.message.content is None


def test_a_list_of_calls() -> None:
    found, choice = read(f"[{CALL}, {CALL}]")
    assert found == "json"
    assert len(arguments(choice)) == 2


def test_one_fence_with_prose_around_it() -> None:
    found, choice = read(f"Let me write it:\n```json\n{CALL}\n```\nThat does it.")
    assert found == "json"
    assert choice.message.content == "Let me write it:\nThat does it."


@pytest.mark.parametrize(
    "text",
    [
        "plain words",
        f"For instance {CALL} would be a call.",
        f"Either\n```json\n{CALL}\n```\nor\n```json\n{CALL}\n```",
        'Example:\n```json\n{"name": "other_tool", "arguments": {"path": "a"}}\n```',
        'Example:\n```json\n{"name": "write_file", "arguments": {}}\n```',
        'Example:\n```json\n{"name": "write_file", "arguments": {"path": "a", "mode": 7}}\n```',
        'Config:\n```json\n{"name": "write_file", "arguments": {"path": "a"}, "version": 2}\n```',
        '{"name": "other_tool", "arguments": {}}',
        '{"name": "write_file", "arguments": "text"}',
        '{"name": "write_file"}',
        f"[{CALL}, 1]",
        "[]",
        "{}",
        f"{CALL} and more",
        '{"name": "write_file", "arguments": {"path": "a.txt", "content": "cut',
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    found, choice = read(text)
    assert found is None
    assert choice.message.content == text
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_a_malformed_call_is_reported() -> None:
    found, choice = read('<tool_call>{"name": "write_file", "arguments": {"pa')
    assert found is None
    assert "truncated" in choice.message.malformed_calls[0]
    assert "malformed_calls" not in choice.message.to_message()


def test_a_reply_cut_short_keeps_its_whole_calls_and_its_reason() -> None:
    found, choice = read(f"<tool_call>{CALL}</tool_call> <tool_call>{{", "length")
    assert found == "hermes"
    assert choice.finish_reason == "length"
    assert read(f"```json\n{CALL}\n```", "length")[0] is None


@pytest.mark.parametrize("content", [None, "", "   ", [{"type": "text", "text": CALL}]])
def test_contents_that_are_no_text(content: Any) -> None:
    assert read(content)[0] is None


def test_calls_of_the_server_are_left_alone() -> None:
    choice = Choice(ChatMessage(content=CALL, tool_calls=[]), "stop")
    assert read_text_calls(choice, [], get_parser("hermes")) is None
