"""The formats of K2 Horizon: calls in a frame, as keys and values in tags or as JSON.

Which form a model writes, and whether a value has its type in a tag of its own, is an option of the chat
template; all of them are read. So is the depth of thinking, which gives its tags their names.
"""

from __future__ import annotations

from typing import ClassVar

from environments.tool_call_parsers.base import Scan, Thinking
from environments.tool_call_parsers.framed_parser import CallFrameParser
from environments.tool_call_parsers.glm45_parser import key_value_grammar, read_key_value_call
from environments.tool_call_parsers.hermes_parser import read_json_block
from environments.tool_call_parsers.json_scan import skip_blanks
from environments.tool_call_parsers.tag_scan import CompiledGrammar

_TYPE = r"(?:<ifm\|arg_type>\s*(?P<string>\w*)[^<>]*</ifm\|arg_type>\s*)?"
_LEVELS = tuple(Thinking(f"<ifm|{name}>", f"</ifm|{name}>") for name in ("think_fast", "think_faster"))


class K2HorizonParser(CallFrameParser):
    """Reads ``<ifm|tool_call>`` blocks."""

    frame_open, frame_close = "<ifm|tool_calls>", "</ifm|tool_calls>"
    call_open, call_close = "<ifm|tool_call>", "</ifm|tool_call>"
    thinking: ClassVar[Thinking] = Thinking("<ifm|think>", "</ifm|think>")
    markers = (
        *(frame_open, frame_close, call_open, call_close),
        *(mark for level in _LEVELS for mark in (level.opening, level.closing)),
    )
    stop_texts = ("<|im_end|>", "<|endoftext|>")
    grammar: ClassVar[CompiledGrammar] = key_value_grammar("ifm|", _TYPE)

    def walk(self, scan: Scan, generation_prompt: str) -> None:
        """With the tags of thinking that the template or the reply has."""
        for level, kind in zip(_LEVELS, (_FastParser, _FasterParser), strict=True):
            if level.closing in scan.text or generation_prompt.rstrip().endswith(level.opening):
                super(K2HorizonParser, kind(self.name)).walk(scan, generation_prompt)
                return
        super().walk(scan, generation_prompt)

    def read_call(self, scan: Scan, start: int) -> int:
        """A call of either form."""
        if scan.text.startswith("{", skip_blanks(scan.text, start + len(self.call_open))):
            return read_json_block(scan, start, self.call_open, self.call_close)
        return read_key_value_call(scan, start, self.grammar, self.call_open, self.call_close)


class _FastParser(K2HorizonParser):
    thinking = _LEVELS[0]


class _FasterParser(K2HorizonParser):
    thinking = _LEVELS[1]
