"""The format of Hermes and Qwen 2.5/3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

A block ends where its JSON ends, not at the first closing tag, so that a tag inside an argument is
text like any other. A stop token may stand for the last closing tag. Nothing is repaired: a broken call
could be completed in more than one way.
"""

from __future__ import annotations

from typing import ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.json_calls import JSONCall, NotACall, read_json_call, refuse
from environments.tool_call_parsers.json_scan import skip_blanks


class HermesParser(ToolCallParser):
    """Reads JSON calls between two tags. A family with other tags sets ``tag_open`` and ``tag_close``."""

    tag_open: ClassVar[str] = "<tool_call>"
    tag_close: ClassVar[str] = "</tool_call>"
    opening = "<tool_call>"
    markers = (tag_open, tag_close)
    stop_texts: ClassVar[tuple[str, ...]] = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>")

    def read(self, scan: Scan, start: int) -> int:
        """One block."""
        return read_json_block(scan, start, self.tag_open, self.tag_close)


def read_json_block(scan: Scan, start: int, opening: str, closing: str) -> int:
    """Report the block that begins with ``opening`` at ``start``; where the walk goes on.

    It may hold several objects one after the other.
    """
    begin, position = start, skip_blanks(scan.text, start + len(opening))
    if not _may_be_call(scan, position, opening, closing):
        return position
    while True:
        try:
            call = read_json_call(scan.text, position)
            end, following = _end_of_call(scan, call, opening, closing)
        except NotACall as problem:
            return refuse(scan, begin, problem, opening, closing)
        scan.accept(begin, end, call.name, call.arguments, call.values)
        if following is None:
            return end
        begin = position = following


def _may_be_call(scan: Scan, position: int, opening: str, closing: str) -> bool:
    """Whether the tag was more than a word in a sentence, or one written twice."""
    if position == len(scan.text) or scan.text[position] in "{[":
        return True
    close, following = scan.find(closing, position), scan.find(opening, position)
    return close >= 0 and not 0 <= following < close


def _end_of_call(scan: Scan, call: JSONCall, opening: str, closing: str) -> tuple[int, int | None]:
    """Where the call ends, and where another object of the same block begins."""
    position = skip_blanks(scan.text, call.end)
    if scan.at(closing, position):
        return position + len(closing), None
    if scan.at(opening, position):
        return call.end, None
    if scan.text.startswith("{", position):
        return call.end, position
    at_end = scan.ends_in(closing, position)
    if at_end and scan.finished:  # A stop token stands for the closing tag; the JSON itself is whole.
        return len(scan.text), None
    problem = "the text ends" if at_end else "something stands between the JSON object and the closing tag"
    status = CallStatus.TRUNCATED if at_end else CallStatus.MALFORMED
    raise NotACall(status, problem, name=call.name, resume=position, reach=position, ended=at_end)
