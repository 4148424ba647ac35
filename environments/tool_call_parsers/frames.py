"""Several calls in one frame: what was read of each, reported together once the frame has been read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from environments.tool_call_parsers.base import CallStatus, Scan
from environments.tool_call_parsers.json_calls import JSONCall, NotACall, refuse
from environments.tool_call_parsers.python_scan import skip_blanks


@dataclass(frozen=True, slots=True)
class Frame:
    """The markers around calls: any of ``openings``, and ``closing`` ("" where there is none)."""

    openings: tuple[str, ...]
    closing: str = ""

    @property
    def pattern(self) -> str:
        """The regular expression of an opening."""
        return "|".join(map(re.escape, self.openings))

    @property
    def marks(self) -> tuple[str, ...]:
        """All markers."""
        return (*self.openings, self.closing) if self.closing else self.openings

    def opened_at(self, text: str, start: int) -> str:
        """The opening that stands at ``start``, "" where none does."""
        return next((mark for mark in self.openings if text.startswith(mark, start)), "")


@dataclass(slots=True)
class Piece:
    """One call of a frame, or what is wrong with it, and the position behind it.

    ``settled``: a separator follows, so that the call is whole whatever comes next.
    """

    end: int
    found: JSONCall | NotACall
    settled: bool = False


def report(scan: Scan, frame: Frame, start: int, pieces: Sequence[Piece], end: int) -> int:
    """Report the pieces of the frame between ``start`` and ``end``; returns where the walk goes on.

    Markers and separators belong to the piece that follows them, what is behind the last piece belongs
    to it. So they vanish from the content with the calls, and stay where there is no call.
    """
    for index, piece in enumerate(pieces):
        last = index == len(pieces) - 1
        found, piece_end = piece.found, end if last else piece.end
        if isinstance(found, JSONCall):
            scan.accept(start, piece_end, found.name, found.arguments, found.values, found.id)
        elif last and frame.closing:
            return refuse(
                scan, start, found, frame.opened_at(scan.text, start) or frame.openings[0], frame.closing
            )
        else:
            status = CallStatus.TRUNCATED if found.ended else found.status
            scan.reject(start, piece_end, status, found.problem, found.name)
        start = piece_end
    return end


def close_frame(scan: Scan, frame: Frame, pieces: Sequence[Piece], position: int) -> int:
    """The position behind the frame whose calls end at ``position``.

    Where the closing marker is missing the last call counts only if the text ends or another frame
    begins: a stop token may stand for the marker.
    """
    last = pieces[-1]
    if not frame.closing or isinstance(last.found, NotACall):
        return position
    at = skip_blanks(scan.text, position)
    if scan.at(frame.closing, at):
        return at + len(frame.closing)
    if any(scan.at(mark, at) for mark in frame.openings):
        return position
    problem = unsettled(scan, at, frame.closing, last.found.name)
    if problem is None:
        return len(scan.text)
    if not last.settled:
        last.found = problem
    return position


def unsettled(scan: Scan, position: int, closing: str, name: str) -> NotACall | None:
    """What is wrong with a call that ``closing`` does not follow at ``position``; None at the end of a
    finished reply."""
    at_end = closing.startswith(scan.text[position : position + len(closing)])
    if at_end and scan.finished:
        return None
    problem = "the text ends" if at_end else "something stands between it and its closing marker"
    return NotACall(CallStatus.MALFORMED, problem, name=name, resume=position, reach=position, ended=at_end)
