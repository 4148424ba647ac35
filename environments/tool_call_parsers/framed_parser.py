"""Calls between special tokens: a frame around all of them, and in each a header and JSON arguments.

``FRAME_OPEN (CALL_OPEN header SEPARATOR arguments CALL_CLOSE)* FRAME_CLOSE``. The frame may be missing,
and so may a closing token where the next one or the end of the reply shows that the call is whole.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.json_calls import NotACall, read_arguments, refuse
from environments.tool_call_parsers.json_scan import skip_blanks


class CallFrameParser(ToolCallParser):
    """The walk over frames; a family names its tokens and reads a call."""

    frame_open: ClassVar[str]
    frame_close: ClassVar[str]
    call_open: ClassVar[str]
    call_close: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "call_close"):
            cls.opening = "|".join(map(re.escape, (cls.frame_open, cls.call_open, cls.frame_close)))

    @abstractmethod
    def read_call(self, scan: Scan, start: int) -> int:
        """Report the call whose opening token stands at ``start``; where the walk goes on."""

    def read(self, scan: Scan, start: int) -> int:
        """A call, or a token of the frame around calls."""
        if scan.at(self.call_open, start):
            return self.read_call(scan, start)
        if scan.at(self.frame_close, start):
            end = start + len(self.frame_close)
            if scan.ends_frame(start):
                scan.drop(start, end)
            return end
        first, accepted = skip_blanks(scan.text, start + len(self.frame_open)), scan.accepted
        if not scan.at(self.call_open, first):
            return self._no_call(scan, start, first)
        end = self.read_call(scan, first)
        if scan.accepted > accepted:
            scan.drop(start, first)
        return end

    def _no_call(self, scan: Scan, start: int, position: int) -> int:
        """A frame without a call at its beginning; the token may be a word in a sentence."""
        if scan.ends_in(self.call_open, position):
            scan.reject(
                start, len(scan.text), CallStatus.TRUNCATED, "the text ends where a call should begin"
            )
            return len(scan.text)
        return position


class FramedParser(CallFrameParser):
    """Frames of calls with a header and JSON; a family reads the header."""

    @abstractmethod
    def read_header(self, scan: Scan, position: int) -> tuple[str, str | None, int]:
        """Name and id of the call whose header begins at ``position``, and where its arguments begin.

        Raises ``NotACall``.
        """

    def after_arguments(self, scan: Scan, position: int) -> int:
        """Past what the family writes between the arguments and the closing token."""
        return position

    def read_call(self, scan: Scan, start: int) -> int:
        """A header, and arguments in JSON."""
        try:
            header = skip_blanks(scan.text, start + len(self.call_open))
            name, identifier, position = self.read_header(scan, header)
            arguments, values, end = read_arguments(scan.text, position, name)
            end = self._end_of_call(scan, end, name)
        except NotACall as problem:
            return refuse(scan, start, problem, self.call_open, self.call_close)
        scan.accept(start, end, name, arguments, values, identifier)
        return end

    def _end_of_call(self, scan: Scan, end: int, name: str) -> int:
        position = skip_blanks(scan.text, self.after_arguments(scan, skip_blanks(scan.text, end)))
        if scan.at(self.call_close, position):
            return position + len(self.call_close)
        if scan.at(self.call_open, position) or scan.at(self.frame_close, position):
            return position
        if position < len(scan.text):
            raise NotACall(
                CallStatus.MALFORMED,
                f"something stands between the arguments and {self.call_close}",
                name=name,
                resume=position,
                reach=position,
            )
        if not scan.finished:
            raise NotACall(
                CallStatus.TRUNCATED, "the text ends", name=name, resume=position, reach=position, ended=True
            )
        return position


def header_text(scan: Scan, position: int, end_mark: str, stops: tuple[str, ...]) -> tuple[str, int]:
    """The text up to ``end_mark``, and where that ends. Raises ``NotACall`` where one of ``stops`` comes
    first, or none of them."""
    found = scan.find(end_mark, position)
    limit = found if found >= 0 else len(scan.text)
    stopped = any(scan.find_before(stop, position, limit) >= 0 for stop in stops)
    if found < 0 or stopped:
        ended = not stopped
        raise NotACall(
            CallStatus.MALFORMED,
            f"its name is not followed by {end_mark.strip()}",
            resume=position,
            reach=len(scan.text) if ended else position,
            ended=ended,
        )
    return scan.text[position:found].strip(), found + len(end_mark)
