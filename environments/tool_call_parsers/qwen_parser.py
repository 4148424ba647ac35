"""The format of Qwen 2.5 and 3, which is that of Hermes."""

from __future__ import annotations

from environments.tool_call_parsers.hermes_parser import HermesParser


class QwenParser(HermesParser):
    """Reads ``<tool_call>`` blocks with JSON, as Qwen 2.5 and 3 write them."""
