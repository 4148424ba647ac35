"""The format of xLAM: the reply is a JSON list of calls; some checkpoints put it behind a marker."""

from __future__ import annotations

from environments.tool_call_parsers.base import CallStatus, Scan
from environments.tool_call_parsers.frames import Frame, report
from environments.tool_call_parsers.json_calls import JSONCall
from environments.tool_call_parsers.json_frames import JSONFrameParser
from environments.tool_call_parsers.json_scan import skip_blanks

_FENCE = Frame(("```json", "```"), "```")
_TAGS = Frame(("<tool_call>",), "</tool_call>")
_BARE = Frame(("[",))


class XlamParser(JSONFrameParser):
    """Reads a list of calls that is the whole reply, or stands behind ``[TOOL_CALLS]`` or in tags.

    A fenced list counts at the end of the reply. Bare and fenced lists must name offered tools, and
    nothing else: JSON in an answer is no call.
    """

    frame = Frame(("[TOOL_CALLS]",))
    opening = "|".join((frame.pattern, _TAGS.pattern, _FENCE.pattern, _BARE.pattern))
    markers = (*frame.marks, *_TAGS.marks)
    in_list = True

    def read(self, scan: Scan, start: int) -> int:
        """A list of calls, by what stands before it."""
        text = scan.text
        for frame in (self.frame, _TAGS, _FENCE):
            if mark := frame.opened_at(text, start):
                body = skip_blanks(text, start + len(mark))
                if not text.startswith("[", body):
                    return start + len(mark)
                if frame is _FENCE:
                    return self._read_whole(scan, start, body, _FENCE.closing)
                return self.read_json(scan, frame, start, body)
        if not scan.follows_call(start):
            return start + 1
        return self._read_whole(scan, start, start, "")

    def end_of_element(self, scan: Scan, position: int) -> int | None:
        """Not looked for: to search on from every bracket of a text would cost quadratic time."""
        return None

    def _read_whole(self, scan: Scan, start: int, body: int, closing: str) -> int:
        """The list at ``body`` where nothing follows it but ``closing``."""
        pieces, position = self.read_pieces(scan, body)
        behind = skip_blanks(scan.text, position)
        if closing and scan.text.startswith(closing, behind):
            behind = skip_blanks(scan.text, behind + len(closing))
        known = all(
            isinstance(piece.found, JSONCall) and scan.tools.knows(piece.found.name) for piece in pieces
        )
        if not pieces or not known or behind < len(scan.text):
            return start + 1
        if not scan.finished:  # more text would have made it data in an answer
            scan.reject(
                start, len(scan.text), CallStatus.TRUNCATED, "the reply was cut off", pieces[0].found.name
            )
            return len(scan.text)
        return report(scan, _BARE, start, pieces, behind)
