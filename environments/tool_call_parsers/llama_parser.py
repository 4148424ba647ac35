"""The format of Llama 3.1 to 3.3: bare JSON, ``{"name": ..., "parameters": {...}}``, several with ``;``.

``<|python_tag|>`` may stand before it. Without that token nothing but its place and its content tells a
call from an answer in JSON or an example in prose. So a bare object counts only with the name of an
offered tool, and only at the beginning of the reply or, if its arguments fit the tool, of a line.
"""

from __future__ import annotations

import re

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.json_calls import NotACall, read_json_call
from environments.tool_call_parsers.json_scan import NotJSON, read_value, skip_balanced, skip_blanks

_TAG = "<|python_tag|>"
_NAMED = re.compile(r'\{\s*"(?:type"\s*:\s*"function"\s*,\s*")?name"\s*:\s*"(?P<name>[^"\\]*)"')
_OBJECT = re.compile(r'\{\s*["}]')
_KEYS = frozenset({"name", "parameters", "arguments", "type", "id"})


class LlamaParser(ToolCallParser):
    """Reads JSON calls with or without ``<|python_tag|>``."""

    opening = rf"{re.escape(_TAG)}|\{{"
    markers = (_TAG,)
    stop_texts = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")

    def read(self, scan: Scan, start: int) -> int:
        """Calls that follow each other, or what only looks like one."""
        if scan.at(_TAG, start):
            return self._read_tagged(scan, start)
        first = scan.follows_call(start)
        if not _names_tool(scan, start) or not (first or scan.begins_line(start)):
            return _skip_value(scan, start)
        try:
            call = read_json_call(scan.text, start)
        except NotACall as problem:
            if not first and not scan.tools:
                return _skip_value(scan, start)
            return self._refuse(scan, start, problem)
        if not (call.keys <= _KEYS and call.keys & {"parameters", "arguments"}):
            return call.end
        if not first and not scan.tools.fits(call.name, call.values):
            return call.end
        scan.accept(start, call.end, call.name, call.arguments, call.values)
        return self._after(scan, call.end)

    def _read_tagged(self, scan: Scan, start: int) -> int:
        position = skip_blanks(scan.text, start + len(_TAG))
        if not scan.text.startswith("{", position):
            following = scan.find(_TAG, position)
            end = following if following >= 0 else len(scan.text)
            status = CallStatus.TRUNCATED if position == len(scan.text) else CallStatus.MALFORMED
            scan.reject(start, end, status, f"no JSON object follows {_TAG}")
            return end
        try:
            call = read_json_call(scan.text, position)
        except NotACall as problem:
            return self._refuse(scan, start, problem)
        scan.accept(start, call.end, call.name, call.arguments, call.values)
        return self._after(scan, call.end)

    def _after(self, scan: Scan, end: int) -> int:
        """Past the separator to another call, if there is one."""
        separator = skip_blanks(scan.text, end)
        if not scan.text.startswith(";", separator):
            return end
        position = skip_blanks(scan.text, separator + 1)
        if scan.at(_TAG, position) or _names_tool(scan, position):
            scan.drop(end, position)
        return position

    def _refuse(self, scan: Scan, start: int, problem: NotACall) -> int:
        """Report what is no call; a call behind it counts where the broken one clearly ends."""
        length = len(scan.text)
        tagged = scan.find(_TAG, max(problem.reach, problem.resume))
        limit = tagged if tagged >= 0 else length
        begin = scan.text.find("{", start, limit)
        balanced = None if problem.ended else skip_balanced(scan.text, begin, limit)
        end = limit if balanced is None else balanced
        status = CallStatus.TRUNCATED if problem.ended else problem.status
        scan.reject(start, end, status, problem.problem, problem.name)
        return self._after(scan, end)


def _names_tool(scan: Scan, position: int) -> bool:
    named = _NAMED.match(scan.text, position)
    return named is not None and scan.tools.knows(named["name"])


def _skip_value(scan: Scan, start: int) -> int:
    """Past a JSON value that is no call: what stands inside it is none either."""
    if not _OBJECT.match(scan.text, start):
        return start + 1
    try:
        return read_value(scan.text, start)[1]
    except NotJSON as problem:
        if problem.ended:
            return len(scan.text)
        if problem.position > start:
            return problem.position
        return skip_balanced(scan.text, start, len(scan.text)) or len(scan.text)
