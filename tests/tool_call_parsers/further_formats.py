"""The further formats, written as their chat templates write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tool_call_parsers.formats import JSON_MARKS, Call, Format

_THINK = ("<think>", "</think>")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _listed(opening: str, closing: str, name: str = "name") -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        return opening + _json([{name: n, "parameters": a} for n, a in calls]) + closing

    return write


def _each(opening: str, closing: str) -> Callable[[Sequence[Call]], str]:
    return lambda calls: "\n".join(
        f"{opening}{_json({'name': n, 'arguments': a})}{closing}" for n, a in calls
    )


def _apertus(calls: Sequence[Call]) -> str:
    return f"<|tools_prefix|>{_json([{name: arguments} for name, arguments in calls])}<|tools_suffix|>"


def _harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(arguments)}<|call|>"
        for name, arguments in calls
    )


def _invoke(block: str, prefix: str = "") -> Callable[[Sequence[Call]], str]:
    def one(name: str, arguments: dict[str, Any]) -> str:
        values = "".join(
            f'<{prefix}parameter name="{key}">{_plain(value)}</{prefix}parameter>\n'
            for key, value in arguments.items()
        )
        return f'<{prefix}invoke name="{name}">\n{values}</{prefix}invoke>\n'

    return lambda calls: f"<{block}>\n{''.join(one(*call) for call in calls)}</{block}>"


def _hunyuan_v3(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        values = "".join(
            f"<arg_key>{k}</arg_key>\n<arg_value>{_plain(v)}</arg_value>\n" for k, v in arguments.items()
        )
        return f"<tool_call>{name}<tool_sep>\n{values}</tool_call>\n"

    return f"<tool_calls>\n{''.join(one(*call) for call in calls)}</tool_calls>"


def _hunyuan(calls: Sequence[Call]) -> str:
    inner = "\n".join(f"<tool_call>{n}\n```json\n{_json(a)}\n```</tool_call>" for n, a in calls)
    return f"<tool_calls>{inner}</tool_calls>"


def _python(opening: str, separator: str, closing: str) -> Callable[[Sequence[Call]], str]:
    def one(name: str, arguments: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    return lambda calls: opening + separator.join(one(*call) for call in calls) + closing


def _elements(value: Any) -> str:
    token = "]<]minimax[>["
    match value:
        case dict():
            return "".join(f"{token}<{k}>{_elements(v)}{token}</{k}>" for k, v in value.items())
        case list():
            return "".join(f"{token}<item>{_elements(v)}{token}</item>" for v in value)
        case _:
            return _plain(value)


def _minimax_m3(calls: Sequence[Call]) -> str:
    token = "]<]minimax[>["
    inner = "".join(f'{token}<invoke name="{n}">{_elements(a)}{token}</invoke>\n' for n, a in calls)
    return f"{token}<tool_call>\n{inner}{token}</tool_call>"


def _gemma_value(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case dict():
            members = (f"{quote}{k}{quote}:{_gemma_value(v, quote)}" for k, v in value.items())
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(_gemma_value(item, quote) for item in value) + "]"
        case _:
            return _json(value)


def _gemma(opening: str, closing: str, quote: str) -> Callable[[Sequence[Call]], str]:
    def one(name: str, arguments: dict[str, Any]) -> str:
        members = ",".join(f"{key}:{_gemma_value(value, quote)}" for key, value in arguments.items())
        return f"{opening}call:{name}{{{members}}}{closing}"

    return lambda calls: "".join(one(*call) for call in calls)


def _invoke_format(name: str, block: str, prefix: str = "") -> Format:
    opening, call, close = f"<{block}>", f'<{prefix}invoke name="x">', f"</{prefix}invoke>"
    parameter, end = f'<{prefix}parameter name="text">', f"</{prefix}parameter>"
    return Format(
        name,
        _invoke(block, prefix),
        (opening, f"</{block}>", call, f"<{prefix}invoke", close, parameter, end, "text", "\n", ">"),
        (
            f"{opening}{call}junk{close}</{block}>",
            f"{opening}junk</{block}>",
        ),
        escapes=False,
    )


def _list_format(
    name: str, opening: str, closing: str, think: tuple[str, str] = _THINK, key: str = "name"
) -> Format:
    return Format(
        name,
        _listed(opening, closing, key),
        tuple(mark for mark in (opening, closing) if mark) + JSON_MARKS,
        (
            f'{opening}[{{"{key}": "x", "parameters": {{a}}}}]{closing}',
            f'{opening}[{{"parameters": {{}}}}]{closing}',
            f'{opening}[{{"{key}": "x", "parameters": [1]}}]{closing}',
        ),
        think=think,
    )


def _minicpm5(calls: Sequence[Call]) -> str:
    def value(value: Any) -> str:
        text = _plain(value)
        quoted = isinstance(value, str) and any(mark in text for mark in "<&\n")
        return f"<![CDATA[{text}]]>" if quoted else text

    return "\n".join(
        f'<function name="{name}">'
        + "".join(f'<param name="{key}">{value(v)}</param>' for key, v in arguments.items())
        + "</function>"
        for name, arguments in calls
    )


def _muse_glimmer(calls: Sequence[Call]) -> str:
    write = _invoke("atem:function_calls", "atem:")
    return "".join(f"<|start|>assistant to={call[0]}<|message|>{write([call])}<|eom|>" for call in calls)


def _inkling(calls: Sequence[Call]) -> str:
    return "".join(
        f"<|message_model|>{name}<|content_invoke_tool_json|>"
        f"{_json({'name': name, 'args': arguments})}<|end_message|>"
        for name, arguments in calls
    )


def _k2_horizon(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        members = "".join(
            f"<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_value>{_plain(value)}</ifm|arg_value>"
            for key, value in arguments.items()
        )
        return f"<ifm|tool_call>{name}{members}</ifm|tool_call>"

    return f"<ifm|tool_calls>{''.join(one(*call) for call in calls)}</ifm|tool_calls>"


_K3_TYPES = {str: "string", bool: "boolean", list: "array", dict: "object"}


def _kimi_k3(calls: Sequence[Call]) -> str:
    def one(index: int, name: str, arguments: dict[str, Any]) -> str:
        members = "".join(
            f'<|open|>argument key="{key}" type="{_K3_TYPES.get(type(value), "number")}"<|sep|>'
            f"{_plain(value)}<|close|>argument<|sep|>"
            for key, value in arguments.items()
        )
        return f'<|open|>call tool="{name}" index="{index}"<|sep|>{members}<|close|>call<|sep|>'

    inner = "".join(one(i, *call) for i, call in enumerate(calls, 1))
    return f"<|open|>tools<|sep|>{inner}<|close|>tools<|sep|>"


FURTHER_FORMATS = (
    Format(
        "gpt_oss",
        _harmony,
        (
            "<|start|>",
            "<|start|>assistant",
            "<|channel|>",
            "<|channel|>analysis",
            "<|channel|>final",
            "<|channel|>commentary to=functions.f ",
            " to=f",
            "<|constrain|>json",
            "<|message|>",
            "<|end|>",
            "<|call|>",
            "<|return|>",
            *JSON_MARKS,
        ),
        (
            "<|channel|>commentary to=functions.x <|constrain|>json<|message|>{a}<|call|>",
            "<|channel|>commentary to=functions.x<|message|>print(1)<|call|>",
        ),
        think=("<|channel|>analysis<|message|>", "<|end|>"),
    ),
    _invoke_format("deepseek_v3_2", "｜DSML｜function_calls", "｜DSML｜"),
    _invoke_format("deepseek_v4", "｜DSML｜tool_calls", "｜DSML｜"),
    _invoke_format("minimax_m2", "minimax:tool_call"),
    Format(
        "minimax_m3",
        _minimax_m3,
        (
            "]<]minimax[>[<tool_call>",
            "]<]minimax[>[</tool_call>",
            ']<]minimax[>[<invoke name="f">',
            "]<]minimax[>[</invoke>",
            "]<]minimax[>[<text>",
            "]<]minimax[>[</text>",
            "]<]minimax[>[<item>",
            "]<]minimax[>[",
        ),
        (
            ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="x">junk'
            "]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
            ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="x">]<]minimax[>[<a>1]<]minimax[>[</b>'
            "]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
        ),
        think=("<mm:think>", "</mm:think>"),
        escapes=False,
    ),
    Format(
        "gemma4",
        _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
        (
            "<|tool_call>",
            "<tool_call|>",
            '<|"|>',
            "call:",
            "call:f{",
            "text:",
            "{",
            "}",
            "[",
            "]",
            ",",
            "1",
            "true",
        ),
        (
            "<|tool_call>call:x{a:bare}<tool_call|>",
            "<|tool_call>call:x junk<tool_call|>",
            "<|tool_call>call:x{a:1} junk<tool_call|>",
            "<|tool_call>call:x{a:[1}<tool_call|>",
        ),
        think=("<|channel>thought", "<channel|>"),
        escapes=False,
    ),
    Format(
        "functiongemma",
        _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
        (
            "<start_function_call>",
            "<end_function_call>",
            "<escape>",
            "call:f{",
            "text:",
            "{",
            "}",
            "]",
            ",",
            "1",
        ),
        ("<start_function_call>call:x{a:bare}<end_function_call>",),
        escapes=False,
    ),
    Format(
        "olmo3",
        _python("<function_calls>", "\n", "</function_calls>"),
        ("<function_calls>", "</function_calls>", "f(", "text=", "'", '"', ",", ")", "\\", "1", "\n", "["),
        ("<function_calls>x(1)</function_calls>", "<function_calls>x(a=b)</function_calls>"),
    ),
    Format(
        "lfm2",
        _python("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
        (
            "<|tool_call_start|>",
            "<|tool_call_end|>",
            "[",
            "f(",
            "text=",
            "'",
            ",",
            ")",
            "]",
            "\\",
            "1",
            "{",
            '"',
        ),
        ("<|tool_call_start|>[x(1)]<|tool_call_end|>", "<|tool_call_start|>[x(a='b' c)]<|tool_call_end|>"),
    ),
    Format(
        "llama4_pythonic",
        _python("<|python_start|>[", ", ", "]<|python_end|>"),
        ("<|python_start|>", "<|python_end|>", "[", "f(", "text=", "'", ",", ")", "]", "\\", "1", "{", '"'),
        ("<|python_start|>[x(1)]<|python_end|>",),
    ),
    _list_format("granite", "<|tool_call|>", ""),
    _list_format("phi4_mini", "functools", ""),
    _list_format("jamba", "<tool_calls>", "</tool_calls>"),
    _list_format("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
    _list_format(
        "cohere",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        "tool_name",
    ),
    Format(
        "internlm",
        _each("<|action_start|><|plugin|>\n", "\n<|action_end|>"),
        ("<|action_start|><|plugin|>", "<|action_end|>", *JSON_MARKS),
        ('<|action_start|><|plugin|>{"name": x}<|action_end|>', "<|action_start|><|plugin|>{}<|action_end|>"),
    ),
    Format(
        "granite_20b_fc",
        _each("<function_call> ", ""),
        ("<function_call>", *JSON_MARKS),
        ('<function_call> {"name": x}', "<function_call> {}"),
    ),
    Format(
        "apertus",
        _apertus,
        ("<|tools_prefix|>", "<|tools_suffix|>", '{"f": {}}', *JSON_MARKS),
        ('<|tools_prefix|>[{"x": {a}}]<|tools_suffix|>', '<|tools_prefix|>[{"x": 1}]<|tools_suffix|>'),
        think=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    Format(
        "hy_v3",
        _hunyuan_v3,
        (
            "<tool_calls>",
            "</tool_calls>",
            "<tool_call>",
            "f<tool_sep>",
            "</tool_call>",
            "<arg_key>text</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
        (
            "<tool_calls><tool_call>x<tool_sep>junk</tool_call></tool_calls>",
            "<tool_calls><tool_call>x</tool_call></tool_calls>",
        ),
        escapes=False,
    ),
    Format(
        "hunyuan",
        _hunyuan,
        ("<tool_calls>", "</tool_calls>", "<tool_call>", "f\n```json\n", "```", "</tool_call>", *JSON_MARKS),
        ("<tool_calls><tool_call>x\n```json\n{a}\n```</tool_call></tool_calls>",),
    ),
    Format(
        "minicpm5",
        _minicpm5,
        (
            '<function name="f">',
            "<function",
            "</function>",
            '<param name="text">',
            "</param>",
            "<![CDATA[",
            "]]>",
            "\n",
            "x",
        ),
        (
            '<function name="x">junk</function>',
            '<function name="x"><param>1</param></function>',
            '<function name="x"><param name="a">1</param><param name="a">2</param></function>',
        ),
        escapes=False,
    ),
    Format(
        "muse_glimmer",
        _muse_glimmer,
        (
            "<|start|>assistant to=f<|message|>",
            "<|start|>",
            " to=f<|message|>",
            "<|message|>",
            "<|eom|>",
            "<|eot|>",
            "<atem:function_calls>",
            "</atem:function_calls>",
            '<atem:invoke name="f">',
            "</atem:invoke>",
            '<atem:parameter name="text">',
            "</atem:parameter>",
        ),
        (
            "<|start|>assistant to=x<|message|>junk<|eom|>",
            '<|start|>assistant to=x<|message|><atem:function_calls><atem:invoke name="x">junk</atem:invoke>'
            "</atem:function_calls><|eom|>",
        ),
        think=("<|start|>assistant to=self<|message|>", "<|eom|>"),
        escapes=False,
    ),
    Format(
        "inkling",
        _inkling,
        (
            "<|message_model|>",
            "<|content_invoke_tool_json|>",
            "<|content_invoke_tool_text|>",
            "<|content_text|>",
            "<|end_message|>",
            '{"name": "f", "args": {}}',
            *JSON_MARKS,
        ),
        (
            '<|message_model|>x<|content_invoke_tool_json|>{"name": "x", a}<|end_message|>',
            '<|message_model|>x<|content_invoke_tool_json|>{"args": {}}<|end_message|>',
            "<|message_model|>x<|content_invoke_tool_json|>print(1)<|end_message|>",
            "<|message_model|><|content_invoke_tool_text|>x<|end_message|>",
        ),
        think=("<|message_model|><|content_thinking|>", "<|end_message|>"),
    ),
    Format(
        "k2_horizon",
        _k2_horizon,
        (
            "<ifm|tool_calls>",
            "</ifm|tool_calls>",
            "<ifm|tool_call>",
            "</ifm|tool_call>",
            "<ifm|arg_key>text</ifm|arg_key>",
            "<ifm|arg_type>string</ifm|arg_type>",
            "<ifm|arg_value>",
            "</ifm|arg_value>",
            *JSON_MARKS[:3],
            "f",
        ),
        (
            "<ifm|tool_call>x<ifm|arg_key>a</ifm|arg_key></ifm|tool_call>",
            '<ifm|tool_call>{"name": "x", a}</ifm|tool_call>',
        ),
        think=("<ifm|think>", "</ifm|think>"),
        escapes=False,
    ),
    Format(
        "kimi_k3",
        _kimi_k3,
        (
            "<|open|>tools<|sep|>",
            "<|close|>tools<|sep|>",
            '<|open|>call tool="f" index="1"<|sep|>',
            "<|open|>call ",
            "<|close|>call<|sep|>",
            '<|open|>argument key="text" type="string"<|sep|>',
            "<|close|>argument<|sep|>",
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|open|>",
        ),
        (
            '<|open|>tools<|sep|><|open|>call tool="x"<|sep|>junk<|close|>call<|sep|><|close|>tools<|sep|>',
            "<|open|>tools<|sep|>junk<|close|>tools<|sep|>",
        ),
        think=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        escapes=False,
    ),
    _invoke_format("dots", "dots_function_call"),
)
