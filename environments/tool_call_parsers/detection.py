"""Recognising a family's format of tool calls in the text of its chat template.

A template writes the calls of earlier turns in the very format that the model is to write them in, so
the markers of the format stand in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Signs:
    """What must stand in a family's template: all of ``all_of``, and none of ``none_of``."""

    family: str
    all_of: tuple[str, ...]
    none_of: tuple[str, ...] = ()

    def fit(self, template: str) -> bool:
        return all(sign in template for sign in self.all_of) and not any(
            sign in template for sign in self.none_of
        )


_FAMILIES = (
    _Signs("longcat", ("<longcat_tool_call>",)),
    _Signs("seed_oss", ("<seed:tool_call>",)),
    _Signs("minimax_m3", ("]<]minimax[>[",)),
    _Signs("minimax_m2", ("<minimax:tool_call>", "<invoke name=")),
    _Signs("dots", ("<dots_function_call>",)),
    _Signs("k2_horizon", ("<ifm|tool_call>",)),
    _Signs("muse_glimmer", ("<atem:function_calls>",)),
    _Signs("inkling", ("<|content_invoke_tool_json|>",)),
    _Signs("minicpm5", ("<function name=", "<param name=")),
    _Signs("step3", ("steptml:invoke",)),
    _Signs("deepseek_v3_2", ("｜DSML｜", "function_calls")),
    _Signs("deepseek_v4", ("｜DSML｜", "tool_calls")),
    _Signs("hy_v3", ("tool_sep", "<arg_key")),
    _Signs("deepseek_v3", ("<｜tool▁sep｜>", "```json")),
    _Signs("deepseek_v3_1", ("<｜tool▁sep｜>",)),
    _Signs("kimi_k2", ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>")),
    _Signs("kimi_k3", ("<|open|>", "<|close|>", "<|sep|>", "tool=")),
    _Signs("gemma4", ("<|tool_call>", "call:")),
    _Signs("functiongemma", ("<start_function_call>",)),
    _Signs("gpt_oss", ("<|channel|>", "<|message|>", "functions.")),
    _Signs("mistral", ("[TOOL_CALLS]",)),
    _Signs("mimo", ("<tool_call>", "<function=", "<parameter=example_parameter_1>value_1")),
    _Signs("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    _Signs("poolside", ("<tool_call>", "<arg_key>", "<assistant>")),
    _Signs("glm45", ("<tool_call>", "<arg_key>")),
    _Signs("lfm2", ("<|tool_call_start|>",)),
    _Signs("lfm2", ("<|tool_list_start|>",)),
    _Signs("olmo3", ("<function_calls>",)),
    _Signs("nemotron", ("<TOOLCALL>",)),
    _Signs("apertus", ("<|tools_prefix|>",)),
    _Signs("cohere", ("<|START_ACTION|>",)),
    _Signs("internlm", ("<|action_start|>", "<|plugin|>")),
    _Signs("gigachat3", ("<|function_call|>",)),
    _Signs("gigachat3", ("function call<|role_sep|>",)),
    _Signs("granite", ("<|tool_call|>",)),
    _Signs("granite_20b_fc", ("<function_call>",), ("<tool_call>",)),
    _Signs("llama4_pythonic", ("<|python_start|>",)),
    _Signs("ernie45", ("<tool_call>", "<response>"), ("minimax",)),
    _Signs("exaone4", ("<tool_call>", "[|endofturn|]")),
    _Signs("granite4", ("<tool_call>", "<|start_of_role|>")),
    _Signs("hunyuan", ("<tool_calls>", "<tool_call>", "```json")),
    _Signs("hermes", ("<tool_call>", "name"), ("<tool_sep>", "<function=", "minimax")),
    _Signs("jamba", ("<tool_calls>",), ("<tool_call>",)),
    _Signs("phi4_mini", ("<|tool|>", "<|/tool|>")),
    _Signs("llama3_json", ("<|python_tag|>",), ("<function=",)),
    _Signs("llama3_json", ("<|start_header_id|>", '{"name": function name, "parameters"')),
)
"""The families, the more particular before those whose signs are among theirs."""


def detect_parser(chat_template: str) -> str | None:
    """The name of the parser for a model with this template, None where no known format shows."""
    return next((signs.family for signs in _FAMILIES if signs.fit(chat_template)), None)
