"""Reading one JSON value out of running text, strictly and with the place of every member."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 100
"""Levels of lists and objects in each other. What goes on to work with the arguments of a call (the chat
template, the record, the tool) does so level by level, with a stack that has an end."""

_BLANKS = " \t\r\n"
_FIRST_WINDOW = 4096
_GROWTH = 64  # to copy a window is so much cheaper than to decode it
_LONGEST_TOKEN = 16  # of what a cut can split besides strings: literals and escapes


_BRACKETS = re.compile(r'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"|[\[\]{}]|"')
_CONTROL = re.compile(r"[\x00-\x1f]")
_LITERALS = ("true", "false", "null", "-")


class NotJSON(Exception):
    """There is no whole JSON value at this place.

    The text says why and ``position`` where it breaks; ``ended`` is True where it may go on behind the
    end of the text.
    """

    def __init__(self, message: str, position: int = -1, *, ended: bool = False) -> None:
        self.position, self.ended = position, ended
        super().__init__(message)


@dataclass(slots=True)
class JSONObject:
    """A JSON object in text: its members, the raw text of each, and the position after it."""

    members: dict[str, Any]
    raw: dict[str, str]
    end: int


def skip_blanks(text: str, position: int) -> int:
    """The position of the next character that is no JSON blank."""
    while position < len(text) and text[position] in _BLANKS:
        position += 1
    return position


def read_value(text: str, position: int) -> tuple[Any, int]:
    """The value that begins at ``position`` and the position after it. Raises ``NotJSON``.

    Line breaks inside strings are let pass, as models write them; NaN and Infinity are not, nor is a
    member that is given twice: which of the two was meant, nobody can say. The
    decoder is shown a growing window, because the error of a value that is broken early would
    otherwise cost time in proportion to the whole text before it.
    """
    size = _FIRST_WINDOW
    while True:
        window = text[position : position + size]
        whole = position + size >= len(text)
        try:
            value, end = _DECODER.raw_decode(window)
        except RecursionError:
            raise NotJSON("nested too deeply", position) from None
        except json.JSONDecodeError as problem:
            if whole or not _may_be_cut(problem, len(window)):
                ended = whole and _is_cut(problem, window)
                raise NotJSON(problem.msg, position + problem.pos, ended=ended) from None
        except ValueError:  # a number that Python refuses to convert
            raise NotJSON("a number that is too large", position) from None
        else:
            if whole or end < len(window):  # a number could go on behind the window
                if _is_deep(window, end):
                    raise NotJSON("nested too deeply", position)
                return value, position + end
        size *= _GROWTH


def _is_deep(text: str, end: int) -> bool:
    """Whether the value in ``text[:end]`` is nested too deeply."""
    if text.count("[", 0, end) + text.count("{", 0, end) <= MAX_DEPTH:
        return False
    depth = 0
    for match in _BRACKETS.finditer(text, 0, end):
        mark = match.group()
        depth += (mark in "[{") - (mark in "]}")
        if depth > MAX_DEPTH:
            return True
    return False


def _may_be_cut(problem: json.JSONDecodeError, length: int) -> bool:
    return problem.msg.startswith("Unterminated") or problem.pos >= length - _LONGEST_TOKEN


def _is_cut(problem: json.JSONDecodeError, window: str) -> bool:
    rest = window[problem.pos :].rstrip(_BLANKS)
    if not rest or problem.msg.startswith("Unterminated"):
        return True
    return (problem.msg.startswith("Invalid") and len(rest) < _LONGEST_TOKEN) or any(
        word.startswith(rest) for word in _LITERALS
    )


def parse_whole(text: str) -> Any:
    """The value of a text that is one JSON value and nothing else. Raises ``NotJSON``."""
    value, end = read_value(text, skip_blanks(text, 0))
    if skip_blanks(text, end) != len(text):
        raise NotJSON("something follows the value")
    return value


def read_object(text: str, position: int) -> JSONObject:
    """The object that begins at ``position``. Raises ``NotJSON``."""
    if not text.startswith("{", position):
        raise NotJSON("it is not a JSON object", position, ended=position >= len(text))
    result = JSONObject({}, {}, position)
    position = skip_blanks(text, position + 1)
    while not text.startswith("}", position):
        if not text.startswith('"', position):
            raise NotJSON("expecting a key in double quotes", position, ended=position >= len(text))
        key, position = read_value(text, position)
        position = skip_blanks(text, position)
        if not text.startswith(":", position):
            raise NotJSON("expecting ':'", position, ended=position >= len(text))
        if key in result.members:
            raise _twice(key)
        start = skip_blanks(text, position + 1)
        result.members[key], position = read_value(text, start)
        result.raw[key] = text[start:position]
        position = skip_blanks(text, position)
        if text.startswith(",", position):
            position = skip_blanks(text, position + 1)
            if text.startswith("}", position):
                raise NotJSON("trailing ','", position)
        elif not text.startswith("}", position):
            raise NotJSON("expecting ',' or '}'", position, ended=position >= len(text))
    result.end = position + 1
    return result


def skip_balanced(text: str, position: int, limit: int) -> int | None:
    """The position after what looks like one value from ``position`` on, judged by its brackets and
    strings alone; None where that does not end before ``limit``. For going on behind a value that is
    broken inside."""
    depth = 0
    for match in _BRACKETS.finditer(text, position, limit):
        mark = match.group()
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
            if depth <= 0:
                return match.end() if depth == 0 else None
        elif depth == 0 or mark == '"':  # a string that never ends
            return None
    return None


def strict_text(raw: str, value: Any) -> str:
    """``raw`` itself where every JSON reader takes it, else the value written anew."""
    # Only control characters in strings were let pass. Printable text has none, and is told much faster.
    if raw.isprintable() or not _CONTROL.search(raw):
        return raw
    try:
        json.loads(raw)
    except ValueError:
        return json_text(value)
    return raw


def json_text(value: Any) -> str:
    """``value`` as JSON, with characters as they are where UTF-8 can carry them."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value)
    return text


def _refuse_constant(name: str) -> Any:
    raise NotJSON(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotJSON("a number that is too large")
    return value


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        counts = Counter(name for name, _ in members)
        raise _twice(next(name for name in counts if counts[name] > 1))
    return found


def _twice(name: str) -> NotJSON:
    return NotJSON(f"{name[:80]!r} is given twice")


_DECODER = json.JSONDecoder(
    strict=False, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_each_once
)
