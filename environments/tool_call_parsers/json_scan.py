"""Reading one JSON value out of running text, strictly and with the place of every member."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_BLANKS = " \t\r\n"
_FIRST_WINDOW = 4096
_LONGEST_TOKEN = 16  # of what a cut can split besides strings: literals and escapes


class NotJSON(Exception):
    """There is no whole JSON value at this place. The text says why."""


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

    Line breaks inside strings are let pass, as models write them; NaN and Infinity are not. The
    decoder is shown a growing window, because the error of a value that is broken early would
    otherwise cost time in proportion to the whole text before it.
    """
    decoder = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
    size = _FIRST_WINDOW
    while True:
        window = text[position : position + size]
        whole = position + size >= len(text)
        try:
            value, end = decoder.raw_decode(window)
        except RecursionError:
            raise NotJSON("nested too deeply") from None
        except json.JSONDecodeError as problem:
            if whole or not _may_be_cut(problem, len(window)):
                raise NotJSON(problem.msg) from None
        except ValueError as problem:  # a number that Python refuses to convert
            raise NotJSON(str(problem)) from None
        else:
            if whole or end < len(window):  # a number could go on behind the window
                return value, position + end
        size *= 4


def _may_be_cut(problem: json.JSONDecodeError, length: int) -> bool:
    return problem.msg.startswith("Unterminated") or problem.pos >= length - _LONGEST_TOKEN


def read_object(text: str, position: int) -> JSONObject:
    """The object that begins at ``position``. Raises ``NotJSON``."""
    if not text.startswith("{", position):
        raise NotJSON("not a JSON object")
    result = JSONObject({}, {}, position)
    position = skip_blanks(text, position + 1)
    while not text.startswith("}", position):
        if not text.startswith('"', position):
            raise NotJSON("expecting a key in double quotes")
        key, position = read_value(text, position)
        position = skip_blanks(text, position)
        if not text.startswith(":", position):
            raise NotJSON("expecting ':'")
        start = skip_blanks(text, position + 1)
        result.members[key], position = read_value(text, start)
        result.raw[key] = text[start:position]
        position = skip_blanks(text, position)
        if text.startswith(",", position):
            position = skip_blanks(text, position + 1)
            if text.startswith("}", position):
                raise NotJSON("trailing ','")
        elif not text.startswith("}", position):
            raise NotJSON("expecting ',' or '}'")
    result.end = position + 1
    return result


def strict_text(raw: str, value: Any) -> str:
    """``raw`` itself where every JSON reader takes it, else the value written anew."""
    try:
        json.loads(raw)
    except ValueError:
        return json.dumps(value, ensure_ascii=False)
    return raw


def _refuse_constant(name: str) -> Any:
    raise NotJSON(f"{name} is not JSON")
