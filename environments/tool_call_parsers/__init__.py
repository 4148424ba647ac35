"""Parsers that read tool calls out of a model's raw text, by name.

``content, tool_calls = get_parser("hermes").parse(raw_model_output)``
"""

from __future__ import annotations

from environments.tool_call_parsers.base import ToolCallParser
from environments.tool_call_parsers.registry import AUTO, check_parser, get_parser, list_parsers
from environments.tool_call_parsers.result import CallAttempt, CallStatus, ParseResult

__all__ = [
    "AUTO",
    "CallAttempt",
    "CallStatus",
    "ParseResult",
    "ToolCallParser",
    "check_parser",
    "get_parser",
    "list_parsers",
]
