"""The format of MiniMax M3: elements, each tag behind the token ``]<]minimax[>[``.

``<tool_call>`` holds ``<invoke name="N">``, that holds ``<KEY>value</KEY>``, and a value is text or elements
again: ``<item>`` those of a list, others those of an object. Types come from the schema alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from environments.tool_call_parsers.base import CallStatus, Scan, Thinking, ToolCallParser
from environments.tool_call_parsers.frames import Frame, Piece, report
from environments.tool_call_parsers.json_calls import JSONCall, NotACall, end_of_nested
from environments.tool_call_parsers.json_scan import MAX_DEPTH, json_text, skip_blanks

_TOKEN = "]<]minimax[>["
_TAG = re.compile(re.escape(_TOKEN) + r"<(?P<close>/)?(?P<name>[^<>\]]+)>")
_INVOKE = re.compile(r'invoke\s+name="([^"]+)"')
_BLOCK = Frame((f"{_TOKEN}<tool_call>",), f"{_TOKEN}</tool_call>")
_INVOKE_OPEN, _INVOKE_CLOSE = f"{_TOKEN}<invoke ", f"{_TOKEN}</invoke>"


@dataclass(slots=True)
class _Element:
    """An element of a call: its text, or the elements in it."""

    name: str
    text: str
    inside: list[_Element]


class MiniMaxM3Parser(ToolCallParser):
    """Reads blocks of calls written as elements."""

    opening = _BLOCK.pattern
    markers = (_TOKEN,)
    thinking = Thinking("<mm:think>", "</mm:think>")
    stop_texts = ("[e~[\n", "[e~[")

    def read(self, scan: Scan, start: int) -> int:
        """One block with all its calls."""
        if not scan.is_marker(_TOKEN, start):
            return start + 1
        pieces: list[Piece] = []
        position = skip_blanks(scan.text, start + len(_BLOCK.openings[0]))
        while not scan.at(_BLOCK.closing, position):
            try:
                call = self._read_call(scan, position)
            except NotACall as problem:
                pieces.append(Piece(_behind_broken(scan, problem), problem))
            else:
                pieces.append(Piece(call.end, call))
            position = skip_blanks(scan.text, pieces[-1].end)
            tag = _TAG.match(scan.text, position)
            if tag is None or not (_INVOKE.fullmatch(tag["name"]) or scan.at(_BLOCK.closing, position)):
                return report(scan, Frame(_BLOCK.openings), start, pieces, pieces[-1].end)
        end = position + len(_BLOCK.closing)
        return report(scan, Frame(_BLOCK.openings), start, pieces, end)

    def _read_call(self, scan: Scan, position: int) -> JSONCall:
        tag = _TAG.match(scan.text, position)
        invoke = _INVOKE.fullmatch(tag["name"]) if tag else None
        if tag is None or invoke is None:
            raise _broken(scan, "expecting a call", position)
        name = invoke.group(1)
        element, end = _read_element(scan, "invoke", tag.end(), MAX_DEPTH)
        if element.text.strip():
            raise _broken(scan, "text stands between its parameters", tag.end())
        schema = {"type": "object", "properties": scan.tools.properties(name) or {}}
        values, arguments = _value(scan, name, schema, element) if element.inside else ({}, "{}")
        if not isinstance(values, dict):
            raise _broken(scan, "its parameters have no names", tag.end())
        return JSONCall(name, arguments, values, end)


def _read_element(scan: Scan, name: str, body: int, depth: int) -> tuple[_Element, int]:
    """The element whose opening tag ends at ``body``, and the position behind it. Raises ``NotACall``."""
    inside: list[_Element] = []
    texts: list[str] = []
    position = body
    if depth == 0:
        raise _broken(scan, "nested too deeply", position)
    while True:
        found = scan.find(_TOKEN, position)
        tag = _TAG.match(scan.text, found) if found >= 0 else None
        if tag is None:
            raise _broken(scan, f"<{name}> has no closing tag", found if found >= 0 else len(scan.text))
        texts.append(scan.text[position:found])
        position = tag.end()
        if tag["close"]:
            if tag["name"] != name:
                raise _broken(scan, f"</{tag['name']}> closes <{name}>", position)
            text = "".join(texts)
            if inside and text.strip():
                raise _broken(scan, "text stands beside elements", position)
            return _Element(name, text, inside), position
        if tag["name"] == "tool_call" or _INVOKE.fullmatch(tag["name"]):
            nested = depth < MAX_DEPTH  # a value holds it, so that it may be an example in a text
            raise _broken(scan, "another call begins in it", found, CallStatus.UNCLOSED, nested=nested)
        inner, position = _read_element(scan, tag["name"], position, depth - 1)
        inside.append(inner)


def _value(scan: Scan, tool: str, schema: Any, element: _Element) -> tuple[Any, str]:
    """The value of an element and its JSON text."""
    types = scan.tools.types_of(tool, schema)
    if not element.inside:
        if not element.text and "string" not in types and types & {"array", "object"}:
            return ([], "[]") if "array" in types else ({}, "{}")
        return scan.tools.value_of(tool, schema, element.text)
    known: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    if "array" in types or (not types and {inner.name for inner in element.inside} == {"item"}):
        items = [_value(scan, tool, known.get("items"), inner) for inner in element.inside]
        return [value for value, _ in items], f"[{', '.join(text for _, text in items)}]"
    properties = known.get("properties")
    members: dict[str, list[tuple[Any, str]]] = {}
    for inner in element.inside:
        of_member = properties.get(inner.name) if isinstance(properties, Mapping) else None
        value = _value(scan, tool, of_member or known.get("additionalProperties"), inner)
        members.setdefault(inner.name, []).append(value)
    values: dict[str, Any] = {}
    texts: list[str] = []
    for key, found in members.items():  # a member written more than once is a list
        values[key] = found[0][0] if len(found) == 1 else [value for value, _ in found]
        text = found[0][1] if len(found) == 1 else f"[{', '.join(text for _, text in found)}]"
        texts.append(f"{json_text(key)}: {text}")
    return values, f"{{{', '.join(texts)}}}"


def _behind_broken(scan: Scan, problem: NotACall) -> int:
    """Where to go on behind a broken call: behind its end, or before what begins first after it."""
    if problem.reach > problem.resume:
        return end_of_nested(scan, problem.resume, _INVOKE_OPEN, _INVOKE_CLOSE)
    marks = (_INVOKE_CLOSE, _INVOKE_OPEN, _BLOCK.closing, *_BLOCK.openings)
    found = [(at, mark) for mark in marks if (at := scan.find(mark, problem.reach)) >= 0]
    if not found:
        return len(scan.text)
    at, mark = min(found)
    return at + len(mark) * (mark == _INVOKE_CLOSE)


def _broken(
    scan: Scan,
    problem: str,
    position: int,
    status: CallStatus = CallStatus.MALFORMED,
    *,
    nested: bool = False,
) -> NotACall:
    ended = position >= len(scan.text) or scan.find(_TOKEN, position) < 0
    return NotACall(status, problem, resume=position, reach=position + nested, ended=ended)
