"""Calls written as JSON objects: ``{"name": ..., "arguments": {...}}``, alone or in a list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from environments.tool_call_parsers.json_scan import (
    JSONObject,
    NotJSON,
    parse_whole,
    read_object,
    read_value,
    skip_blanks,
    strict_text,
)
from environments.tool_call_parsers.result import CallStatus
from environments.tool_call_parsers.scan import Scan

_BLANK = r"[ \t\r\n]*+"
_PLAIN = re.compile(
    rf'\{{{_BLANK}"(?P<name_key>\w+)"{_BLANK}:{_BLANK}"(?P<name>[\w.\-]+)"{_BLANK},'
    rf'{_BLANK}"(?P<key>\w+)"{_BLANK}:{_BLANK}(?=\{{)'
)


class NotACall(Exception):
    """What stands here is no whole call.

    ``ended`` is True where it may go on behind the end of the text. Everything before ``resume`` is
    surely part of it; ``reach`` is how far it was read until it broke.
    """

    def __init__(
        self,
        status: CallStatus,
        problem: str,
        *,
        resume: int,
        reach: int,
        name: str | None = None,
        ended: bool = False,
    ) -> None:
        self.status, self.problem, self.name = status, problem, name
        self.resume, self.reach, self.ended = resume, reach, ended
        super().__init__(problem)

    @classmethod
    def invalid_json(cls, problem: NotJSON, text: str, start: int, name: str | None = None) -> NotACall:
        """For JSON that begins at ``start`` and breaks."""
        reach = len(text) if problem.ended else problem.position
        return cls(
            CallStatus.INVALID_JSON, str(problem), resume=start, reach=reach, name=name, ended=problem.ended
        )


@dataclass(slots=True)
class JSONCall:
    """A call read from text. ``arguments`` is the JSON text of ``values``, as it was written."""

    name: str
    arguments: str
    values: dict[str, Any]
    end: int
    id: str | None = None
    keys: frozenset[str] = frozenset()


def read_json_call(
    text: str,
    position: int,
    *,
    name_key: str = "name",
    argument_keys: tuple[str, ...] = ("arguments", "parameters"),
) -> JSONCall:
    """The call whose object begins at ``position``. Raises ``NotACall``."""
    plain = _read_plain(text, position, name_key, argument_keys)
    if plain is not None:
        return plain
    try:
        found = read_object(text, position)
    except NotJSON as problem:
        raise NotACall.invalid_json(problem, text, position) from None
    name = found.members.get(name_key)
    if not isinstance(name, str) or not name.strip():
        raise NotACall(CallStatus.MISSING_NAME, f'it has no "{name_key}"', resume=found.end, reach=found.end)
    key = next((key for key in argument_keys if key in found.members), argument_keys[0])
    arguments, values = _arguments(found, key, name)
    identifier = found.members.get("id")
    identifier = identifier if isinstance(identifier, str) and identifier else None
    return JSONCall(name, arguments, values, found.end, identifier, frozenset(found.members))


def _read_plain(text: str, position: int, name_key: str, argument_keys: tuple[str, ...]) -> JSONCall | None:
    """The call if its object is written the way nearly all are: a name, and an object of arguments."""
    head = _PLAIN.match(text, position)
    if head is None or head["name_key"] != name_key or head["key"] not in argument_keys:
        return None
    try:
        values, end = read_value(text, head.end())
    except NotJSON:
        return None
    close = skip_blanks(text, end)
    if not text.startswith("}", close):
        return None
    arguments = strict_text(text[head.end() : end], values)
    return JSONCall(head["name"], arguments, values, close + 1, keys=frozenset((name_key, head["key"])))


def read_arguments(text: str, position: int, name: str) -> tuple[str, dict[str, Any], int]:
    """JSON text, value and end of the object of arguments at ``position``. Raises ``NotACall``."""
    try:
        values, end = read_value(text, position)
        if not isinstance(values, dict):
            raise NotJSON("it is not a JSON object", position)
    except NotJSON as problem:
        raise NotACall.invalid_json(problem, text, position, name) from None
    return strict_text(text[position:end], values), values, end


def _arguments(found: JSONObject, key: str, name: str) -> tuple[str, dict[str, Any]]:
    value = found.members.get(key)
    if value is None:
        return "{}", {}
    if isinstance(value, dict):
        return strict_text(found.raw[key], value), value
    if isinstance(value, str):  # encoded twice by the model
        try:
            decoded = parse_whole(value) if value.strip() else {}
        except NotJSON:
            decoded = None
        if isinstance(decoded, dict):
            return strict_text(value.strip() or "{}", decoded), decoded
    raise NotACall(
        CallStatus.MALFORMED,
        f'its "{key}" are not an object',
        resume=found.end,
        reach=found.end,
        name=name,
    )


def refuse(scan: Scan, start: int, problem: NotACall, opening: str, closing: str) -> int:
    """Report a block that begins with ``opening`` at ``start`` and is no call; where to go on.

    The next block after it counts. One that begins inside a string of this one does not: it may be
    part of an argument, and running it would be worse than losing it.
    """
    end, status = _end_of_refused(scan, problem, opening, closing)
    scan.reject(start, end, status, problem.problem, problem.name)
    return end


def _end_of_refused(scan: Scan, problem: NotACall, opening: str, closing: str) -> tuple[int, CallStatus]:
    close, following = scan.find(closing, problem.resume), scan.find(opening, problem.resume)
    end, length = close + len(closing), len(scan.text)
    status = CallStatus.TRUNCATED if problem.ended else problem.status
    if problem.ended and not scan.finished:
        return length, status
    if close >= 0 and not 0 <= following < close:
        behind = skip_blanks(scan.text, end)
        if not problem.ended or behind == length or scan.at(opening, behind):
            return end, problem.status
        return length, status
    if 0 <= following < problem.reach:
        return end_of_nested(scan, following, opening, closing), status
    if following >= 0:
        return following, CallStatus.UNCLOSED if problem.reach >= following else problem.status
    return length, status


def end_of_nested(scan: Scan, position: int, opening: str, closing: str) -> int:
    """The end of a block in which others stand; the first of them at ``position``."""
    depth = 1
    while depth:
        close, following = scan.find(closing, position), scan.find(opening, position)
        if close < 0:
            return len(scan.text)
        if 0 <= following < close:
            depth, position = depth + 1, following + len(opening)
        else:
            depth, position = depth - 1, close + len(closing)
    return position
