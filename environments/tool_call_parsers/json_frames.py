"""Families that write calls as JSON between markers of their own: one object, several, or a list."""

from __future__ import annotations

from typing import ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.frames import Frame, Piece, close_frame, report, unsettled
from environments.tool_call_parsers.json_calls import JSONCall, NotACall, read_json_call
from environments.tool_call_parsers.json_scan import skip_balanced, skip_blanks


class JSONFrameParser(ToolCallParser):
    """Reads JSON calls in a ``frame``. Without a closing marker the JSON itself is the end.

    Each object of a list that is whole counts, also when the list breaks behind it.
    """

    frame: ClassVar[Frame]
    in_list: ClassVar[bool | None] = None
    """Whether the calls must stand in a list (True), must not (False), or may (None)."""
    name_key: ClassVar[str] = "name"
    argument_keys: ClassVar[tuple[str, ...]] = ("arguments", "parameters")
    stop_texts: ClassVar[tuple[str, ...]] = ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "</s>")

    def read(self, scan: Scan, start: int) -> int:
        """One frame with all its calls."""
        body = skip_blanks(scan.text, start + len(self.frame.opened_at(scan.text, start)))
        if self.may_be_calls(scan.text, body):
            return self.read_json(scan, self.frame, start, body)
        return self._read_other_form(scan, start, body)

    def read_json(self, scan: Scan, frame: Frame, start: int, body: int) -> int:
        """The calls whose JSON begins at ``body``; their ``frame`` begins at ``start``."""
        pieces, position = self.read_pieces(scan, body)
        if not pieces:
            return position
        return report(scan, frame, start, pieces, close_frame(scan, frame, pieces, position))

    def read_pieces(self, scan: Scan, body: int) -> tuple[list[Piece], int]:
        """The calls at ``body``, whole and broken, and the position behind them."""
        return self._read_pieces(scan, body, scan.text.startswith("[", body))

    def end_of_element(self, scan: Scan, position: int) -> int | None:
        """Where a broken element of a list ends, if the list clearly goes on or ends behind it."""
        following = [at for mark in self.frame.openings if (at := scan.find(mark, position)) >= 0]
        end = skip_balanced(scan.text, position, min(following, default=len(scan.text)))
        if end is None or not scan.text.startswith((",", "]"), skip_blanks(scan.text, end)):
            return None
        return end

    def read_call(self, text: str, position: int) -> JSONCall:
        """The call whose object begins at ``position``. Raises ``NotACall``."""
        return read_json_call(text, position, name_key=self.name_key, argument_keys=self.argument_keys)

    def may_be_calls(self, text: str, body: int) -> bool:
        """Whether the marker is more than a word in a sentence."""
        if body == len(text):
            return True
        first = text[body]
        return first in "[{" and (self.in_list is None or self.in_list == (first == "["))

    def _read_other_form(self, scan: Scan, start: int, body: int) -> int:
        """Calls in a list where the family has none, or without one; else the marker is a word."""
        pieces, position = (
            self.read_pieces(scan, body) if scan.text.startswith(("[", "{"), body) else ([], body)
        )
        if not any(isinstance(piece.found, JSONCall) for piece in pieces):
            return body
        problem = f"the calls must {'' if self.in_list else 'not '}stand in a list"
        scan.reject(start, position, CallStatus.MALFORMED, problem)
        return position

    def _read_pieces(self, scan: Scan, body: int, listed: bool) -> tuple[list[Piece], int]:
        text, pieces = scan.text, list[Piece]()
        position = skip_blanks(text, body + 1) if listed else body
        while not (listed and text.startswith("]", position)):
            piece, whole = self._read_piece(scan, position, listed)
            pieces.append(piece)
            if not whole:  # nobody knows where it ends, so nobody knows what comes next
                return pieces, piece.end
            position = skip_blanks(text, piece.end)
            if listed and text.startswith(",", position):
                pieces[-1].settled = True
                position = skip_blanks(text, position + 1)
            elif listed and not text.startswith("]", position):
                if isinstance(piece.found, JSONCall):
                    piece.found = unsettled(scan, position, "]", piece.found.name) or piece.found
                return pieces, position
            elif not listed and not text.startswith("{", position):
                return pieces, piece.end
        return pieces, position + 1

    def _read_piece(self, scan: Scan, position: int, listed: bool) -> tuple[Piece, bool]:
        """The call at ``position``, and whether it is known where it ends."""
        try:
            call = self.read_call(scan.text, position)
        except NotACall as problem:
            if problem.status is not CallStatus.INVALID_JSON:
                return Piece(problem.resume, problem), True
            end = self.end_of_element(scan, position) if listed else None
            # A frame that begins inside of broken JSON does not count: it may be part of an argument.
            return Piece(end or max(problem.reach, position), problem), end is not None
        return Piece(call.end, call), True
