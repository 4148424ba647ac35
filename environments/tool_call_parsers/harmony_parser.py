"""The format of gpt-oss, called harmony: a reply is a row of messages, each with a header.

``<|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>commentary to=functions.name
<|constrain|>json<|message|>{...}<|call|>``. The channel says what a message is: ``analysis`` is thinking,
``final`` and ``commentary`` are content; a recipient makes it a call, on whatever channel and on either
side of the channel's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.json_calls import NotACall, read_arguments
from environments.tool_call_parsers.json_scan import skip_blanks

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTIONS = "functions."
_TAIL_LIMIT = 32


@dataclass(frozen=True, slots=True)
class _Message:
    """Where a message stands: its header, its body, and the marker that ends it (None: none does)."""

    start: int
    body: int
    body_end: int
    end: int
    header: str
    ended_by: str | None


class HarmonyParser(ToolCallParser):
    """Reads the messages of a harmony reply."""

    opening = re.escape(_MESSAGE)
    markers = (_START, _CHANNEL, _MESSAGE, _END, _CALL, _RETURN)
    thinking = None

    def read(self, scan: Scan, start: int) -> int:
        """Not used: the reply is read message by message."""
        return start

    def walk(self, scan: Scan, generation_prompt: str) -> None:
        """Every message of the reply; text without any header is content."""
        position, header = 0, generation_prompt[generation_prompt.rfind(_START) + len(_START) :]
        if _MESSAGE in header:  # the template has begun the body too
            position = self._report(scan, self._message(scan, 0, 0, header))
        while position < len(scan.text):
            message = self._next_message(scan, position)
            if message is None:
                break
            position = self._report(scan, message)

    def _next_message(self, scan: Scan, position: int) -> _Message | None:
        body = scan.find(_MESSAGE, position)
        if body < 0:
            self._headless(scan, position)
            return None
        start = _header_start(scan.text, position, body)
        return self._message(scan, start, body + len(_MESSAGE), scan.text[start:body])

    def _headless(self, scan: Scan, position: int) -> None:
        """The rest of a text in which no message begins any more."""
        rest = scan.text[position:].strip()
        found = min((f for mark in (_START, _CHANNEL) if (f := scan.find(mark, position)) >= 0), default=-1)
        if found >= 0 and (recipient := _RECIPIENT.search(scan.text, found)):
            name = recipient.group(1).removeprefix(_FUNCTIONS)
            scan.reject(found, len(scan.text), CallStatus.TRUNCATED, "the text ends in its header", name)
        elif rest in (_START + "assistant", _END, _CALL, _RETURN):
            scan.drop(position, len(scan.text))

    def _message(self, scan: Scan, start: int, body: int, header: str) -> _Message:
        length = len(scan.text)
        ends = [(found, mark) for mark in self.markers if (found := scan.find(mark, body)) >= 0]
        if not ends:
            return _Message(start, body, length, length, header, None)
        found, mark = min(ends)
        closes = mark in (_END, _CALL, _RETURN)
        return _Message(start, body, found, found + len(mark) * closes, header, mark)

    def _report(self, scan: Scan, message: _Message) -> int:
        channel = _CHANNEL_NAME.search(message.header)
        recipient = _RECIPIENT.search(message.header)
        if recipient is not None:
            return self._report_call(scan, message, recipient.group(1).removeprefix(_FUNCTIONS))
        if channel is not None and channel.group(1) == "analysis":
            closed = message.ended_by is not None
            scan.think(message.start, message.body, message.body_end, message.end, closed=closed)
            return message.end
        scan.drop(message.start, message.body)
        if message.end > message.body_end:
            scan.drop(message.body_end, message.end)
        return message.end

    def _report_call(self, scan: Scan, message: _Message, name: str) -> int:
        text = scan.text
        try:
            arguments, values, end = read_arguments(text, skip_blanks(text, message.body), name)
            end = self._end_of_call(scan, end, name)
        except NotACall as problem:
            status = CallStatus.TRUNCATED if problem.ended else problem.status
            resume = message.end if problem.reach <= message.body_end else problem.reach
            scan.reject(message.start, resume, status, problem.problem, name)
            return resume
        scan.accept(message.start, end, name, arguments, values)
        return end

    def _end_of_call(self, scan: Scan, end: int, name: str) -> int:
        """Where the call ends whose arguments end at ``end``: a marker inside a string is no end."""
        text = scan.text
        position = skip_blanks(text, end)
        for mark in (_CALL, _END, _RETURN):
            if scan.at(mark, position):
                return position + len(mark)
        if scan.at(_START, position) or scan.at(_CHANNEL, position):
            return end
        rest = text[position : position + _TAIL_LIMIT]
        at_end = any(mark.startswith(rest) for mark in (_CALL, _END, _RETURN))
        if at_end and scan.finished:  # the server took the stop token away
            return len(text)
        problem = "the text ends" if at_end else "something stands behind the arguments"
        raise NotACall(
            CallStatus.MALFORMED, problem, name=name, resume=position, reach=position, ended=at_end
        )


def _header_start(text: str, position: int, body: int) -> int:
    """Where the header begins whose message marker stands at ``body``; text before it is content.

    The template may have written the beginning of the header, so that it begins in the middle.
    """
    start = text.rfind(_START, position, body)
    if start >= 0:
        return start
    channel = text.find(_CHANNEL, position, body)
    before = text[position : channel if channel >= 0 else body].strip()
    if not before or _RECIPIENT.fullmatch(before):
        return position
    return channel if channel >= 0 else body
