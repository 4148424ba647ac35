"""The format of LongCat: Hermes with tags of its own, or the keys and values of GLM in these tags."""

from __future__ import annotations

from environments.tool_call_parsers.base import Thinking
from environments.tool_call_parsers.hermes_parser import HermesParser


class LongcatParser(HermesParser):
    """Reads ``<longcat_tool_call>`` blocks."""

    tag_open, tag_close = "<longcat_tool_call>", "</longcat_tool_call>"
    opening = tag_open
    markers = (tag_open, tag_close)
    thinking = Thinking("<longcat_think>", "</longcat_think>")
    stop_texts = ("</longcat_s>",)
