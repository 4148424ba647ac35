"""The format of MiniCPM 5: ``<function name="NAME"><param name="KEY">VALUE</param></function>``.

Nothing stands around the calls, and a call may stand in the middle of a line. There it counts only with the
name of an offered tool and arguments that it takes: prose may quote such tags. A value with ``<``, ``&`` or a
line break stands in ``<![CDATA[...]]>``, where nothing but its own end closes it.
"""

from __future__ import annotations

from typing import ClassVar

from environments.tool_call_parsers.base import Scan, ToolCallParser
from environments.tool_call_parsers.json_calls import NotACall, refuse
from environments.tool_call_parsers.tag_scan import CompiledGrammar, TagGrammar, read_tagged_call

_OPEN, _CLOSE = "<function", "</function>"
_SPACE = r"[\s\u0120]*"  # some decoders leave the blank out, or leave the mark that stands for it in BPE


class MiniCPM5Parser(ToolCallParser):
    """Reads ``<function name=...>`` calls."""

    opening = rf"{_OPEN}(?={_SPACE}name=)"
    stop_texts = ("<|im_end|>", "</s>")
    grammar: ClassVar[CompiledGrammar] = TagGrammar(
        call=rf"""{_OPEN}{_SPACE}name=["'](?P<name>[^"'<>]*)["']\s*>""",
        call_close=_CLOSE,
        parameter=rf"""<param{_SPACE}name=["'](?P<key>[^"'<>]*)["']\s*>""",
        parameter_close="</param>",
        quote=("<![CDATA[", "]]>"),
    ).compiled()

    def read(self, scan: Scan, start: int) -> int:
        """One call."""
        expected = scan.begins_line(start) or scan.follows_call(start)
        try:
            call = read_tagged_call(scan, start, self.grammar)
        except NotACall as problem:
            return refuse(scan, start, problem, _OPEN, _CLOSE)
        if not expected and not scan.tools.fits(call.name, call.values):
            return call.end
        scan.accept(start, call.end, call.name, call.arguments, call.values)
        return call.end
