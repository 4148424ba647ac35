"""The formats of Gemma 4 and FunctionGemma: ``<|tool_call>call:name{key:<|"|>text<|"|>,n:1}<tool_call|>``.

A notation of their own: keys stand bare, strings stand between two equal markers without any escape,
everything else is as in JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan, Thinking, ToolCallParser
from environments.tool_call_parsers.json_calls import JSONCall, NotACall, refuse
from environments.tool_call_parsers.json_scan import MAX_DEPTH, NotJSON, json_text, parse_whole
from environments.tool_call_parsers.python_scan import skip_blanks

_CALL = re.compile(r"\s*(?:call)?:\s*([^\s{}<]+)\s*")
_KEY = re.compile(r"([^:{}<]*)")
_SCALAR = re.compile(
    r"(true|false|null|True|False|None|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?=[,}\]]|$)"
)
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class Gemma4Parser(ToolCallParser):
    """Reads the calls of Gemma 4."""

    tag_open: ClassVar[str] = "<|tool_call>"
    tag_close: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = '<|"|>'
    opening = re.escape(tag_open)
    markers = (tag_open, tag_close, quote)
    thinking: ClassVar[Thinking | None] = Thinking("<|channel>thought", "<channel|>")
    stop_texts: ClassVar[tuple[str, ...]] = ("<turn|>", "<|tool_response>")

    def read(self, scan: Scan, start: int) -> int:
        """One call, with its two tags."""
        try:
            call = self._read_call(scan, start + len(self.tag_open))
        except NotACall as problem:
            return refuse(scan, start, problem, self.tag_open, self.tag_close)
        scan.accept(start, call.end, call.name, call.arguments, call.values)
        return call.end

    def _read_call(self, scan: Scan, body: int) -> JSONCall:
        text = scan.text
        head = _CALL.match(text, body)
        if head is None or not text.startswith("{", head.end()):
            at_end = (head.end() if head else skip_blanks(text, body)) == len(text)
            raise NotACall(
                CallStatus.MALFORMED, "expecting call:name{...}", resume=body, reach=body, ended=at_end
            )
        name = head.group(1)
        values, arguments, end = _Notation(scan, self.quote, name).mapping(head.end() + 1, MAX_DEPTH)
        position = skip_blanks(text, end)
        if scan.at(self.tag_close, position):
            return JSONCall(name, arguments, values, position + len(self.tag_close))
        if scan.at(self.tag_open, position):
            return JSONCall(name, arguments, values, end)
        rest = text[position : position + len(self.tag_close)]
        at_end = self.tag_close.startswith(rest)
        if at_end and scan.finished:  # a stop token stands for the closing tag
            return JSONCall(name, arguments, values, len(text))
        problem = "the text ends" if at_end else "something stands between the arguments and the closing tag"
        raise NotACall(
            CallStatus.MALFORMED, problem, name=name, resume=position, reach=position, ended=at_end
        )


class FunctionGemmaParser(Gemma4Parser):
    """Reads the calls of FunctionGemma: the same notation between other markers."""

    tag_open, tag_close = "<start_function_call>", "<end_function_call>"
    quote = "<escape>"
    opening = tag_open
    markers = (tag_open, tag_close, quote)
    thinking = None
    stop_texts = ("<end_of_turn>", "<start_function_response>", "<eos>")


Read = tuple[Any, str, int]
"""A value, its JSON text, and the position after it."""


@dataclass(frozen=True, slots=True)
class _Notation:
    """Reads values of the notation; every method raises ``NotACall``."""

    scan: Scan
    quote: str
    name: str

    def mapping(self, position: int, depth: int) -> tuple[dict[str, Any], str, int]:
        """The members behind an opening brace."""
        values: dict[str, Any] = {}
        texts: dict[str, str] = {}
        text = self.scan.text
        position = skip_blanks(text, position)
        while not text.startswith("}", position):
            begin = position
            key, position = self._key(position)
            if key in values:
                raise self._broken(f"{key[:80]!r} is given twice", begin)
            values[key], texts[key], position = self._value(skip_blanks(text, position), depth - 1)
            position = self._after_item(position, "}")
        members = ", ".join(f"{json_text(key)}: {value}" for key, value in texts.items())
        return values, "{" + members + "}", position + 1

    def _value(self, position: int, depth: int) -> Read:
        text = self.scan.text
        if depth == 0:
            raise self._broken("nested too deeply", position)
        if self.scan.at(self.quote, position):
            value, position = self._string(position)
            return value, json_text(value), position
        if text.startswith("{", position):
            return self.mapping(position + 1, depth)
        if text.startswith("[", position):
            return self._items(position + 1, depth)
        scalar = _SCALAR.match(text, position)
        if scalar is None:
            raise self._broken("a value that is neither quoted nor JSON", position)
        written = _PYTHON.get(scalar.group(1), scalar.group(1))
        try:
            return parse_whole(written), written, scalar.end()
        except NotJSON as problem:
            raise self._broken(str(problem), position) from None

    def _items(self, position: int, depth: int) -> Read:
        values: list[Any] = []
        texts: list[str] = []
        position = skip_blanks(self.scan.text, position)
        while not self.scan.text.startswith("]", position):
            value, written, position = self._value(position, depth - 1)
            values.append(value)
            texts.append(written)
            position = self._after_item(position, "]")
        return values, "[" + ", ".join(texts) + "]", position + 1

    def _key(self, position: int) -> tuple[str, int]:
        quoted = self.scan.at(self.quote, position)
        if quoted:
            key, end = self._string(position)
            end = skip_blanks(self.scan.text, end)
        else:
            match = _KEY.match(self.scan.text, position)
            assert match is not None
            key, end = match.group(1), match.end()
        if not self.scan.text.startswith(":", end) or not (key or quoted):
            raise self._broken("expecting a key and ':'", end)
        return key, end + 1

    def _string(self, position: int) -> tuple[str, int]:
        body = position + len(self.quote)
        end = self.scan.find(self.quote, body)
        if end < 0:
            raise self._broken("a string without its closing marker", len(self.scan.text))
        return self.scan.text[body:end], end + len(self.quote)

    def _after_item(self, position: int, closing: str) -> int:
        text = self.scan.text
        position = skip_blanks(text, position)
        if text.startswith(",", position):
            return skip_blanks(text, position + 1)
        if not text.startswith(closing, position):
            raise self._broken(f"expecting ',' or '{closing}'", position)
        return position

    def _broken(self, problem: str, position: int) -> NotACall:
        # A literal or a marker that the end of the text has split may have been a good one.
        ended = len(self.scan.text) - position < len(self.quote)
        return NotACall(
            CallStatus.MALFORMED, problem, name=self.name, resume=position, reach=position, ended=ended
        )
