"""The format of Muse Glimmer: messages to a recipient, the calls in those to a tool.

``<|start|>assistant to=self<|message|>thinking<|eom|><|start|>assistant to=NAME<|message|>
<atem:function_calls><atem:invoke name="NAME">...``. What is written to ``user`` or to nobody is content; the
tags of a call are text there, and so is a header that is spelled out in a message.
"""

from __future__ import annotations

import re

from environments.tool_call_parsers.base import CallStatus, Scan
from environments.tool_call_parsers.invoke_parser import BlockParser, invoke_block
from environments.tool_call_parsers.json_scan import skip_blanks
from environments.tool_call_parsers.messages import RECIPIENT, Message, MessageParser

_START, _MESSAGE, _END, _STOP = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
_BLOCK = invoke_block("<atem:function_calls>", "</atem:function_calls>", "atem:")
_HEADER = re.compile(r"\s*(?:assistant\s*)?(?:to=[^\s<]*)?\s*")


class MuseGlimmerParser(MessageParser, BlockParser):
    """Reads the messages of a Muse Glimmer reply."""

    start_marks, body_marks, end_marks = (_START,), (_MESSAGE,), (_END, _STOP)
    blocks = (_BLOCK,)

    def header_start(self, text: str, position: int, body: int, begun: bool) -> int:
        """At the start marker, or where the template has left the header."""
        start = text.rfind(_START, position, body)
        if start >= 0:
            return start
        return position if begun or _HEADER.fullmatch(text, position, body) else body

    def ends_of_body(self, scan: Scan) -> tuple[str, ...]:
        """The end markers, and a header only where it was sampled as a token."""
        return (*self.end_marks, _START) if scan.sampled(_START) else self.end_marks

    def read_message(self, scan: Scan, message: Message) -> int:
        """What the recipient says."""
        recipient = RECIPIENT.search(message.header)
        if recipient is None or recipient.group(1) == "user":
            return self.content(scan, message)
        if recipient.group(1) == "self":
            return self.think(scan, message)
        return self._read_calls(scan, message, recipient.group(1))

    def name_of(self, scan: Scan, name: str) -> str:
        """Without the namespace, where the template has made one of the name itself."""
        namespace, _, own = name.partition(".")
        doubled = namespace == own and not scan.tools.knows(name)
        return own if doubled and scan.tools.knows(own) else name

    def _read_calls(self, scan: Scan, message: Message, recipient: str) -> int:
        body = skip_blanks(scan.text, message.body)
        if scan.at(_BLOCK.opening, body):
            body += len(_BLOCK.opening)
        if not message.body <= self.next_call(scan, _BLOCK, body) < message.end:
            cut = message.ended_by is None
            status = CallStatus.TRUNCATED if cut else CallStatus.MALFORMED
            problem = "the text ends before a call" if cut else "it holds no call that can be read"
            scan.reject(message.start, message.end, status, problem, recipient)
            return message.end
        end = self.read_block(scan, _BLOCK, message.start, body)
        tail = skip_blanks(scan.text, end)
        mark = next((mark for mark in self.end_marks if scan.at(mark, tail)), "")
        if mark:
            scan.drop(end, tail + len(mark))
        return tail + len(mark) if mark else end
