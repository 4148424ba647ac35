"""Formats whose values stand between tags as plain text: Qwen3-Coder, GLM and LongCat 2."""

from __future__ import annotations

import json
from typing import Any

import pytest

from environments.tool_call_parsers import CallStatus, get_parser

PROPERTIES = {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}}
TOOLS = [
    {"type": "function", "function": {"name": "write", "parameters": {"properties": PROPERTIES}}},
    {
        "type": "function",
        "function": {"name": "run", "parameters": {"properties": {"c": {"type": "string"}}}},
    },
]

RUN = "<tool_call>\n<function=run>\n<parameter=c>\nrm -rf /tmp/cache\n</parameter>\n</function>\n</tool_call>"


def read(name: str, text: str, tools: Any = TOOLS) -> list[tuple[str, dict[str, Any]]]:
    calls = get_parser(name).parse(text, tools=tools).tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def coder(body: str) -> str:
    return f"<tool_call>\n<function=write>\n{body}</function>\n</tool_call>"


@pytest.mark.parametrize(
    "value",
    [
        "    indented\n\ttwice\n",
        "\n\n",
        "",
        "a </parameter> b",
        "x </function> y",
        "the <tool_call> tag, </tool_call>",
        "<parameter=other> is text",
        "<parameter=content> again is text",
        "<function=NAME> begins a call",
        f"see\n{RUN}\nend",
        "<function=run></function>",
    ],
)
def test_values_of_qwen3_coder_keep_every_byte(value: str) -> None:
    body = f"<parameter=path>\na\n</parameter>\n<parameter=content>\n{value}\n</parameter>\n"
    assert read("qwen3_coder", coder(body)) == [("write", {"path": "a", "content": value})]


@pytest.mark.parametrize(
    "text",
    [
        "<function=write>\n<parameter=path>\na\n</parameter>\n</function>",
        "<tool_call><function=write><parameter=path>a</parameter></function></tool_call>",
        "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n</function>",
        "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=write>\n<parameter=path>\na\n</function>\n</tool_call>",
    ],
)
def test_tags_of_qwen3_coder_that_may_be_missing(text: str) -> None:
    assert read("qwen3_coder", text) == [("write", {"path": "a"})]


def test_a_closing_tag_that_was_forgotten_before_the_next_parameter() -> None:
    body = "<parameter=path>\na\n<parameter=mode>\n7\n</parameter>\n"
    assert read("qwen3_coder", coder(body)) == [("write", {"path": "a", "mode": 7})]
    assert read("qwen3_coder", coder(body), None) == [("write", {"path": "a", "mode": 7})]


def test_a_function_in_a_sentence_is_prose() -> None:
    example = "<function=run>\n<parameter=c>\nls\n</parameter>\n</function>"
    for text in (f"Write {example} to list.", f"```\n{example}\n```"):
        assert tuple(get_parser("qwen3_coder").parse(text, tools=TOOLS)) == (text, None)


def test_several_functions_in_one_block() -> None:
    text = "<tool_call>\n<function=run>\n</function>\n<function=write>\n</function>\n</tool_call>"
    assert read("qwen3_coder", text) == [("run", {}), ("write", {})]


@pytest.mark.parametrize(
    "value",
    [
        "  both sides \n",
        "a </arg_value> b",
        "x </tool_call> y",
        "<arg_key>content</arg_key> is text",
        "<tool_call>run<arg_key>c</arg_key><arg_value>rm</arg_value></tool_call>",
        "<tool_call>",
    ],
)
@pytest.mark.parametrize(("name", "prefix"), [("glm45", ""), ("glm47", ""), ("longcat", "longcat_")])
def test_values_between_keys_keep_every_byte(name: str, prefix: str, value: str) -> None:
    value = value.replace("tool_call>", f"{prefix}tool_call>").replace("arg_", f"{prefix}arg_")
    text = (
        f"<{prefix}tool_call>write\n<{prefix}arg_key>content</{prefix}arg_key>\n"
        f"<{prefix}arg_value>{value}</{prefix}arg_value>\n</{prefix}tool_call>"
    )
    assert read(name, text) == [("write", {"content": value})]


def test_a_value_that_is_cut_is_never_run() -> None:
    parser = get_parser("qwen3_coder")
    for end in range(len(RUN) - len("\n</tool_call>")):
        result = parser.parse(RUN[:end], tools=TOOLS)
        assert (result.content, result.tool_calls) == (RUN[:end], None)
    result = parser.parse(RUN[: RUN.index("/cache")], tools=TOOLS)
    assert [attempt.status for attempt in result.attempts] == [CallStatus.TRUNCATED]
