"""Replies that are a row of messages, each with a header that says whom it is for.

A header begins with a start marker and ends with a body marker; an end marker closes the message. The
template may have written the beginning of the first header. What a message means is the family's.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.json_calls import JSONCall, NotACall
from environments.tool_call_parsers.json_scan import skip_blanks

RECIPIENT = re.compile(r"\bto=([^\s<]+)")


@dataclass(frozen=True, slots=True)
class Message:
    """Where a message stands: its header, its body, and the marker that ends it (None: none does)."""

    start: int
    body: int
    body_end: int
    end: int
    header: str
    ended_by: str | None


class MessageParser(ToolCallParser):
    """The walk over messages; a family names its markers and reads what a message holds."""

    start_marks: ClassVar[tuple[str, ...]]
    """What a header begins with, and parts of it that may stand alone where the template began it."""
    body_marks: ClassVar[tuple[str, ...]]
    """What a header ends with."""
    end_marks: ClassVar[tuple[str, ...]]
    """What closes a message."""
    thinking = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.opening = "|".join(map(re.escape, cls.body_marks))
        cls.markers = (*cls.start_marks, *cls.body_marks, *cls.end_marks)

    @abstractmethod
    def read_message(self, scan: Scan, message: Message) -> int:
        """Report what ``message`` holds; returns where the walk goes on."""

    @abstractmethod
    def header_start(self, text: str, position: int, body: int, begun: bool) -> int:
        """Where the header begins whose body marker stands at ``body``; text before it is content.

        ``begun``: the template has written the beginning of the header.
        """

    def rest(self, scan: Scan, position: int) -> None:
        """What is left when no message begins any more; where nothing is reported it is content."""

    def read(self, scan: Scan, start: int) -> int:
        """Not used: the reply is read message by message."""
        return start

    def walk(self, scan: Scan, generation_prompt: str) -> None:
        """Every message of the reply; text without any header is content."""
        begun = generation_prompt.rfind(self.start_marks[0])
        header, position = generation_prompt[begun:] if begun >= 0 else "", 0
        if any(mark in header for mark in self.body_marks):  # the template has begun the body too
            position = self.read_message(scan, self._message(scan, 0, 0, header))
            header = ""
        while position < len(scan.text):
            message = self._next_message(scan, position, header)
            if message is None:
                self.rest(scan, position)
                break
            position, header = max(self.read_message(scan, message), message.body), ""

    def ends_of_body(self, scan: Scan) -> tuple[str, ...]:
        """The markers that end a body: any, since a model may forget to close it."""
        return self.markers

    def refuse_message(self, scan: Scan, message: Message, problem: NotACall) -> int:
        """Report a message whose call cannot be read; where the walk goes on."""
        status = CallStatus.TRUNCATED if problem.ended else problem.status
        resume = message.end if problem.reach <= message.body_end else problem.reach
        scan.reject(message.start, resume, status, problem.problem, problem.name)
        return resume

    def read_json(self, scan: Scan, message: Message, read: Callable[[int], JSONCall]) -> int:
        """Report the call in JSON that is all of the message; where the walk goes on.

        ``read`` reads it from a position and raises ``NotACall``. A marker inside a string is no end.
        """
        try:
            call = read(skip_blanks(scan.text, message.body))
            end = self._end_of_call(scan, call.end, call.name)
        except NotACall as problem:
            return self.refuse_message(scan, message, problem)
        scan.accept(message.start, end, call.name, call.arguments, call.values)
        return end

    def content(self, scan: Scan, message: Message) -> int:
        """Report a message whose body is content; where the walk goes on."""
        scan.drop(message.start, message.body)
        if message.end > message.body_end:
            scan.drop(message.body_end, message.end)
        return message.end

    def think(self, scan: Scan, message: Message) -> int:
        """Report a message whose body is thinking; where the walk goes on."""
        closed = message.ended_by is not None
        scan.think(message.start, message.body, message.body_end, message.end, closed=closed)
        return message.end

    def _next_message(self, scan: Scan, position: int, header: str) -> Message | None:
        """The next message. ``header`` is what the template has written of the first one's header."""
        marks = [(at, mark) for mark in self.body_marks if (at := scan.find(mark, position)) >= 0]
        if not marks:
            return None
        body, mark = min(marks)
        start = self.header_start(scan.text, position, body, bool(header))
        after = body + len(mark)
        return self._message(scan, start, after, header + scan.text[start:after])

    def _message(self, scan: Scan, start: int, body: int, header: str) -> Message:
        marks = self.ends_of_body(scan)
        ends = [(found, mark) for mark in marks if (found := scan.find(mark, body)) >= 0]
        if not ends:
            return Message(start, body, len(scan.text), len(scan.text), header, None)
        found, mark = min(ends)
        closes = mark in self.end_marks
        return Message(start, body, found, found + len(mark) * closes, header, mark)

    def _end_of_call(self, scan: Scan, end: int, name: str) -> int:
        position = skip_blanks(scan.text, end)
        for mark in self.end_marks:
            if scan.at(mark, position):
                return position + len(mark)
        if any(scan.at(mark, position) for mark in self.start_marks):
            return end
        at_end = any(scan.ends_in(mark, position) for mark in self.end_marks)
        if at_end and scan.finished:  # the server took the stop token away
            return len(scan.text)
        problem = "the text ends" if at_end else "something stands behind the arguments"
        raise NotACall(
            CallStatus.MALFORMED, problem, name=name, resume=position, reach=position, ended=at_end
        )
