"""Parsers by name. One line per family; a family's module is loaded when it is asked for."""

from __future__ import annotations

import importlib

from environments.errors import ConfigError, UnknownName
from environments.tool_call_parsers.base import ToolCallParser

_PACKAGE = "environments.tool_call_parsers"

_FAMILIES = {
    "apertus": "json_families:ApertusParser",
    "cohere": "json_families:CohereParser",
    "deepseek_v3": "deepseek_v3_parser:DeepseekV3Parser",
    "deepseek_v3_1": "deepseek_v3_1_parser:DeepseekV31Parser",
    "deepseek_v3_2": "invoke_parser:DSMLParser",
    "deepseek_v4": "invoke_parser:DSMLParser",
    "dots": "invoke_parser:DotsParser",
    "ernie45": "json_families:Ernie45Parser",
    "exaone4": "json_families:Exaone4Parser",
    "functiongemma": "gemma_parser:FunctionGemmaParser",
    "gemma4": "gemma_parser:Gemma4Parser",
    "gigachat3": "json_families:GigaChatParser",
    "glm45": "glm45_parser:Glm45Parser",
    "glm47": "glm47_parser:Glm47Parser",
    "glm5": "glm47_parser:Glm47Parser",
    "gpt_oss": "harmony_parser:HarmonyParser",
    "granite": "json_families:GraniteParser",
    "granite4": "json_families:Granite4Parser",
    "granite_20b_fc": "json_families:GraniteFunctionCallingParser",
    "hermes": "hermes_parser:HermesParser",
    "hunyuan": "tag_families:HunyuanParser",
    "hunyuan_a13b": "json_families:JambaParser",
    "hy_v3": "tag_families:HunyuanV3Parser",
    "inkling": "inkling_parser:InklingParser",
    "internlm": "json_families:InternLMParser",
    "jamba": "json_families:JambaParser",
    "k2_horizon": "k2_horizon_parser:K2HorizonParser",
    "kimi_k2": "kimi_k2_parser:KimiK2Parser",
    "kimi_k3": "kimi_k3_parser:KimiK3Parser",
    "lfm2": "pythonic_parser:LFM2Parser",
    "llama3_json": "llama_parser:LlamaParser",
    "llama4_pythonic": "pythonic_parser:PythonicParser",
    "longcat": "longcat_parser:LongcatParser",
    "mimo": "tag_families:MiMoParser",
    "minicpm5": "minicpm5_parser:MiniCPM5Parser",
    "minimax_m2": "invoke_parser:MiniMaxM2Parser",
    "minimax_m3": "minimax_m3_parser:MiniMaxM3Parser",
    "mistral": "mistral_parser:MistralParser",
    "muse_glimmer": "muse_glimmer_parser:MuseGlimmerParser",
    "nemotron": "json_families:NemotronParser",
    "nemotron3": "qwen3_coder_parser:Qwen3CoderParser",
    "olmo3": "pythonic_parser:Olmo3Parser",
    "phi4_mini": "json_families:Phi4MiniParser",
    "poolside": "tag_families:PoolsideParser",
    "qwen": "qwen_parser:QwenParser",
    "qwen3_5": "qwen3_coder_parser:Qwen3CoderParser",
    "qwen3_coder": "qwen3_coder_parser:Qwen3CoderParser",
    "seed_oss": "tag_families:SeedOSSParser",
    "step3": "invoke_parser:Step3Parser",
    "step3p5": "qwen3_coder_parser:Qwen3CoderParser",
    "xlam": "xlam_parser:XlamParser",
}

_ALIASES: dict[str, str] = {
    "deepseek_v31": "deepseek_v3_1",
    "deepseek_v32": "deepseek_v3_2",
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v3_1",
    "deepseekv32": "deepseek_v3_2",
    "deepseekv4": "deepseek_v4",
    "glm": "glm47",
    "granite-20b-fc": "granite_20b_fc",
    "harmony": "gpt_oss",
    "gpt-oss": "gpt_oss",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "minimax": "minimax_m2",
    "minimax-m2": "minimax_m2",
    "minimax-m3": "minimax_m3",
    "openai": "gpt_oss",
    "phi4_mini_json": "phi4_mini",
    "poolside_v1": "poolside",
    "pythonic": "llama4_pythonic",
    "qwen25": "qwen",
    "qwen3_xml": "qwen3_5",
}
"""Names that engines use for the same format."""

AUTO = "auto"


def list_parsers() -> list[str]:
    """Names that ``get_parser`` takes, without other engines' names for the same formats."""
    return sorted([*_FAMILIES, AUTO])


def get_parser(name: str, *, chat_template: str | None = None) -> ToolCallParser:
    """The parser of that name; ``auto`` is the one whose format ``chat_template`` describes.

    Raises ``UnknownName`` for a name that does not exist, with the near ones, and ``ConfigError``
    where ``auto`` has nothing to go by.
    """
    if name == AUTO:
        return _load(_detected(chat_template))
    family = _ALIASES.get(name, name)
    if family not in _FAMILIES:
        raise UnknownName("tool_call_parser", name, [*_FAMILIES, *_ALIASES, AUTO])
    return _load(family, name)


def check_parser(name: str, *, template_follows: bool) -> None:
    """Raise what ``get_parser`` would raise for the name; ``template_follows``: a chat template will be
    known, so that ``auto`` has something to go by."""
    if name != AUTO or not template_follows:
        get_parser(name)


def _load(family: str, name: str | None = None) -> ToolCallParser:
    module, _, attribute = _FAMILIES[family].partition(":")
    parser: ToolCallParser = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), attribute)(
        name or family
    )
    return parser


def _detected(chat_template: str | None) -> str:
    if chat_template is None:
        raise ConfigError(
            "tool_call_parser 'auto' reads the tokenizer's chat template, and here there is none; "
            f"name one of: {', '.join(sorted(_FAMILIES))}"
        )
    from environments.tool_call_parsers.detection import detect_parser

    found = detect_parser(chat_template)
    if found is None:
        raise ConfigError(
            "tool_call_parser 'auto': the chat template shows no known format of tool calls; "
            f"name one of: {', '.join(sorted(_FAMILIES))}"
        )
    return found
