"""Reading one Python literal out of running text.

Strings, numbers, ``True``, ``False``, ``None`` (and JSON's spelling of them), lists, tuples, sets, and
mappings with string keys. Nothing is evaluated.
"""

from __future__ import annotations

import re
from typing import Any

from environments.tool_call_parsers.json_scan import MAX_DEPTH

_BLANKS = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+(?![\w.])")
_WORDS = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}
_WORD = re.compile(r"(?:True|False|None|true|false|null)(?!\w)")
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(\r\n|[\s\S]))"
)
_SINGLE = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
    "\r\n": "",
}
_STRINGS = {quote: re.compile(rf"[^\\{quote}]*+(?:\\[\s\S][^\\{quote}]*+)*+{quote}") for quote in ("'", '"')}


class NotPython(Exception):
    """There is no whole literal at this place. The text says why; ``ended`` that the text stopped."""

    def __init__(self, message: str, *, ended: bool = False) -> None:
        self.ended = ended
        super().__init__(message)


def parse_literal(text: str) -> Any:
    """The value of a text that is one literal. Raises ``NotPython``."""
    value, end = read_literal(text, skip_blanks(text, 0))
    if skip_blanks(text, end) != len(text):
        raise NotPython("something follows the value")
    return value


def skip_blanks(text: str, position: int) -> int:
    """The position of the next character that is no white space."""
    match = _BLANKS.match(text, position)
    return match.end() if match else position


def read_literal(text: str, position: int, depth: int = MAX_DEPTH) -> tuple[Any, int]:
    """The literal that begins at ``position`` and the position after it. Raises ``NotPython``."""
    if position >= len(text):
        raise NotPython("the text ends where a value should stand", ended=True)
    if depth == 0:
        raise NotPython("nested too deeply")
    first = text[position]
    if first in _STRINGS:
        return _read_strings(text, position)
    if first == "[":
        return _read_items(text, position + 1, "]", depth)
    if first == "(":
        return _read_tuple(text, position + 1, depth)
    if first == "{":
        return _read_mapping(text, position + 1, depth)
    if word := _WORD.match(text, position):
        return _WORDS[word.group()], word.end()
    if number := _NUMBER.match(text, position):
        return _number(number.group()), number.end()
    raise NotPython("not a value", ended=len(text) - position < 5)


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        raise NotPython("not a number") from None
    if value in (float("inf"), float("-inf")):
        raise NotPython("a number that is too large")
    return value


def _read_strings(text: str, position: int) -> tuple[str, int]:
    """A string, or several next to each other, which are one."""
    value, position = _read_string(text, position)
    pieces = [value]
    while (following := skip_blanks(text, position)) < len(text) and text[following] in _STRINGS:
        value, position = _read_string(text, following)
        pieces.append(value)
    return "".join(pieces), position


def _read_string(text: str, position: int) -> tuple[str, int]:
    quote = text[position]
    triple = quote * 3
    if text.startswith(triple, position):
        return _read_triple(text, position + 3, triple)
    match = _STRINGS[quote].match(text, position + 1)
    if match is None:
        raise NotPython("a string without its closing quote", ended=True)
    return _unescape(text[position + 1 : match.end() - 1]), match.end()


def _read_triple(text: str, start: int, triple: str) -> tuple[str, int]:
    end = start
    while (end := text.find(triple, end)) >= 0:
        backslashes = end
        while backslashes > start and text[backslashes - 1] == "\\":
            backslashes -= 1
        if (end - backslashes) % 2 == 0:
            return _unescape(text[start:end]), end + 3
        end += 1
    raise NotPython("a string without its closing quotes", ended=True)


def _unescape(body: str) -> str:
    return _ESCAPE.sub(_escaped, body) if "\\" in body else body


def _escaped(match: re.Match[str]) -> str:
    for digits in match.group(1, 2, 3):
        if digits is not None:
            code = int(digits, 16)
            return chr(code) if code <= 0x10FFFF else match.group()
    if match.group(4) is not None:
        return chr(int(match.group(4), 8))
    return _SINGLE.get(match.group(5), match.group())


def _read_items(text: str, position: int, closing: str, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    position = skip_blanks(text, position)
    while not text.startswith(closing, position):
        item, position = read_literal(text, position, depth - 1)
        items.append(item)
        position = _after_item(text, position, closing)
    return items, position + 1


def _read_tuple(text: str, position: int, depth: int) -> tuple[Any, int]:
    items, end = _read_items(text, position, ")", depth)
    last = end - 2
    while text[last].isspace():
        last -= 1
    return (items[0] if len(items) == 1 and text[last] != "," else items), end


def _read_mapping(text: str, position: int, depth: int) -> tuple[dict[str, Any] | list[Any], int]:
    """A mapping, or a set, which is read as a list."""
    members: dict[str, Any] = {}
    begin = position = skip_blanks(text, position)
    while not text.startswith("}", position):
        first = position == begin
        key, position = read_literal(text, position, depth - 1)
        position = skip_blanks(text, position)
        if first and text.startswith((",", "}"), position):
            items, end = _read_items(text, _after_item(text, position, "}"), "}", depth)
            return [key, *items], end
        if not text.startswith(":", position):
            raise NotPython("expecting ':'", ended=position >= len(text))
        if not isinstance(key, str):
            raise NotPython("a key that is no string")
        if key in members:
            raise NotPython(f"{key[:80]!r} is given twice")
        members[key], position = read_literal(text, skip_blanks(text, position + 1), depth - 1)
        position = _after_item(text, position, "}")
    return members, position + 1


def _after_item(text: str, position: int, closing: str) -> int:
    position = skip_blanks(text, position)
    if text.startswith(",", position):
        return skip_blanks(text, position + 1)
    if not text.startswith(closing, position):
        raise NotPython(f"expecting ',' or '{closing}'", ended=position >= len(text))
    return position
