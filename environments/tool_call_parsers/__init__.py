"""Parsers that read tool calls out of a model's raw text, by name.

``content, tool_calls = get_parser("hermes").parse(raw_model_output)``
"""

from __future__ import annotations

import importlib

from environments.errors import ConfigError, UnknownName
from environments.tool_call_parsers.base import ParsedText, ToolCallParser

__all__ = ["ParsedText", "ToolCallParser", "get_parser", "list_parsers"]

_AVAILABLE = {
    "hermes": "environments.tool_call_parsers.hermes_parser:HermesParser",
    "qwen": "environments.tool_call_parsers.hermes_parser:HermesParser",
}

_PLANNED = (
    "mistral",
    "llama3_json",
    "qwen3_coder",
    "deepseek_v3",
    "deepseek_v3_1",
    "kimi_k2",
    "longcat",
    "glm45",
    "glm47",
)


def list_parsers() -> list[str]:
    """Names that ``get_parser`` takes."""
    return sorted(_AVAILABLE)


def get_parser(name: str) -> ToolCallParser:
    """The parser of that name.

    Raises ``UnknownName`` for a name that does not exist, with the near ones, and ``ConfigError``
    for one that this version does not have yet.
    """
    if name in _AVAILABLE:
        module, _, attribute = _AVAILABLE[name].partition(":")
        parser: ToolCallParser = getattr(importlib.import_module(module), attribute)(name)
        return parser
    if name in _PLANNED:
        available = ", ".join(list_parsers())
        raise ConfigError(
            f"tool_call_parser {name!r} is not available in this version; available: {available}"
        )
    raise UnknownName("tool_call_parser", name, [*_AVAILABLE, *_PLANNED])
