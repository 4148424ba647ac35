"""Calls written as tags, each parameter with its value as plain text between two of them.

Values are not escaped, so a value may hold text that looks like the format itself. What decides is the
grammar: a closing tag ends a value only where something follows that may follow it, and a whole call
inside a value (an example in a file that the model writes) belongs to the value. All of that is
worked out once per text, from right to left, so that no input costs more than linear time.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from environments.tool_call_parsers.json_calls import NotACall
from environments.tool_call_parsers.json_scan import json_text, skip_blanks
from environments.tool_call_parsers.result import CallStatus
from environments.tool_call_parsers.scan import Scan

_STRING_WORDS = ("true", "string")


@dataclass(frozen=True)
class TagGrammar:
    """The tags of a family, as regular expressions that match in linear time.

    ``call`` matches the opening of a call and has a group ``name``; ``parameter`` the opening of a
    value, with a group ``key`` and maybe a group ``string``, which is what the tag itself says of the
    value: "true" or "string" where it is a string. ``block_close`` closes what may stand around calls.
    ``newline``: the template puts a line break between the tags and the value, which is no part of it.
    ``quote`` are the marks between which a value may stand that nothing inside it ends but the second.
    ``unescape`` gives the name or the key that was meant by what stands in the tag.
    """

    call: str
    call_close: str
    parameter: str
    parameter_close: str
    block_open: str = ""
    block_close: str = ""
    newline: bool = False
    quote: tuple[str, str] | None = None
    unescape: Callable[[str], str] = str.strip

    def compiled(self) -> CompiledGrammar:
        """The grammar, ready for use."""
        return CompiledGrammar(self)


class CompiledGrammar:
    """Compiled expressions of a ``TagGrammar``."""

    def __init__(self, grammar: TagGrammar) -> None:
        self.grammar = grammar
        call_close, block_close = re.escape(grammar.call_close), re.escape(grammar.block_close)
        after_value = [_unnamed(grammar.parameter), call_close]
        after_call = [_unnamed(grammar.call)]
        if grammar.block_close:
            after_value.append(block_close)
            after_call += [block_close, rf"{re.escape(grammar.block_open)}\s*{_unnamed(grammar.call)}"]
        self.call = re.compile(grammar.call)
        self.parameter = re.compile(grammar.parameter)
        inner = rf"(?=\s*(?:{_unnamed(grammar.parameter)}|{call_close}))"
        self.tokens = _alternatives(
            nested=f"{_unnamed(grammar.call)}{inner}",
            parameter=_unnamed(grammar.parameter),
            value_end=rf"{re.escape(grammar.parameter_close)}(?=\s*(?:{'|'.join(after_value)}))",
            call_end=rf"{call_close}(?P<last>(?=\s*(?:{'|'.join(after_call)})))?",
        )


def _alternatives(**patterns: str) -> re.Pattern[str]:
    """One expression of named alternatives; a first character that all share is looked for at C speed."""
    lead = "<" if all(pattern.startswith("<") for pattern in patterns.values()) else ""
    named = "|".join(f"(?P<{name}>{pattern.removeprefix(lead)})" for name, pattern in patterns.items())
    return re.compile(f"{lead}(?:{named})")


def _unnamed(pattern: str) -> str:
    return re.sub(r"\(\?P<\w+>", "(?:", pattern)


class TagIndex:
    """Where each value of one text ends, for every place where one may begin."""

    def __init__(self, scan: Scan, grammar: CompiledGrammar) -> None:
        self._starts: list[int] = []
        self._kinds: list[str] = []
        for match in grammar.tokens.finditer(scan.text):
            if scan.spelled_out(match.start()):
                continue
            kind = match.lastgroup or ""
            self._starts.append(match.start())
            # Only a line of its own shows that a closing tag was forgotten before the end of the call.
            own_line = grammar.grammar.newline and scan.text[match.start() - 1 : match.start()] == "\n"
            last = kind == "call_end" and match["last"] is not None and own_line
            self._kinds.append("inner_call_end" if kind == "call_end" and not last else kind)
        count = len(self._starts)
        # For a scan that begins at token i outside any nested call: the token that ends the value, and
        # the next token that ends a call. ``count`` stands for none.
        self._value_end = [count] * (count + 2)
        self._call_end = [count] * (count + 2)
        self._quoted_end = [count] * (count + 2)
        quote = grammar.grammar.quote
        for i in range(count - 1, -1, -1):
            kind = self._kinds[i]
            self._value_end[i], self._call_end[i] = self._value_end[i + 1], self._call_end[i + 1]
            self._quoted_end[i] = self._quoted_end[i + 1]
            if quote and kind == "value_end" and scan.text.endswith(quote[1], 0, self._starts[i]):
                self._quoted_end[i] = i
            if kind == "nested":
                behind = min(self._call_end[i + 1] + 1, count)
                self._value_end[i], self._call_end[i] = self._value_end[behind], self._call_end[behind]
            elif kind == "value_end":
                self._value_end[i] = i
            elif kind == "call_end":
                self._value_end[i] = self._call_end[i] = i
            elif kind == "inner_call_end":
                self._call_end[i] = i

    def value_end(self, start: int) -> tuple[int, list[int]] | None:
        """Where the value that begins at ``start`` ends, and the openings of parameters before that
        which stand in no nested call; None where it does not end."""
        i = bisect_left(self._starts, start)
        end = self._value_end[i]
        if end >= len(self._starts):
            return None
        openings: list[int] = []
        while i < end:
            if self._kinds[i] == "parameter":
                openings.append(self._starts[i])
            i = self._call_end[i + 1] + 1 if self._kinds[i] == "nested" else i + 1
        return self._starts[end], openings

    def quoted_end(self, start: int) -> int | None:
        """Where the closing tag stands of the quoted value that begins at ``start``; None for nowhere."""
        end = self._quoted_end[bisect_left(self._starts, start)]
        return self._starts[end] if end < len(self._starts) else None


@dataclass(slots=True)
class TaggedCall:
    """A call read from tags."""

    name: str
    arguments: str
    values: dict[str, Any]
    end: int


def read_tagged_call(scan: Scan, start: int, grammar: CompiledGrammar) -> TaggedCall:
    """The call whose opening stands at ``start``. Raises ``NotACall``."""
    tags = grammar.grammar
    opening = grammar.call.match(scan.text, start)
    if opening is None:
        raise NotACall(CallStatus.MALFORMED, "its first tag is broken", resume=start + 1, reach=start + 1)
    name = tags.unescape(opening["name"])
    if not name:
        raise NotACall(CallStatus.MISSING_NAME, "it has no name", resume=opening.end(), reach=opening.end())
    members: dict[str, tuple[Any, str]] = {}
    position = skip_blanks(scan.text, opening.end())
    while parameter := grammar.parameter.match(scan.text, position):
        key = tags.unescape(parameter["key"])
        if key in members:
            raise NotACall(
                CallStatus.MALFORMED,
                f"it gives {json_text(key)} twice",
                name=name,
                resume=parameter.end(),
                reach=parameter.end(),
            )
        text, position = _value_text(scan, parameter.end(), grammar, name, {*members, key})
        written_as = parameter.groupdict().get("string")
        is_string = written_as in _STRING_WORDS if written_as else None
        members[key] = scan.tools.value(name, key, text, is_string=is_string)
        position = skip_blanks(scan.text, position)
    if scan.at(tags.call_close, position):
        position += len(tags.call_close)
    elif not tags.block_close or not scan.at(tags.block_close, position):
        raise _broken(scan, position, name, tags)
    written = ", ".join(f"{json_text(key)}: {text}" for key, (_, text) in members.items())
    values = {key: value for key, (value, _) in members.items()}
    return TaggedCall(name, f"{{{written}}}", values, position)


def _value_text(
    scan: Scan, start: int, grammar: CompiledGrammar, name: str, given: Collection[str]
) -> tuple[str, int]:
    """The text of the value, and where what comes after its closing tag begins."""
    index: TagIndex = scan.memo.get(grammar) or scan.memo.setdefault(grammar, TagIndex(scan, grammar))
    tags, text = grammar.grammar, scan.text
    body = skip_blanks(text, start)
    if tags.quote and text.startswith(tags.quote[0], body):
        body += len(tags.quote[0])
        quoted_end = index.quoted_end(body)
        if quoted_end is None:
            raise _endless(scan, start, name)
        return text[body : quoted_end - len(tags.quote[1])], quoted_end + len(tags.parameter_close)
    end, after = _value_bounds(scan, start, grammar, index.value_end(start), name, given)
    return _trimmed(text[start:end], tags.newline), after


def _value_bounds(
    scan: Scan,
    start: int,
    grammar: CompiledGrammar,
    found: tuple[int, list[int]] | None,
    name: str,
    given: Collection[str],
) -> tuple[int, int]:
    """Where the value ends, and where what comes after its closing tag begins."""
    if found is None:
        raise _endless(scan, start, name)
    end, openings = found
    known = scan.tools.properties(name)
    for opening in openings:
        match = grammar.parameter.match(scan.text, opening)
        key = grammar.grammar.unescape(match["key"]) if match else ""
        expected = key in known if known is not None else scan.text[opening - 1] == "\n"
        if expected and key not in given:
            return opening, opening  # the closing tag was forgotten
    tag = grammar.grammar.parameter_close
    if scan.text.startswith(tag, end):
        return end, end + len(tag)
    if scan.text.find(tag, start, end) >= 0:
        problem = "something stands between a value and the end of the call"
        raise NotACall(CallStatus.MALFORMED, problem, name=name, resume=end, reach=end)
    return end, end


def _trimmed(value: str, newline: bool) -> str:
    if not newline:
        return value
    value = value.removeprefix("\n")
    return value.removesuffix("\n")


def _endless(scan: Scan, start: int, name: str) -> NotACall:
    return NotACall(
        CallStatus.UNCLOSED,
        "a value has no closing tag",
        name=name,
        resume=start,
        reach=len(scan.text),
        ended=True,
    )


def _broken(scan: Scan, position: int, name: str, tags: TagGrammar) -> NotACall:
    rest = scan.text[position : position + 1]
    ended = not rest or (rest == "<" and scan.text.find(">", position) < 0)
    problem = "the text ends inside it" if ended else f"neither a parameter nor {tags.call_close} follows"
    return NotACall(CallStatus.MALFORMED, problem, name=name, resume=position, reach=position, ended=ended)
