"""The text under a parser, and the record of what the parser found in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from environments.tool_call_parsers.calls import Function, ToolCall, new_call_id
from environments.tool_call_parsers.result import CallAttempt, CallStatus, ParseResult
from environments.tool_call_parsers.schema import ToolSchemas

_FENCE = "```"
_NOT_BLANK = re.compile(r"\S")


class Scan:
    """One pass over one text, from left to right.

    A parser moves through ``text`` with ``find`` and ``at``, and reports with ``accept``, ``reject``,
    ``drop`` and ``think``, in the order of the text. ``finished`` is False where the reply was cut off.
    """

    def __init__(
        self,
        text: str,
        tools: ToolSchemas,
        *,
        finished: bool = True,
        markers: Mapping[str, frozenset[int]] | None = None,
    ) -> None:
        self.text, self.tools, self.finished = text, tools, finished
        self.runnable = True
        """False while reading thinking that never ends: what looks like a call there is none."""
        self._markers = markers or {}
        self._found: dict[str, tuple[int, int]] = {}
        self._attempts: list[CallAttempt] = []
        self._calls: list[ToolCall] = []
        self._removed: list[tuple[int, int]] = []
        self._thoughts: list[tuple[int, int]] = []
        self._closed: bool | None = None
        self._reported = 0
        self._first = (-1, -1)
        self.memo: dict[object, Any] = {}
        """What a parser worked out about the whole text and needs again."""

    def is_marker(self, marker: str, position: int) -> bool:
        """Whether what reads like ``marker`` at ``position`` was sampled as that one token.

        Always so for plain text, and for what neither is a token of its own nor begins with one.
        """
        if not self._markers:
            return True
        places = self._markers.get(marker)
        return not self.spelled_out(position) if places is None else position in places

    def sampled(self, marker: str) -> bool:
        """Whether ``marker`` is a token here, so that nothing spelled out can pass for it."""
        return marker in self._markers

    def spelled_out(self, position: int) -> bool:
        """Whether some marker reads at ``position`` that was not sampled as its token."""
        return any(
            position not in places and self.text.startswith(marker, position)
            for marker, places in self._markers.items()
        )

    def at(self, marker: str, position: int) -> bool:
        """Whether ``marker`` stands at ``position``."""
        return self.text.startswith(marker, position) and self.is_marker(marker, position)

    def find(self, marker: str, position: int) -> int:
        """Where ``marker`` stands next, -1 where it does not. Rising positions cost linear time."""
        asked, found = self._found.get(marker, (1, 0))
        if asked <= position and (found < 0 or position <= found):
            return found
        found = self.find_before(marker, position, len(self.text))
        self._found[marker] = (position, found)
        return found

    def find_before(self, marker: str, position: int, limit: int) -> int:
        """The same, not looking further than ``limit``; it costs what it looks at, each time."""
        found = self.text.find(marker, position, limit)
        while found >= 0 and not self.is_marker(marker, found):
            found = self.text.find(marker, found + 1, limit)
        return found

    def ends_in(self, marker: str, position: int) -> bool:
        """Whether nothing but the beginning of ``marker``, or nothing at all, is left at ``position``."""
        return marker.startswith(self.text[position : position + len(marker)]) and (
            len(self.text) - position < len(marker)
        )

    def accept(
        self, start: int, end: int, name: str, arguments: str, values: dict[str, Any], id: str | None = None
    ) -> None:
        """A whole call stands between ``start`` and ``end``; ``arguments`` is the JSON text of ``values``."""
        if not self.runnable:
            self.reject(start, end, CallStatus.MALFORMED, "it stands inside thinking that never ends", name)
            return
        call = ToolCall(id or new_call_id(), Function(name, arguments))
        status, problem = CallStatus.OK, ""
        if not self.tools.knows(name):
            status, problem = CallStatus.UNKNOWN_TOOL, f"there is no tool {json.dumps(name)}"
        raw = self.text[start:end]
        self._attempts.append(CallAttempt(status, raw, (start, end), name, values, call.id, problem))
        self._calls.append(call)
        self._removed.append((start, end))
        self._reported = end

    def reject(self, start: int, end: int, status: CallStatus, problem: str, name: str | None = None) -> None:
        """What stands between ``start`` and ``end`` was meant as a call and is none; it stays content."""
        self._attempts.append(CallAttempt(status, self.text[start:end], (start, end), name, problem=problem))
        self._reported = end

    def drop(self, start: int, end: int) -> None:
        """A marker around calls that belongs to no content."""
        self._removed.append((start, end))
        self._reported = max(self._reported, end)

    def think(self, start: int, body: int, body_end: int, end: int, *, closed: bool) -> None:
        """Thinking stands between ``body`` and ``body_end``; with its markers it reaches to ``end``."""
        self._thoughts.append((body, body_end))
        self._removed.append((start, end))
        self._reported = end
        self._closed = closed

    def ends_frame(self, position: int) -> bool:
        """Whether only blanks stand between ``position`` and a call that was accepted."""
        return bool(self._attempts) and self._attempts[-1].runnable and self.follows_call(position)

    def follows_call(self, position: int) -> bool:
        """Whether only blanks stand between ``position`` and what was reported last, or the beginning of
        the text."""
        if self._first[0] != self._reported:
            match = _NOT_BLANK.search(self.text, self._reported)
            self._first = (self._reported, match.start() if match else len(self.text))
        return self._reported <= position <= self._first[1]

    def begins_line(self, position: int) -> bool:
        """Whether only blanks stand before ``position`` in its line, and no fence opens right above."""
        text, line = self.text, position
        while line > 0 and text[line - 1] in " \t":
            line -= 1
        if line == 0:
            return True
        return text[line - 1] == "\n" and not text.startswith(_FENCE, text.rfind("\n", 0, line - 1) + 1)

    @property
    def accepted(self) -> int:
        """How many calls were accepted so far."""
        return len(self._calls)

    @property
    def has_thought(self) -> bool:
        """Whether any thinking was reported."""
        return self._closed is not None

    def forget(self) -> None:
        """Take back everything that was reported."""
        for kept in (self._attempts, self._calls, self._removed, self._thoughts):
            kept.clear()

    def result(self) -> ParseResult:
        """What was reported, and the content that is left."""
        thoughts = [self.text[start:end].strip() for start, end in self._thoughts]
        return ParseResult(
            content=self._content(),
            tool_calls=self._calls or None,
            reasoning="\n".join(thought for thought in thoughts if thought) or None,
            reasoning_closed=self._closed,
            attempts=self._attempts,
        )

    def _content(self) -> str | None:
        if not self._removed:
            return self.text
        pieces: list[str] = []
        position = 0
        for start, end in [*sorted(self._removed), (len(self.text), len(self.text))]:
            piece = self.text[position:start]
            if piece and not piece.isspace():  # blanks that only separated blocks vanish with them
                pieces.append(piece)
            position = end
        return "".join(pieces).strip() or None
