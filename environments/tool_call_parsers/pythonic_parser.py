"""Calls written as Python: ``[f(a=1, b='x'), g()]``, with or without markers around them.

Values are literals; nothing is evaluated. A list without markers is a call only where it is the whole
reply, since prose and data are full of brackets.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan
from environments.tool_call_parsers.frames import Frame, Piece, close_frame, report, unsettled
from environments.tool_call_parsers.json_calls import JSONCall, NotACall
from environments.tool_call_parsers.json_frames import JSONFrameParser
from environments.tool_call_parsers.json_scan import json_text
from environments.tool_call_parsers.python_scan import NotPython, read_literal, skip_blanks

_WORD = r"[^\W\d][\w.\-]*"
_NAME = re.compile(rf"({_WORD})\s*\(\s*")
_KEY = re.compile(rf"({_WORD})\s*=\s*")
_CUT_WORD = re.compile(rf"(?:{_WORD})?\s*$")


class PythonicParser(JSONFrameParser):
    """Llama 4 and others: a list between ``<|python_start|>`` markers, or the reply is the list."""

    frame = Frame(("<|python_start|>",), "<|python_end|>")
    opening = rf"{frame.pattern}|\["
    markers = frame.marks
    listed: ClassVar[bool] = True
    """Whether the calls stand in brackets, separated by commas; else each has a line."""
    stop_texts: ClassVar[tuple[str, ...]] = ("<|eot|>", "<|eot_id|>", "<|eom|>", "<|eom_id|>", "<|im_end|>")

    def read(self, scan: Scan, start: int) -> int:
        """A frame with its calls, or a list without a frame."""
        mark = self.frame.opened_at(scan.text, start)
        if not mark:
            return self._read_bare(scan, start)
        body = skip_blanks(scan.text, start + len(mark))
        if self._may_be_json(scan.text, body):
            return self.read_json(scan, self.frame, start, body)
        pieces, position = self._read_calls(scan, body)
        if not pieces:
            return max(position, start + len(mark))
        return report(scan, self.frame, start, pieces, close_frame(scan, self.frame, pieces, position))

    def _may_be_json(self, text: str, body: int) -> bool:
        return text.startswith("{", body) or (
            text.startswith("[", body) and text.startswith("{", skip_blanks(text, body + 1))
        )

    def _read_bare(self, scan: Scan, start: int) -> int:
        if not scan.follows_call(start):
            return start + 1
        pieces, position = self._read_calls(scan, start)
        last = pieces[-1].found if pieces else None
        behind = skip_blanks(scan.text, position)
        if scan.at(self.frame.closing, behind):
            behind = skip_blanks(scan.text, behind + len(self.frame.closing))
        whole = isinstance(last, JSONCall) and behind == len(scan.text)
        if whole and scan.finished:
            return report(scan, self.frame, start, pieces, behind)
        if last and last.name and (whole or (isinstance(last, NotACall) and last.ended)):
            scan.reject(start, len(scan.text), CallStatus.TRUNCATED, "the reply was cut off", last.name)
            return len(scan.text)
        return start + 1

    def _read_calls(self, scan: Scan, body: int) -> tuple[list[Piece], int]:
        """The calls, whole and broken, and the position behind them."""
        text, pieces = scan.text, list[Piece]()
        position = body
        if self.listed:
            if not text.startswith("[", body):
                return pieces, body
            position = skip_blanks(text, body + 1)
            if text.startswith("]", position):
                return pieces, position + 1
        while True:
            try:
                call = _read_call(text, position)
            except NotACall as problem:
                if pieces or problem.name or problem.ended:
                    pieces.append(Piece(max(problem.reach, position), problem))
                return pieces, max(problem.reach, position)
            pieces.append(Piece(call.end, call))
            position = skip_blanks(text, call.end)
            if self.listed and text.startswith(",", position):
                pieces[-1].settled = True
                position = skip_blanks(text, position + 1)
            elif self.listed:
                if text.startswith("]", position):
                    return pieces, position + 1
                pieces[-1].found = unsettled(scan, position, "]", call.name) or call
                return pieces, position
            elif not _NAME.match(text, position):
                return pieces, call.end


class Olmo3Parser(PythonicParser):
    """OLMo 3: one call on each line between ``<function_calls>`` tags, with JSON's literals."""

    frame = Frame(("<function_calls>",), "</function_calls>")
    opening = frame.pattern
    markers = frame.marks
    listed = False
    stop_texts = ("<|im_end|>", "<|endoftext|>")


class LFM2Parser(PythonicParser):
    """LFM 2 and 2.5: a list between ``<|tool_call_start|>`` markers, of Python calls or JSON."""

    frame = Frame(("<|tool_call_start|>",), "<|tool_call_end|>")
    opening = frame.pattern
    markers = frame.marks
    stop_texts = ("<|im_end|>", "<|endoftext|>")


def _read_call(text: str, position: int) -> JSONCall:
    """The call that begins at ``position``. Raises ``NotACall``."""
    head = _NAME.match(text, position)
    if head is None:
        ended = _CUT_WORD.match(text, position) is not None
        raise NotACall(CallStatus.MALFORMED, "expecting name(", resume=position, reach=position, ended=ended)
    name = head.group(1)
    values: dict[str, Any] = {}
    position = head.end()
    while not text.startswith(")", position):
        key = _KEY.match(text, position)
        if key is None:
            raise _broken(
                text, name, "expecting key=value", position, _CUT_WORD.match(text, position) is not None
            )
        if key.group(1) in values:
            raise _broken(text, name, f"{key.group(1)[:80]!r} is given twice", position, False)
        try:
            values[key.group(1)], end = read_literal(text, key.end())
        except NotPython as problem:
            raise _broken(text, name, str(problem), key.end(), problem.ended) from None
        position = skip_blanks(text, end)
        if text.startswith(",", position):
            position = skip_blanks(text, position + 1)
        elif not text.startswith(")", position):
            raise _broken(text, name, "expecting ',' or ')'", position, position == len(text))
    return JSONCall(name, json_text(values), values, position + 1)


def _broken(text: str, name: str, problem: str, position: int, ended: bool) -> NotACall:
    # A string without an end reaches to the end of the text: what looks like a call in it is none.
    reach = len(text) if ended else position
    return NotACall(CallStatus.MALFORMED, problem, name=name, resume=position, reach=reach, ended=ended)
