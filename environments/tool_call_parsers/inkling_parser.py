"""The format of Inkling: messages whose kind is a token behind the header.

``<|message_model|>NAME<|content_invoke_tool_json|>{"name": ..., "args": {...}}<|end_message|>``, and the same
with ``<|content_thinking|>`` and ``<|content_text|>``. The name in the JSON counts; a header may have none.
"""

from __future__ import annotations

from environments.tool_call_parsers.base import CallStatus, Scan
from environments.tool_call_parsers.json_calls import NotACall, read_json_call
from environments.tool_call_parsers.json_scan import json_text
from environments.tool_call_parsers.messages import Message, MessageParser

_MODEL, _END, _SAMPLED = "<|message_model|>", "<|end_message|>", "<|content_model_end_sampling|>"
_THINKING, _TEXT = "<|content_thinking|>", "<|content_text|>"
_JSON_CALL, _TEXT_CALL = "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"


class InklingParser(MessageParser):
    """Reads the messages of an Inkling reply."""

    start_marks = (_MODEL,)
    body_marks = (_JSON_CALL, _TEXT_CALL, _THINKING, _TEXT)
    end_marks = (_END, _SAMPLED)

    def header_start(self, text: str, position: int, body: int, begun: bool) -> int:
        """At the start marker, or where the template has left the header."""
        start = text.rfind(_MODEL, position, body)
        if start >= 0:
            return start
        return position if begun or not text[position:body].strip() else body

    def read_message(self, scan: Scan, message: Message) -> int:
        """What the kind says."""
        if message.header.endswith(_JSON_CALL):
            return self.read_json(
                scan,
                message,
                lambda at: read_json_call(scan.text, at, argument_keys=("args", "arguments", "parameters")),
            )
        if message.header.endswith(_TEXT_CALL):
            return self._read_text_call(scan, message)
        if message.header.endswith(_THINKING):
            return self.think(scan, message)
        return self.content(scan, message)

    def rest(self, scan: Scan, position: int) -> None:
        """Markers with nothing between them."""
        rest = scan.text[position:]
        for mark in (_MODEL, _END, _SAMPLED):
            rest = rest.replace(mark, "")
        if not rest.strip():
            scan.drop(position, len(scan.text))

    def _read_text_call(self, scan: Scan, message: Message) -> int:
        """A call whose only argument is the text of the message; the header has its name.

        Nothing but the end marker shows that the text is whole.
        """
        name = message.header.removesuffix(_TEXT_CALL).removeprefix(_MODEL).strip()
        ended = message.ended_by is None
        if ended or not name:
            problem = "the text ends" if ended else "its header has no name"
            status = CallStatus.TRUNCATED if ended else CallStatus.MISSING_NAME
            at = message.body_end
            refused = NotACall(status, problem, name=name or None, resume=at, reach=at, ended=ended)
            return self.refuse_message(scan, message, refused)
        values = {"text": scan.text[message.body : message.body_end]}
        scan.accept(message.start, message.end, name, json_text(values), values)
        return message.end
