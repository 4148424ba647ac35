"""``auto`` knows a family by its chat template."""

from __future__ import annotations

import pytest

from environments.tool_call_parsers import get_parser
from environments.tool_call_parsers.detection import _FAMILIES, detect_parser

TEMPLATES = {
    "hermes": """{{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}""",
    "longcat": """{{ '<longcat_tool_call>\\n{"name": ' }}""",
    "mistral": "{{ '[TOOL_CALLS]' + name + '[ARGS]' }}",
    "llama3_json": """{{ '<|python_tag|>' }}{{ '{"name": "' }}{{ '"parameters": ' }}""",
    "qwen3_coder": "{{ '<tool_call>\\n<function=' + name + '>\\n' }}{{ '<parameter=' + key + '>\\n' }}",
    "deepseek_v3": "{{ '<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n' + '```json' }}",
    "deepseek_v3_1": "{{ '<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments }}",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
    "glm45": "{{ '\\n<tool_call>' + name }}<arg_key>{{ k }}</arg_key><arg_value>",
    "gpt_oss": "{{ '<|channel|>commentary to=functions.' + name + '<|message|>' }}",
    "minimax_m2": "{{ '<minimax:tool_call>' }}<invoke name=",
    "kimi_k3": "{{ '<|open|>call tool=\"' ~ name ~ '\"<|sep|>' }}<|close|>call<|sep|>",
    "k2_horizon": "{{ '<ifm|tool_calls><ifm|tool_call>' + name }}",
    "muse_glimmer": "{{ '<atem:function_calls>' }}",
    "inkling": "{{ '<|message_model|>' + name + '<|content_invoke_tool_json|>' }}",
    "minicpm5": "{{ '<function name=\"' ~ name ~ '\">' }}<param name=",
    "dots": "{{ '<dots_function_call>' }}<invoke name=",
    "gemma4": "{{ '<|tool_call>call:' + name + '{' }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_format_is_recognised(name: str) -> None:
    assert get_parser("auto", chat_template=TEMPLATES[name]).name == name


def test_every_family_that_can_be_detected_has_a_parser() -> None:
    for signs in _FAMILIES:
        assert get_parser(signs.family).name == signs.family


def test_a_template_without_calls() -> None:
    assert detect_parser("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}") is None
