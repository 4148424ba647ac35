"""The format of Qwen3-Coder: ``<function=NAME>`` with ``<parameter=KEY>`` tags in ``<tool_call>``.

Values are plain text; their types come from the tool's schema. ``<tool_call>`` around the function may
be missing, and so may the last closing tag of a call that is whole without it.
"""

from __future__ import annotations

from typing import ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.json_calls import NotACall, refuse
from environments.tool_call_parsers.json_scan import skip_blanks
from environments.tool_call_parsers.tag_scan import CompiledGrammar, TagGrammar, read_tagged_call

_FUNCTION = "<function="


def function_grammar(tag_open: str, tag_close: str, *, newline: bool = True) -> CompiledGrammar:
    """The grammar of functions between two tags; ``newline``: values stand on lines of their own."""
    return TagGrammar(
        call=r"<function=(?P<name>[^<>\n]*)>",
        call_close="</function>",
        parameter=r"<parameter=(?P<key>[^<>\n]*)>",
        parameter_close="</parameter>",
        block_open=tag_open,
        block_close=tag_close,
        newline=newline,
    ).compiled()


class Qwen3CoderParser(ToolCallParser):
    """Reads ``<function=...>`` calls. A family with other tags sets them and what hangs on them."""

    tag_open: ClassVar[str] = "<tool_call>"
    tag_close: ClassVar[str] = "</tool_call>"
    opening = f"{tag_open}|{_FUNCTION}"
    markers = (tag_open, tag_close)
    stop_texts: ClassVar[tuple[str, ...]] = ("<|im_end|>", "<|endoftext|>")
    grammar: ClassVar[CompiledGrammar] = function_grammar(tag_open, tag_close)

    def read(self, scan: Scan, start: int) -> int:
        """One block; it may hold several functions."""
        begin, inside = start, scan.at(self.tag_open, start)
        position = skip_blanks(scan.text, start + len(self.tag_open)) if inside else start
        if not scan.text.startswith(_FUNCTION, position):
            return self._no_function(scan, start, position)
        if not inside and not scan.begins_line(start) and not scan.follows_call(start):
            return start + len(_FUNCTION)  # an example in a sentence
        while True:
            try:
                call = read_tagged_call(scan, position, self.grammar)
                end, following = self._end_of_call(scan, call.end, call.name, inside)
            except NotACall as problem:
                return refuse(scan, begin, problem, self.tag_open if inside else _FUNCTION, self.tag_close)
            scan.accept(begin, end, call.name, call.arguments, call.values)
            if following is None:
                return end
            begin = position = following

    def _end_of_call(self, scan: Scan, end: int, name: str, inside: bool) -> tuple[int, int | None]:
        """Where the call ends with its block, and where another function of the block begins."""
        position = skip_blanks(scan.text, end)
        if scan.at(self.tag_close, position):
            return position + len(self.tag_close), None
        if inside and scan.text.startswith(_FUNCTION, position):
            return end, position
        at_end = self.tag_close.startswith(scan.text[position : position + len(self.tag_close)])
        if at_end and inside and not scan.finished:
            raise NotACall(
                CallStatus.TRUNCATED, "the text ends", name=name, resume=position, reach=position, ended=True
            )
        return (len(scan.text) if at_end else end), None

    def _no_function(self, scan: Scan, start: int, position: int) -> int:
        """What follows an opening tag that has no function in it; it may be a word in a sentence."""
        close = scan.find(self.tag_close, position)
        if scan.ends_in(_FUNCTION, position):
            scan.reject(start, len(scan.text), CallStatus.TRUNCATED, "the text ends inside it")
            return len(scan.text)
        if close < 0 or any(0 <= scan.find(mark, position) < close for mark in (self.tag_open, _FUNCTION)):
            return position
        end = close + len(self.tag_close)
        scan.reject(start, end, CallStatus.MALFORMED, f"it holds no {_FUNCTION}NAME>")
        return end
