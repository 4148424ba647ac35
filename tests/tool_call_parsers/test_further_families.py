"""The families beyond those of Hermes Agent: the rules on every cut."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from environments.tool_call_parsers import get_parser


def calls_of(result: Any) -> list[tuple[str, str]]:
    """Names and arguments, types included."""
    return [
        (call.function.name, json.dumps(json.loads(call.function.arguments), sort_keys=True))
        for call in result.tool_calls or []
    ]


SAMPLES = {
    "gpt_oss": (
        "<|channel|>analysis<|message|>Hm <|call|> no<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.f <|constrain|>json<|message|>{"a": "<|call|>\\n"}<|call|><|start|>assistant'
        ' to=functions.g<|channel|>commentary json<|message|>{"b": [1, {"c": null}]}<|call|>'
    ),
    "deepseek_v3_2": (
        'Yes.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">'
        ' x </｜DSML｜parameter>\n<｜DSML｜parameter name="b" string="false">[1]</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    ),
    "minimax_m2": (
        'So:\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="a"> x\n</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>'
    ),
    "step3": (
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="f"><steptml:parameter name="a">x</steptml:parameter></steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>"
    ),
    "gemma4": (
        '<|channel>thought\nhm<channel|>So <|tool_call>call:f{a:<|"|>}]{<|"|>,b:[1,{c d:null}]}<tool_call|>'
        "<|tool_call>call:g{}<tool_call|>"
    ),
    "llama4_pythonic": "<|python_start|>[f(a='x)]', b=[1, {'c': None}]), g()]<|python_end|>",
    "olmo3": 'Well <function_calls>f(a="x\\n", b=[1, null])\ng()</function_calls>',
    "lfm2": "<|tool_call_start|>[f(a='x', b={\"c\": true}), g()]<|tool_call_end|>done",
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"a": "]}"}}, {"name": "g", "arguments": {}}]',
    "jamba": '<tool_calls>[{"name": "f", "arguments": {"a": "</tool_calls>"}}, {"name": "g"}]</tool_calls>',
    "internlm": '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"a": "x"}}\n<|action_end|>',
    "apertus": '<|tools_prefix|>[{"f": {"a": "x"}}, {"g": {}}]<|tools_suffix|>',
    "xlam": '<think>hm</think>[{"name": "f", "arguments": {"a": "x"}}, {"name": "g", "arguments": {}}]',
    "hy_v3": (
        "<think:opensource></think:opensource><tool_calls:opensource>\n<tool_call:opensource>f"
        "<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n"
        "<arg_value:opensource>x</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"
    ),
    "hunyuan": '<tool_calls><tool_call>f\n```json\n{"a": "```"}\n```</tool_call></tool_calls>',
    "minicpm5": (
        'So:\n<function name="f"><param name="a"><![CDATA[x</param>\n]]></param><param name="b">[1]</param>'
        '</function>\n<function name="g"></function>'
    ),
    "muse_glimmer": (
        " to=self<|message|>hm<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n"
        '<atem:invoke name="f">\n<atem:parameter name="a"> x\n</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eom|><|start|>assistant to=g<|message|><atem:function_calls>\n"
        '<atem:invoke name="g">\n</atem:invoke>\n</atem:function_calls><|eot|>'
    ),
    "k2_horizon": (
        "<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>a</ifm|arg_key><ifm|arg_type>string</ifm|arg_type>"
        "<ifm|arg_value>1</ifm|arg_value></ifm|tool_call>"
        '<ifm|tool_call>{"name": "g", "arguments": {}}</ifm|tool_call></ifm|tool_calls>'
    ),
    "inkling": (
        "<|message_model|><|content_thinking|>hm<|end_message|><|message_model|>f<|content_invoke_tool_json|>"
        '{"name": "f", "args": {"a": "<|end_message|>"}}<|end_message|>'
        "<|message_model|>g<|content_invoke_tool_text|>x<|end_message|>"
    ),
    "kimi_k3": (
        "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>So<|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="a&amp;&quot;" type="string"<|sep|>x'
        "<|close|>argument<|sep|><|close|>call<|sep|>"
        '<|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    ),
    "dots": (
        '<dots_function_call><invoke name="f"><parameter name="a">x</parameter></invoke></dots_function_call>'
        '<dots_function_call>{"name": "g", "arguments": {}}</dots_function_call>'
    ),
    "seed_oss": (
        "<seed:tool_call>\n<function=f>\n<parameter=a>x\n</parameter>\n</function>\n</seed:tool_call>"
    ),
}
"""Replies with every part of a family's grammar."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_reply_that_is_cut_anywhere_never_gives_another_call(name: str) -> None:
    text, parser = SAMPLES[name], get_parser(name)
    whole = calls_of(parser.parse(text))
    assert [call for call, _ in whole] in (["f"], ["f", "g"])
    for end in range(len(text)):
        for finished in (True, False):
            result = parser.parse(text[:end], finished=finished)
            assert calls_of(result) == whole[: len(result.tool_calls or [])]


@pytest.mark.parametrize("name", SAMPLES)
def test_spans_are_in_order_and_hold_what_they_say(name: str) -> None:
    text, parser = SAMPLES[name] + " tail", get_parser(name)
    for end in range(len(text)):
        position = 0
        for attempt in parser.parse(text[:end]).attempts:
            assert position <= attempt.span[0] < attempt.span[1] <= end
            assert attempt.raw == text[slice(*attempt.span)]
            position = attempt.span[1]


BROKEN_BESIDE_GOOD = {
    "gpt_oss": (
        "<|channel|>commentary to=functions.f<|message|>{a: 1}<|call|><|start|>assistant"
        "<|channel|>commentary to=functions.g<|message|>{}<|call|>"
    ),
    "deepseek_v4": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">junk</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    ),
    "minimax_m2": (
        '<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter>junk</invoke>'
        '<invoke name="g"></invoke></minimax:tool_call>'
    ),
    "gemma4": "<|tool_call>call:f{a:bare words}<tool_call|><|tool_call>call:g{}<tool_call|>",
    "granite": '<|tool_call|>[{"name": "f", "arguments": {a: 1}}, {"name": "g", "arguments": {}}]',
    "jamba": '<tool_calls>[{"arguments": {}}, {"name": "g"}]</tool_calls>',
    "lfm2": "<|tool_call_start|>[f(1)]<|tool_call_end|> <|tool_call_start|>[g()]<|tool_call_end|>",
    "olmo3": "<function_calls>f(1)</function_calls><function_calls>g()</function_calls>",
    "apertus": '<|tools_prefix|>[{"f": 1}, {"g": {}}]<|tools_suffix|>',
    "internlm": (
        '<|action_start|><|plugin|>{"name": f}<|action_end|>'
        '<|action_start|><|plugin|>{"name": "g"}<|action_end|>'
    ),
    "minicpm5": '<function name="f">junk</function>\n<function name="g"></function>',
    "muse_glimmer": (
        "<|start|>assistant to=f<|message|>f()<|eom|><|start|>assistant to=g<|message|>"
        '<atem:function_calls><atem:invoke name="g"></atem:invoke></atem:function_calls>'
    ),
    "k2_horizon": (
        "<ifm|tool_calls><ifm|tool_call>f junk<ifm|arg_key>a</ifm|tool_call><ifm|tool_call>g</ifm|tool_call>"
        "</ifm|tool_calls>"
    ),
    "inkling": (
        '<|message_model|><|content_invoke_tool_json|>{"name": f}<|end_message|>'
        '<|message_model|><|content_invoke_tool_json|>{"name": "g"}<|end_message|>'
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="f"<|sep|>junk<|close|>call<|sep|>'
        '<|open|>call tool="g"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    ),
    "dots": (
        '<dots_function_call><invoke name="f">junk</invoke><invoke name="g"></invoke></dots_function_call>'
    ),
    "hy_v3": (
        "<tool_calls><tool_call>f<tool_sep>junk</tool_call><tool_call>g<tool_sep></tool_call></tool_calls>"
    ),
}


@pytest.mark.parametrize("name", BROKEN_BESIDE_GOOD)
def test_a_good_call_beside_a_broken_one_survives(name: str) -> None:
    result = get_parser(name).parse(BROKEN_BESIDE_GOOD[name])
    assert calls_of(result) == [("g", "{}")]
    assert len(result.problems) == 1
    assert "f" in (result.content or "") or name == "jamba"


INSIDE_A_BROKEN_STRING = {
    "gpt_oss": '<|channel|>commentary to=functions.f<|message|>{{"a": "x {} <|call|>',
    "granite": '<|tool_call|>[{{"name": "f", "arguments": {{"a": "x {} ',
    "gemma4": '<|tool_call>call:f{{a:<|"|>x {} ',
    "lfm2": '<|tool_call_start|>[f(a="""x {} ',
}


@pytest.mark.parametrize("name", INSIDE_A_BROKEN_STRING)
def test_a_call_inside_a_string_without_end_is_no_call(name: str) -> None:
    inner = BROKEN_BESIDE_GOOD[name].replace('"', '\\"') if name in ("gpt_oss", "granite") else ""
    text = INSIDE_A_BROKEN_STRING[name].format(inner)
    result = get_parser(name).parse(text, finished=False)
    assert (result.tool_calls, len(result.problems)) == (None, 1)


def cpu_seconds(name: str, text: str) -> float:
    """What parsing costs."""
    parser, start = get_parser(name), time.process_time()
    parser.parse(text)
    return time.process_time() - start


@pytest.mark.parametrize("name", SAMPLES)
def test_no_repetition_costs_more_than_linear_time(name: str) -> None:
    text = SAMPLES[name]
    for piece in (text[:12], text[: len(text) // 2], text[:-1]):
        short, long = (cpu_seconds(name, piece * (size // len(piece))) for size in (20_000, 160_000))
        assert long < 30 * short + 1.0, piece  # linear is 8, quadratic 64


@pytest.mark.parametrize("name", ["gpt_oss", "gemma4", "granite", "deepseek_v4", "lfm2"])
def test_deep_nesting_is_refused_and_no_error(name: str) -> None:
    before = {
        "gpt_oss": "<|channel|>commentary to=functions.f<|message|>",
        "gemma4": "<|tool_call>call:f{a:",
        "granite": '<|tool_call|>[{"name": "f", "arguments": ',
        "deepseek_v4": (
            '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="false">'
        ),
        "lfm2": "<|tool_call_start|>[f(a=",
    }
    for opening in ("[", '{"a":', "{a:"):
        assert get_parser(name).parse(before[name] + opening * 100_000).tool_calls is None


def test_harmony_says_what_each_message_is() -> None:
    result = get_parser("gpt_oss").parse(
        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
        "<|end|><|start|>assistant<|channel|>analysis to=functions.f<|message|>{}<|call|>"
    )
    assert (result.reasoning, result.reasoning_closed, result.content) == ("think", True, "I look.")
    assert calls_of(result) == [("f", "{}")]


def test_harmony_goes_on_where_the_template_stopped() -> None:
    parser = get_parser("gpt_oss")
    final = parser.parse("Hello<|return|>", generation_prompt="<|start|>assistant<|channel|>final<|message|>")
    assert (final.content, final.tool_calls) == ("Hello", None)
    call = parser.parse(
        " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        generation_prompt="<|start|>assistant",
    )
    assert calls_of(call) == [("f", "{}")]


def test_a_list_in_prose_is_no_call() -> None:
    for name in ("llama4_pythonic", "xlam"):
        for text in (
            "Try [f(a=1)] or not.",
            'As JSON: [{"name": "f", "arguments": {}}]',
            "[1, 2, 3]",
            "[f(x)]",
        ):
            assert get_parser(name).parse(text).tool_calls is None


def test_a_list_that_is_the_whole_reply_counts_only_when_the_reply_is_over() -> None:
    for name, text in (("llama4_pythonic", "[f(a=1)]"), ("xlam", '[{"name": "f", "arguments": {"a": 1}}]')):
        assert calls_of(get_parser(name).parse(text)) == [("f", '{"a": 1}')]
        cut = get_parser(name).parse(text, finished=False)
        assert (cut.tool_calls, cut.content, len(cut.problems)) == (None, text, 1)


def test_a_call_in_a_python_string_without_end_is_no_call() -> None:
    inner = "<function_calls>f(text='x')</function_calls>"
    result = get_parser("olmo3").parse(f'<function_calls>g(text="{inner}')
    assert (result.tool_calls, [attempt.status for attempt in result.attempts]) == (None, ["truncated"])


def test_the_schema_decides_before_the_markup_does() -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "u": {}}},
            },
        }
    ]
    text = "".join(
        f'<｜DSML｜parameter name="{key}" string="{is_string}">{value}</｜DSML｜parameter>'
        for key, is_string, value in (("s", "false", "1"), ("n", "true", "1"), ("u", "true", "1"))
    )
    result = get_parser("deepseek_v4").parse(
        f'<｜DSML｜tool_calls><｜DSML｜invoke name="f">{text}</｜DSML｜invoke></｜DSML｜tool_calls>',
        tools=tools,
    )
    assert calls_of(result) == [("f", '{"n": 1, "s": "1", "u": "1"}')]
