"""The formats of LongCat: JSON as Hermes writes it, in tags of its own; LongCat 2 writes keys and values
in tags there, as GLM does."""

from __future__ import annotations

from typing import ClassVar

from environments.tool_call_parsers.base import Scan, Thinking
from environments.tool_call_parsers.glm45_parser import key_value_grammar, read_key_value_call
from environments.tool_call_parsers.hermes_parser import HermesParser
from environments.tool_call_parsers.tag_scan import CompiledGrammar


class LongcatParser(HermesParser):
    """Reads ``<longcat_tool_call>`` blocks."""

    tag_open, tag_close = "<longcat_tool_call>", "</longcat_tool_call>"
    opening = tag_open
    markers = (tag_open, tag_close)
    thinking = Thinking("<longcat_think>", "</longcat_think>")
    stop_texts = ("</longcat_s>",)
    grammar: ClassVar[CompiledGrammar] = key_value_grammar("longcat_")

    def read(self, scan: Scan, start: int) -> int:
        """One block of either form."""
        if self.grammar.call.match(scan.text, start):
            return read_key_value_call(scan, start, self.grammar, self.tag_open, self.tag_close)
        return super().read(scan, start)
