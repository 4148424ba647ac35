"""The formats of Mistral: ``[TOOL_CALLS][{...}, ...]`` up to v7, ``[TOOL_CALLS]NAME[ARGS]{...}`` since v11.

Each call of a list is read by itself, so that one broken call leaves the others whole.
"""

from __future__ import annotations

import re

from environments.tool_call_parsers.base import CallStatus, Scan, Thinking, ToolCallParser
from environments.tool_call_parsers.json_calls import NotACall, read_arguments, read_json_call
from environments.tool_call_parsers.json_scan import skip_balanced, skip_blanks

_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEADER = re.compile(
    r"(?P<name>[^\s\[\]{}\"]+)\s*(?:\[CALL_ID\]\s*(?P<id>[^\s\[\]{}]+)\s*)?(?:\[ARGS\]\s*)?(?=\{|\Z)"
)
_CUT = re.compile(r"[^\s\[\]{}\"]*(?:\[[A-Z_\]]*[^\[\]{}]*){0,2}\Z")


class MistralParser(ToolCallParser):
    """Reads what follows ``[TOOL_CALLS]``."""

    opening = re.escape(_CALLS)
    markers = (_CALLS, _ARGS, _ID)
    thinking = Thinking("[THINK]", "[/THINK]")
    stop_texts = ("</s>",)

    def read(self, scan: Scan, start: int) -> int:
        """A list of calls, or one call with its name before it."""
        position = skip_blanks(scan.text, start + len(_CALLS))
        if scan.text.startswith("[", position) and not scan.at(_CALLS, position):
            return self._read_list(scan, start, position)
        if scan.text.startswith("{", position):
            return self._read_objects(scan, start, position)
        return self._read_named(scan, start, position)

    def _read_named(self, scan: Scan, start: int, position: int) -> int:
        header = _HEADER.match(scan.text, position)
        if header is None:
            if _CUT.match(scan.text, position):
                scan.reject(start, len(scan.text), CallStatus.TRUNCATED, "the text ends inside it")
                return len(scan.text)
            return position  # a word in a sentence
        name = header["name"]
        try:
            arguments, values, end = read_arguments(scan.text, header.end(), name)
        except NotACall as problem:
            return _refuse_rest(scan, start, problem)
        scan.accept(start, end, name, arguments, values, header["id"])
        return end

    def _read_objects(self, scan: Scan, start: int, position: int) -> int:
        """Objects without a list around them."""
        while scan.text.startswith("{", position):
            try:
                call = read_json_call(scan.text, position)
            except NotACall as problem:
                return _refuse_rest(scan, start, problem)
            scan.accept(start, call.end, call.name, call.arguments, call.values, call.id)
            start = call.end
            position = skip_blanks(scan.text, start)
        return start

    def _read_list(self, scan: Scan, start: int, position: int) -> int:
        text = scan.text
        begin, position = start, skip_blanks(text, position + 1)
        accepted = False
        while not text.startswith("]", position):
            if scan.at(_CALLS, position):
                return begin  # the list is not closed; the calls in it are whole
            try:
                call = read_json_call(text, position)
            except NotACall as problem:
                end = _end_of_element(scan, position)
                if end is None:
                    return _refuse_rest(scan, begin, problem)
                scan.reject(begin, end, problem.status, problem.problem, problem.name)
                accepted = False
            else:
                end = call.end
                scan.accept(begin, end, call.name, call.arguments, call.values, call.id)
                accepted = True
            position = skip_blanks(text, end)
            if not text.startswith((",", "]"), position):
                return end  # it is not closed here either
            begin = end
            if text.startswith(",", position):
                position = skip_blanks(text, position + 1)
                begin = _drop_if(scan, accepted, end, position)
        return _drop_if(scan, accepted, begin, position + 1)


def _drop_if(scan: Scan, accepted: bool, start: int, end: int) -> int:
    """What stands between calls of a list belongs to a broken one before it, if there is one."""
    if accepted:
        scan.drop(start, end)
    return end


def _end_of_element(scan: Scan, position: int) -> int | None:
    """Where a broken element of a list ends, if the list clearly goes on or ends behind it."""
    following = scan.find(_CALLS, position)
    end = skip_balanced(scan.text, position, following if following >= 0 else len(scan.text))
    if end is None or not scan.text.startswith((",", "]"), skip_blanks(scan.text, end)):
        return None
    return end


def _refuse_rest(scan: Scan, start: int, problem: NotACall) -> int:
    """Report what is no call up to the next opening that is surely none of its text."""
    # The bracket of an opening reads like a list: JSON breaks one character behind it.
    following = scan.find(_CALLS, max(problem.reach - 1, problem.resume))
    end = following if following >= 0 else len(scan.text)
    status = CallStatus.TRUNCATED if problem.ended else problem.status
    scan.reject(start, end, status, problem.problem, problem.name)
    return end
