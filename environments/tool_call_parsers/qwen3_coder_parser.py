"""The format of Qwen3-Coder: ``<function=NAME>`` with ``<parameter=KEY>`` tags in ``<tool_call>``.

Values are plain text; their types come from the tool's schema. ``<tool_call>`` around the function may
be missing, and so may the last closing tag of a call that is whole without it.
"""

from __future__ import annotations

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.json_calls import NotACall, refuse
from environments.tool_call_parsers.json_scan import skip_blanks
from environments.tool_call_parsers.tag_scan import TagGrammar, read_tagged_call

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = "<function="


class Qwen3CoderParser(ToolCallParser):
    """Reads ``<function=...>`` calls."""

    opening = f"{_OPEN}|{_FUNCTION}"
    markers = (_OPEN, _CLOSE)
    stop_texts = ("<|im_end|>", "<|endoftext|>")
    grammar = TagGrammar(
        call=r"<function=(?P<name>[^<>\n]*)>",
        call_close="</function>",
        parameter=r"<parameter=(?P<key>[^<>\n]*)>",
        parameter_close="</parameter>",
        block_open=_OPEN,
        block_close=_CLOSE,
        newline=True,
    ).compiled()

    def read(self, scan: Scan, start: int) -> int:
        """One block; it may hold several functions."""
        begin, inside = start, scan.at(_OPEN, start)
        position = skip_blanks(scan.text, start + len(_OPEN)) if inside else start
        if not scan.text.startswith(_FUNCTION, position):
            return self._no_function(scan, start, position)
        while True:
            try:
                call = read_tagged_call(scan, position, self.grammar)
                end, following = self._end_of_call(scan, call.end, call.name, inside)
            except NotACall as problem:
                return refuse(scan, begin, problem, _OPEN if inside else _FUNCTION, _CLOSE)
            scan.accept(begin, end, call.name, call.arguments, call.values)
            if following is None:
                return end
            begin = position = following

    def _end_of_call(self, scan: Scan, end: int, name: str, inside: bool) -> tuple[int, int | None]:
        """Where the call ends with its block, and where another function of the block begins."""
        position = skip_blanks(scan.text, end)
        if scan.at(_CLOSE, position):
            return position + len(_CLOSE), None
        if inside and scan.text.startswith(_FUNCTION, position):
            return end, position
        at_end = _CLOSE.startswith(scan.text[position : position + len(_CLOSE)])
        if at_end and inside and not scan.finished:
            raise NotACall(
                CallStatus.TRUNCATED, "the text ends", name=name, resume=position, reach=position, ended=True
            )
        return (len(scan.text) if at_end else end), None

    def _no_function(self, scan: Scan, start: int, position: int) -> int:
        """What follows an opening tag that has no function in it; it may be a word in a sentence."""
        rest = scan.text[position : position + len(_FUNCTION)]
        close, following = scan.find(_CLOSE, position), scan.find(_OPEN, position)
        if _FUNCTION.startswith(rest) and position + len(rest) == len(scan.text):
            scan.reject(start, len(scan.text), CallStatus.TRUNCATED, "the text ends inside it")
            return len(scan.text)
        if close < 0 or 0 <= following < close:
            return position
        end = close + len(_CLOSE)
        scan.reject(start, end, CallStatus.MALFORMED, f"it holds no {_FUNCTION}NAME>")
        return end
