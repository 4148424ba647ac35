"""The format of Kimi K2 and K2.5: ``functions.NAME:INDEX`` and JSON between special tokens.

The model's id carries the name, so it is kept word for word. A section of calls ends thinking.
"""

from __future__ import annotations

import re

from environments.tool_call_parsers.base import CallStatus, Scan, Thinking
from environments.tool_call_parsers.framed_parser import FramedParser, header_text
from environments.tool_call_parsers.json_calls import NotACall
from environments.tool_call_parsers.json_scan import skip_blanks

_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>[^\s:][^\s]*):\d+")


class KimiK2Parser(FramedParser):
    """Reads a section of ``<|tool_call_begin|>`` calls."""

    frame_open, frame_close = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call_open, call_close = "<|tool_call_begin|>", "<|tool_call_end|>"
    markers = (frame_open, frame_close, call_open, call_close, _ARGUMENTS)
    thinking = Thinking(ended_by=(frame_open,))
    stop_texts = ("<|im_end|>", "[EOS]")

    def read_header(self, scan: Scan, position: int) -> tuple[str, str | None, int]:
        """The id, which holds the name."""
        stops = (self.call_open, self.call_close, self.frame_close)
        identifier, after = header_text(scan, position, _ARGUMENTS, stops)
        after = skip_blanks(scan.text, after)
        if match := _ID.fullmatch(identifier):
            return match["name"], identifier, after
        name = identifier.removeprefix("functions.")
        if scan.tools and scan.tools.knows(name):
            return name, None, after
        raise NotACall(
            CallStatus.MISSING_NAME, "its id is not functions.NAME:INDEX", resume=after, reach=after
        )
