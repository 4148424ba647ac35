"""The format of gpt-oss, called harmony: a reply is a row of messages, each with a header.

``<|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>commentary to=functions.name
<|constrain|>json<|message|>{...}<|call|>``. The channel says what a message is: ``analysis`` is thinking,
``final`` and ``commentary`` are content; a recipient makes it a call, on whatever channel and on either
side of the channel's name.
"""

from __future__ import annotations

import re

from environments.tool_call_parsers.base import CallStatus, Scan
from environments.tool_call_parsers.json_calls import JSONCall, read_arguments
from environments.tool_call_parsers.messages import RECIPIENT, Message, MessageParser

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTIONS = "functions."


class HarmonyParser(MessageParser):
    """Reads the messages of a harmony reply."""

    start_marks, body_marks, end_marks = (_START, _CHANNEL), (_MESSAGE,), (_CALL, _END, _RETURN)

    def header_start(self, text: str, position: int, body: int, begun: bool) -> int:
        """At the start marker; where the template has written that, the channel or the recipient."""
        start = text.rfind(_START, position, body)
        if start >= 0:
            return start
        channel = text.find(_CHANNEL, position, body)
        before = text[position : channel if channel >= 0 else body].strip()
        if not before or RECIPIENT.fullmatch(before):
            return position
        return channel if channel >= 0 else body

    def read_message(self, scan: Scan, message: Message) -> int:
        """A call, thinking, or content."""
        if recipient := RECIPIENT.search(message.header):
            name = recipient.group(1).removeprefix(_FUNCTIONS)

            def read(position: int) -> JSONCall:
                arguments, values, end = read_arguments(scan.text, position, name)
                return JSONCall(name, arguments, values, end)

            return self.read_json(scan, message, read)
        channel = _CHANNEL_NAME.search(message.header)
        if channel is not None and channel.group(1) == "analysis":
            return self.think(scan, message)
        return self.content(scan, message)

    def rest(self, scan: Scan, position: int) -> None:
        """A header that the end of the text has cut, or a marker that was left over."""
        rest = scan.text[position:].strip()
        found = min((f for mark in (_START, _CHANNEL) if (f := scan.find(mark, position)) >= 0), default=-1)
        if found >= 0 and (recipient := RECIPIENT.search(scan.text, found)):
            name = recipient.group(1).removeprefix(_FUNCTIONS)
            scan.reject(found, len(scan.text), CallStatus.TRUNCATED, "the text ends in its header", name)
        elif rest in (_START + "assistant", _END, _CALL, _RETURN):
            scan.drop(position, len(scan.text))
