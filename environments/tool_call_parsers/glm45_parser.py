"""The format of GLM 4.5 and 4.6: the name, then keys and values in tags, all in ``<tool_call>``.

Values are plain text: byte for byte where the schema says string, JSON elsewhere.
"""

from __future__ import annotations

import re
from typing import ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.json_calls import NotACall, refuse
from environments.tool_call_parsers.json_scan import skip_blanks
from environments.tool_call_parsers.tag_scan import CompiledGrammar, TagGrammar, read_tagged_call

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BEGUN = re.compile(r"\s*[\w.:/-]*\s*(?:<[/\w]*)?\Z")


def key_value_grammar(prefix: str = "", between: str = "") -> CompiledGrammar:
    """The grammar of tags that all begin with ``prefix``; ``between`` matches what may stand between a key
    and its value."""
    tag = f"<{re.escape(prefix)}"
    end = f"</{re.escape(prefix)}"
    return TagGrammar(
        call=rf"{tag}tool_call>(?P<name>[^<>{{]*)(?={tag}arg_key>|{end}tool_call>)",
        call_close=f"</{prefix}tool_call>",
        parameter=rf"{tag}arg_key>(?P<key>[^<>]*){end}arg_key>\s*{between}{tag}arg_value>",
        parameter_close=f"</{prefix}arg_value>",
    ).compiled()


class Glm45Parser(ToolCallParser):
    """Reads ``<tool_call>NAME`` blocks with ``<arg_key>`` and ``<arg_value>`` tags."""

    opening = _OPEN
    markers = (_OPEN, _CLOSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    stop_texts: ClassVar[tuple[str, ...]] = ("<|observation|>", "<|user|>", "<|endoftext|>")
    grammar: ClassVar[CompiledGrammar] = key_value_grammar()

    def read(self, scan: Scan, start: int) -> int:
        """One call."""
        return read_key_value_call(scan, start, self.grammar, _OPEN, _CLOSE)


def read_key_value_call(scan: Scan, start: int, grammar: CompiledGrammar, opening: str, closing: str) -> int:
    """Report the call that begins with ``opening`` at ``start``; where the walk goes on."""
    body = start + len(opening)
    if not grammar.call.match(scan.text, start):
        if _BEGUN.match(scan.text, body):
            scan.reject(start, len(scan.text), CallStatus.TRUNCATED, "the text ends inside it")
            return len(scan.text)
        close, following = scan.find(closing, body), scan.find(opening, body)
        if close < 0 or 0 <= following < close:
            return body  # a word in a sentence
    try:
        call = read_tagged_call(scan, start, grammar)
    except NotACall as problem:
        return refuse(scan, start, problem, opening, closing)
    scan.accept(start, call.end, call.name, call.arguments, call.values)
    return skip_blanks(scan.text, call.end)
