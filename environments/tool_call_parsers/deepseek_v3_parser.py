"""The format of DeepSeek V3 and R1: ``function``, the name, and the arguments in a fence of JSON."""

from __future__ import annotations

import re
from typing import ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan
from environments.tool_call_parsers.framed_parser import FramedParser, header_text
from environments.tool_call_parsers.json_calls import NotACall

_SEPARATOR = "<｜tool▁sep｜>"
_NAME = re.compile(r"[ \t]*(?P<name>[^\s`{<]+)\s*(?:```(?:json)?\s*)?(?=\{|\Z)")
_FENCE = "```"


class DeepseekFrame(FramedParser):
    """The tokens that all DeepSeek V3 formats share."""

    frame_open, frame_close = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call_open, call_close = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    markers: ClassVar[tuple[str, ...]] = (frame_open, frame_close, call_open, call_close, _SEPARATOR)
    stop_texts: ClassVar[tuple[str, ...]] = ("<｜end▁of▁sentence｜>",)

    def before_separator(self, scan: Scan, position: int) -> tuple[str, int]:
        """The text before the separator, and where what follows it begins. Raises ``NotACall``."""
        return header_text(scan, position, _SEPARATOR, (self.call_open, self.call_close, self.frame_close))


class DeepseekV3Parser(DeepseekFrame):
    """Reads calls whose arguments stand in a fence."""

    def read_header(self, scan: Scan, position: int) -> tuple[str, str | None, int]:
        """The kind, which is always ``function``, the name, and the opening of the fence."""
        _, after = self.before_separator(scan, position)
        match = _NAME.match(scan.text, after)
        if match is None:
            raise NotACall(
                CallStatus.MALFORMED,
                "its name is not followed by a fence of JSON",
                resume=after,
                reach=after,
            )
        return match["name"], None, match.end()

    def after_arguments(self, scan: Scan, position: int) -> int:
        """Past the end of the fence."""
        return position + len(_FENCE) if scan.text.startswith(_FENCE, position) else position
