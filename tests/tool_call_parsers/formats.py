"""The eleven formats of Hermes Agent, written as their chat templates write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Format:
    """How a family writes calls, its markers, and pieces of calls that break."""

    name: str
    write: Callable[[Sequence[Call]], str]
    marks: tuple[str, ...]
    broken: tuple[str, ...]
    think: tuple[str, str] = ("<think>", "</think>")
    escapes: bool = True
    """Whether strings are escaped, so that a value may hold whatever it likes."""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _tagged(tag: str) -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        return "\n".join(f"<{tag}>\n{_json({'name': n, 'arguments': a})}\n</{tag}>" for n, a in calls)

    return write


def _mistral_list(calls: Sequence[Call]) -> str:
    entries = [{"name": name, "arguments": arguments, "id": "abcdef012"} for name, arguments in calls]
    return f"[TOOL_CALLS] {_json(entries)}"


def _mistral_named(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}" for name, arguments in calls)


def _llama(calls: Sequence[Call]) -> str:
    return "; ".join(_json({"name": name, "parameters": arguments}) for name, arguments in calls)


def _llama_tagged(calls: Sequence[Call]) -> str:
    return "<|python_tag|>" + _llama(calls)


def _qwen3_coder(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        values = "".join(f"<parameter={k}>\n{_plain(v)}\n</parameter>\n" for k, v in arguments.items())
        return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"

    return "\n".join(one(*call) for call in calls)


def _glm(line: str) -> Callable[[Sequence[Call]], str]:
    def one(name: str, arguments: dict[str, Any]) -> str:
        values = "".join(
            f"<arg_key>{k}</arg_key>{line}<arg_value>{_plain(v)}</arg_value>{line}"
            for k, v in arguments.items()
        )
        return f"<tool_call>{name}{line}{values}</tool_call>"

    return lambda calls: line.join(one(*call) for call in calls)


def _deepseek_v3(calls: Sequence[Call]) -> str:
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def _deepseek_v3_1(calls: Sequence[Call]) -> str:
    inner = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def _kimi(calls: Sequence[Call]) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{_json(arguments)}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


_TAG_MARKS = ("<tool_call>", "</tool_call>")
JSON_MARKS = (
    '{"name": "f", "arguments": {}}',
    '{"name": ',
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "f",
    "1",
)
_HERMES_BROKEN = (
    "<tool_call>{broken</tool_call>",
    '<tool_call>{"name": "x", "arguments": {"a": "open</tool_call>',
    '<tool_call>{"name": "x", "arguments": [1]}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "x", "arguments": {}} tail</tool_call>',
    '<tool_call>\n{"name": "x", "arguments": {',
)
_CODER_MARKS = (
    *_TAG_MARKS,
    "<function=f>",
    "<function=",
    "</function>",
    "<parameter=text>",
    "<parameter=",
    "</parameter>",
    "\n",
    "x",
)
_GLM_MARKS = (*_TAG_MARKS, "<arg_key>", "text", "</arg_key>", "<arg_value>", "</arg_value>", "f", "\n")
_GLM_BROKEN = (
    "<tool_call>x\njunk<arg_key>a</arg_key></tool_call>",
    "<tool_call>x<arg_key>a</arg_key></tool_call>",
    '<tool_call>{"name": "x"}</tool_call>',
    "<tool_call>x<arg_key>a</arg_key><arg_value>1</tool_call>",
)
_V3 = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)

FORMATS = (
    Format("hermes", _tagged("tool_call"), (*_TAG_MARKS, *JSON_MARKS), _HERMES_BROKEN),
    Format("qwen", _tagged("tool_call"), (*_TAG_MARKS, *JSON_MARKS), _HERMES_BROKEN),
    Format(
        "longcat",
        _tagged("longcat_tool_call"),
        ("<longcat_tool_call>", "</longcat_tool_call>", *JSON_MARKS),
        tuple(text.replace("tool_call>", "longcat_tool_call>") for text in _HERMES_BROKEN),
        think=("<longcat_think>", "</longcat_think>"),
    ),
    Format(
        "mistral",
        _mistral_list,
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", *JSON_MARKS),
        (
            '[TOOL_CALLS][{"name": "x", "arguments": {a}}]',
            '[TOOL_CALLS][{"arguments": {}}]',
            "[TOOL_CALLS]x[ARGS]{broken}",
            '[TOOL_CALLS] [{"name": "x", "arguments": ',
        ),
        think=("[THINK]", "[/THINK]"),
    ),
    Format(
        "mistral",
        _mistral_named,
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", *JSON_MARKS),
        ("[TOOL_CALLS]x[ARGS]{broken}", '[TOOL_CALLS]x[CALL_ID]abcdef012[ARGS]{"a": '),
        think=("[THINK]", "[/THINK]"),
    ),
    Format(
        "llama3_json",
        _llama,
        ("<|python_tag|>", ";", '{"name": "f", "parameters": {}}', *JSON_MARKS),
        ('<|python_tag|>{"name": "x", "parameters": {a}}', "<|python_tag|>print(1)"),
    ),
    Format(
        "llama3_json",
        _llama_tagged,
        ("<|python_tag|>", ";", '{"name": "f", "parameters": {}}', *JSON_MARKS),
        ('<|python_tag|>{"name": "x", "parameters": {a}}', '<|python_tag|>{"parameters": {}}'),
    ),
    Format(
        "qwen3_coder",
        _qwen3_coder,
        _CODER_MARKS,
        (
            "<tool_call>\n<function=x>\njunk\n</function>\n</tool_call>",
            "<tool_call>\n<function=x>\n<parameter=a>\n1\n</tool_call>",
            "<tool_call>\n<function=x\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
            '<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>',
            "<tool_call>\n<function=>\n</function>\n</tool_call>",
        ),
        escapes=False,
    ),
    Format("glm45", _glm("\n"), _GLM_MARKS, _GLM_BROKEN, escapes=False),
    Format("glm47", _glm(""), _GLM_MARKS, _GLM_BROKEN, escapes=False),
    Format(
        "deepseek_v3",
        _deepseek_v3,
        (*_V3, "function", "```json", "```", *JSON_MARKS),
        (
            f"{_V3[0]}{_V3[1]}function{_V3[2]}x\n```json\n{{a}}\n```{_V3[3]}{_V3[4]}",
            f"{_V3[1]}function{_V3[2]}x{_V3[3]}",
            f"{_V3[0]}{_V3[1]}function{_V3[3]}{_V3[4]}",
            f"{_V3[1]}function{_V3[2]}x\n```json\n",
        ),
    ),
    Format(
        "deepseek_v3_1",
        _deepseek_v3_1,
        (*_V3, *JSON_MARKS),
        (
            f"{_V3[0]}{_V3[1]}x{_V3[2]}{{a}}{_V3[3]}{_V3[4]}",
            f"{_V3[1]}{_V3[2]}{{}}{_V3[3]}",
            f"{_V3[1]}x{_V3[3]}",
            f"{_V3[1]}x{_V3[2]}",
        ),
    ),
    Format(
        "kimi_k2",
        _kimi,
        (*_KIMI, "functions.f:0", *JSON_MARKS),
        (
            f"{_KIMI[0]}{_KIMI[1]}functions.x:0{_KIMI[2]}{{a}}{_KIMI[3]}{_KIMI[4]}",
            f"{_KIMI[1]}functions.x.0{_KIMI[2]}{{}}{_KIMI[3]}",
            f"{_KIMI[1]}functions.x:0{_KIMI[3]}",
            f"{_KIMI[1]}functions.x:0{_KIMI[2]}",
        ),
        think=("<think>", "</think>"),
    ),
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "ratio": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "items": {"type": "array"},
                    "options": {"type": "object"},
                },
            },
        },
    }
    for name in ("f", "write_file", "get-weather.v2")
]
