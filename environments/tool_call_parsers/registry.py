"""Parsers by name. One line per family; a family's module is loaded when it is asked for."""

from __future__ import annotations

import importlib

from environments.errors import ConfigError, UnknownName
from environments.tool_call_parsers.base import ToolCallParser

_PACKAGE = "environments.tool_call_parsers"

_FAMILIES = {
    "deepseek_v3": "deepseek_v3_parser:DeepseekV3Parser",
    "deepseek_v3_1": "deepseek_v3_1_parser:DeepseekV31Parser",
    "glm45": "glm45_parser:Glm45Parser",
    "glm47": "glm47_parser:Glm47Parser",
    "hermes": "hermes_parser:HermesParser",
    "kimi_k2": "kimi_k2_parser:KimiK2Parser",
    "llama3_json": "llama_parser:LlamaParser",
    "longcat": "longcat_parser:LongcatParser",
    "mistral": "mistral_parser:MistralParser",
    "qwen": "qwen_parser:QwenParser",
    "qwen3_coder": "qwen3_coder_parser:Qwen3CoderParser",
}

_ALIASES: dict[str, str] = {
    "deepseek_v31": "deepseek_v3_1",
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v3_1",
    "glm": "glm47",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "qwen25": "qwen",
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
