"""Calls written by a family's own chat template are read back as they were: 10,000 calls per family.

The table below says for each family what its format cannot carry; everything else is generated, the
markers of all formats inside of arguments included. Templates of Granite 3, Phi-4 mini, ERNIE 4.5,
Hunyuan A13B and Llama 4 write no calls, or none that could be read back, so these formats are not here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
from integration.generated_calls import DEFAULT_NAMES, Arguments, Generator, keys, strings, tools
from jinja2.ext import Extension
from jinja2.sandbox import SandboxedEnvironment

from environments.tool_call_parsers import get_parser

pytestmark = pytest.mark.integration

CALLS = 10_000
USER = "What do you make of it?"
Limit = tuple[str, Callable[[Arguments], bool]]


def holds(pattern: str, what: str) -> Limit:
    """A limit: no string may match ``pattern``."""
    expression = re.compile(pattern)
    return what, lambda arguments: any(expression.search(text) for text in strings(list(arguments.values())))


def value_holds(pattern: str, what: str) -> Limit:
    """A limit: no argument that is itself a string may match ``pattern``."""
    expression = re.compile(pattern)
    return what, lambda a: any(expression.search(v) for v in a.values() if isinstance(v, str))


def key_holds(pattern: str, what: str) -> Limit:
    """A limit: no key inside an argument may match ``pattern``."""
    expression = re.compile(pattern)
    return what, lambda arguments: any(expression.search(k) for v in arguments.values() for k in keys(v))


@dataclass(frozen=True)
class Family:
    """A parser, the template that writes its format, and what stands before the sampled text."""

    parser: str
    template: str
    header: str
    cannot: tuple[Limit, ...] = ()
    per_turn: int = 20
    content: bool = True
    names: tuple[str, ...] = DEFAULT_NAMES
    call_id: Callable[[str, int], str] = field(default=lambda name, index: f"{index:09d}")
    arguments_as_text: bool = False

    @property
    def label(self) -> str:
        """For the test's name."""
        return f"{self.parser}-{self.template}"


FORGOTTEN = "the opening of another parameter: the closing tag before it may have been forgotten"
AMBIGUOUS = "a closing tag with something behind it that may follow it: nothing is escaped"


def tags(parameter: str, value_end: str, call: str, call_end: str, block_end: str) -> tuple[Limit, ...]:
    """What formats with unescaped values between tags cannot tell from the end of a value."""
    return (
        holds(parameter, FORGOTTEN),
        holds(rf"{value_end}\s*(?:{parameter}|{call_end}|{block_end})", AMBIGUOUS),
        holds(rf"{call_end}\s*(?:{call}|{block_end})", AMBIGUOUS),
    )


FUNCTION_TAGS = tags(
    r"<parameter=\w+>", "</parameter>", r"<function=\w+>", "</function>", "</(?:seed:)?tool_call>"
)
KEY_VALUE_TAGS = tags(
    r"<arg_key>\w+</arg_key>\s*<arg_value>", "</arg_value>", "<tool_call>", "</tool_call>", "</tool_calls>"
)
INVOKE_TAGS = tags(
    r'<parameter name="\w+">', "</parameter>", '<invoke name="', "</invoke>", "</minimax:tool_call>"
)
DSML_TAGS = tags(
    "<｜DSML｜parameter", "</｜DSML｜parameter>", "<｜DSML｜invoke", "</｜DSML｜invoke>", "</｜DSML｜"
)
CDATA = (holds(r"\]\]></param>\s*(?:<param name=|</function>)", AMBIGUOUS),)
GEMMA_KEYS = key_holds(r"^$|[:{}<]", "keys that are empty or hold ':', braces or '<': keys stand bare")

CHATML = "<|im_start|>assistant\n"


def kimi_id(name: str, index: int) -> str:
    return f"functions.{name}:{index}"


FAMILIES = (
    Family("hermes", "NousResearch-Hermes-4-14B", CHATML),
    Family("exaone4", "LGAI-EXAONE-EXAONE-4.0-32B", "[|assistant|]\n"),
    Family("granite4", "ibm-granite-granite-4.0", "<|start_of_role|>assistant<|end_of_role|>"),
    Family("qwen", "Qwen-Qwen2.5-7B-Instruct", CHATML),
    Family("qwen", "Qwen-Qwen3-0.6B", CHATML),
    Family("mistral", "mistralai-Mistral-Nemo-Instruct-2407", "[/INST]", content=False),
    Family("mistral", "Mistral-Small-3.2-24B-Instruct-2506", "[/INST]", content=False),
    Family("mistral", "mistralai-Devstral-2-123B-Instruct-2512", "[/INST]"),
    Family(
        "llama3_json",
        "meta-llama-Llama-3.1-8B-Instruct",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        per_turn=1,
        content=False,
    ),
    Family(
        "deepseek_v3",
        "trl-internal-testing-tiny-DeepseekV3ForCausalLM-0528",
        "<｜Assistant｜>",
        arguments_as_text=True,
    ),
    Family("deepseek_v3_1", "deepseek-ai-DeepSeek-V3.1", "<｜Assistant｜>"),
    Family("kimi_k2", "moonshotai-Kimi-K2-Instruct-0905", "<|im_middle|>", call_id=kimi_id),
    Family("kimi_k2", "moonshotai-Kimi-K2.7-Code", "<|im_middle|>", call_id=kimi_id),
    Family("longcat", "meituan-longcat-LongCat-Flash-Chat", " ASSISTANT:"),
    Family("longcat", "meituan-longcat-LongCat-2.0", "<longcat_assistant>"),
    Family("qwen3_coder", "Qwen-Qwen3-Coder-30B-A3B-Instruct", CHATML, FUNCTION_TAGS),
    Family("qwen3_5", "Qwen3.5-4B", CHATML, FUNCTION_TAGS),
    Family("qwen3_5", "Qwen-Qwen3.6-35B-A3B", CHATML, FUNCTION_TAGS),
    Family("nemotron3", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", CHATML, FUNCTION_TAGS),
    Family("step3p5", "StepFun3.5-Flash", CHATML, FUNCTION_TAGS),
    Family("mimo", "XiaomiMiMo-MiMo-V2.5", CHATML, FUNCTION_TAGS),
    Family("seed_oss", "ByteDance-Seed-OSS", "<seed:bos>assistant\n", FUNCTION_TAGS),
    Family("glm45", "GLM-4.6", "<|assistant|>", KEY_VALUE_TAGS),
    Family("glm47", "GLM-4.7-Flash", "<|assistant|>", KEY_VALUE_TAGS),
    Family("glm5", "zai-org-GLM-5", "<|assistant|>", KEY_VALUE_TAGS),
    Family("glm5", "zai-org-GLM-5.2", "<|assistant|>", KEY_VALUE_TAGS),
    Family("poolside", "poolside-Laguna-S-2.1", "<assistant>", KEY_VALUE_TAGS),
    Family("hy_v3", "tencent-Hy3-preview", "<｜hy_Assistant｜>", KEY_VALUE_TAGS),
    Family("hy_v3", "tencent-Hy3", "<｜hy_Assistant:opensource｜>"),
    Family("hunyuan", "tencent-Hunyuan-7B-Pretrain", "<|extra_0|>"),
    Family("deepseek_v3_2", "deepseek-ai-DeepSeek-V3.2", "<｜Assistant｜>", DSML_TAGS),
    Family("deepseek_v4", "deepseek-ai-DeepSeek-V4", "<｜Assistant｜>", DSML_TAGS),
    Family("minimax_m2", "MiniMaxAI-MiniMax-M2.7", "]~b]ai\n", INVOKE_TAGS),
    Family(
        "minimax_m3",
        "MiniMaxAI-MiniMax-M3-MXFP8",
        "]~b]ai\n",
        (
            ("nulls: the template leaves them out", lambda a: "nothing" in a),
            (
                "types of values inside lists and objects, which this schema does not give",
                lambda a: bool(a.get("items") or a.get("options")),
            ),
        ),
    ),
    Family("step3", "stepfun-ai-step3", "<|BOT|>assistant\n"),
    Family("gpt_oss", "openai-gpt-oss-120b", "<|start|>assistant", per_turn=1, content=False),
    Family(
        "gemma4",
        "google-gemma-4-E4B-it",
        "<|turn>model\n",
        (GEMMA_KEYS, holds(r'<\|"\|>', "the marker around strings")),
        content=False,
    ),
    Family(
        "functiongemma",
        "unsloth-functiongemma-270m-it",
        "<start_of_turn>model\n",
        (GEMMA_KEYS, holds("<escape>", "the marker around strings")),
    ),
    Family("minicpm5", "openbmb-MiniCPM5-1B", CHATML, CDATA),
    Family("minicpm5", "openbmb-MiniCPM-SALA", CHATML, CDATA),
    Family("olmo3", "allenai-Olmo-3-7B-Instruct", CHATML),
    Family(
        "lfm2",
        "LFM2.5-8B-A1B",
        CHATML,
        (value_holds(r"['\\]", "quotes and backslashes in an argument: the template writes it as it is"),),
    ),
    Family("jamba", "ai21labs-Jamba-tiny-dev", "<|assistant|>"),
    Family(
        "nemotron",
        "nvidia-Llama-3_3-Nemotron-Super-49B-v1_5",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    Family("internlm", "internlm-Intern-S1-mini", CHATML),
    Family("gigachat3", "GigaChat3.1-10B-A1.8B", "assistant<|role_sep|>\n", per_turn=1),
    Family("apertus", "Apertus-8B-Instruct", "<|assistant_start|>"),
    Family("cohere", "CohereLabs-command-a-plus-05-2026-w4a4", "<|CHATBOT_TOKEN|>", content=False),
    Family("xlam", "Salesforce-xLAM-2-32b-fc-r", CHATML, content=False),
)


def templates() -> Path:
    """The collection of chat templates."""
    directory = os.environ.get("HERMES_TEST_TOKENIZERS")
    if not directory:
        pytest.skip("HERMES_TEST_TOKENIZERS is not set; .ci/fetch_tokenizers.sh fetches what it names")
    return Path(directory) / "templates"


class _Generation(Extension):
    """The tag that marks assistant text; it changes nothing here."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache
def environment() -> SandboxedEnvironment:
    """Jinja as chat templates expect it."""

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    made = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda layout: "2026-01-01"
    return made


def sampled_text(family: Family, template: jinja2.Template, message: dict[str, Any]) -> str:
    """What a model would have sampled for ``message``, stop token included."""
    rendered = template.render(
        messages=[{"role": "user", "content": USER}, message],
        tools=tools(family.names),
        bos_token="",
        eos_token="",
        add_generation_prompt=False,
    )
    turn = rendered.partition(USER)[2]
    _, header, text = turn.partition(family.header)
    assert header, f"no {family.header!r} in {turn[:200]!r}"
    return text.rstrip("\n")  # line breaks behind the stop token are the template's


def sorted_json(calls: list[tuple[str, Arguments]]) -> str:
    """A text that is equal exactly where the calls are, types included."""
    return json.dumps(calls, sort_keys=True, ensure_ascii=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.label)
def test_calls_come_back_as_the_template_wrote_them(family: Family) -> None:
    template = environment().from_string(
        (templates() / f"{family.template}.jinja").read_text(encoding="utf-8")
    )
    parser = get_parser(family.parser)
    offered = tools(family.names)
    generator = Generator(family.label, family.names, lambda a: not any(test(a) for _, test in family.cannot))
    done = 0
    while done < CALLS:
        calls = [generator.call() for _ in range(family.per_turn)]
        done += len(calls)
        content = generator.content() if family.content else ""
        text = sampled_text(family, template, message_of(family, calls, content))
        result = parser.parse(text, tools=offered)
        found = [(c.function.name, json.loads(c.function.arguments)) for c in result.tool_calls or []]
        assert sorted_json(found) == sorted_json(calls), text
        assert (result.content or "").strip() == content.strip(), text
        assert result.problems == []
    assert generator.refused < 2 * done


def message_of(family: Family, calls: list[tuple[str, Arguments]], content: str) -> dict[str, Any]:
    """An assistant message with these calls."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": family.call_id(name, index),
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": json.dumps(arguments) if family.arguments_as_text else arguments,
                },
            }
            for index, (name, arguments) in enumerate(calls)
        ],
    }


TOKENIZERS = {
    "qwen3": "Qwen-Qwen3-0.6B",
    "qwen3_coder": "Qwen-Qwen3-Coder-30B-A3B-Instruct",
    "qwen3_5": "Qwen3.5-4B",
    "llama3_1": "meta-llama-Llama-3.1-8B-Instruct",
    "deepseek_v3": "trl-internal-testing-tiny-DeepseekV3ForCausalLM-0528",
    "deepseek_v4": "deepseek-ai-DeepSeek-V4",
    "mistral_nemo": "mistralai-Mistral-Nemo-Instruct-2407",
    "mistral_small_3_2": "Mistral-Small-3.2-24B-Instruct-2506",
    "gpt_oss": "openai-gpt-oss-120b",
    "glm4_7": "GLM-4.7-Flash",
    "glm5": "zai-org-GLM-5",
    "kimi_k2": "moonshotai-Kimi-K2-Instruct-0905",
}
"""Real tokenizers, and the template of each."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_give_the_same_calls_as_their_text(name: str) -> None:
    family, template, tokenizer = with_tokenizer(name)
    generator = Generator(family.label, family.names, lambda a: not any(test(a) for _, test in family.cannot))
    parser, offered, compared = get_parser(family.parser), tools(family.names), 0
    for _ in range(1000 // family.per_turn):
        calls = [generator.call() for _ in range(family.per_turn)]
        text = sampled_text(family, template, message_of(family, calls, ""))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if tokenizer.decode(ids, skip_special_tokens=False) != text:
            continue  # some tokenizers normalise, so that no tokens give this text
        result = parser.parse_tokens(ids, tokenizer, tools=offered)
        found = [(c.function.name, json.loads(c.function.arguments)) for c in result.tool_calls or []]
        assert sorted_json(found) == sorted_json(calls), text
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("name", TOKENIZERS)
def test_markers_that_were_spelled_out_are_text(name: str) -> None:
    family, template, tokenizer = with_tokenizer(name)
    parser, offered = get_parser(family.parser), tools(family.names)
    marks = [
        mark for mark in (*parser.markers, "<think>", "</think>") if tokenizer.token_to_id(mark) is not None
    ]
    for mark in marks:
        calls: list[tuple[str, Arguments]] = [("web_search", {"text": "before PLACE after", "flag": True})]
        before, _, after = sampled_text(family, template, message_of(family, calls, "")).partition("PLACE")
        spelled = [i for letter in mark for i in tokenizer.encode(letter, add_special_tokens=False).ids]
        ids = [
            *tokenizer.encode(before, add_special_tokens=False).ids,
            *spelled,
            *tokenizer.encode(after, add_special_tokens=False).ids,
        ]
        result = parser.parse_tokens(ids, tokenizer, tools=offered)
        found = [(c.function.name, json.loads(c.function.arguments)) for c in result.tool_calls or []]
        assert found == [("web_search", {"text": f"before {mark} after", "flag": True})]


def with_tokenizer(name: str) -> tuple[Family, jinja2.Template, Any]:
    """A family with its template and its real tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    family = next(family for family in FAMILIES if family.template == TOKENIZERS[name])
    directory = templates()
    text = (directory / f"{family.template}.jinja").read_text(encoding="utf-8")
    return (
        family,
        environment().from_string(text),
        tokenizers.Tokenizer.from_file(str(directory.parent / name / "tokenizer.json")),
    )
