"""Takes a driver's output apart: what is the command's stdout, and what stands in frames."""

from __future__ import annotations

import re
from collections.abc import Callable

_START = b"\x1d"
_HEAD = re.compile(rb"(\d{1,9}) (\d{1,9})\n")
_LONGEST_HEAD = 20


class Frames:
    """Calls ``plain`` with all that is outside of frames, ``frame`` with number and content of each."""

    def __init__(
        self, token: str, plain: Callable[[bytes], None], frame: Callable[[int, bytes], None]
    ) -> None:
        self._mark = _START + token.encode() + b" "
        self._plain = plain
        self._frame = frame
        self._held = b""
        self._number = 0
        self._missing = 0

    def feed(self, data: bytes) -> None:
        """Take output as it comes, cut anywhere."""
        data, self._held = self._held + data, b""
        while data:
            if self._missing:
                part, data = data[: self._missing], data[self._missing :]
                self._missing -= len(part)
                self._frame(self._number, part)
            else:
                data = self._outside(data)

    def _outside(self, data: bytes) -> bytes:
        """Pass on what is outside, up to a frame; what is left to look at."""
        place = data.find(self._mark)
        if place < 0:
            keep = data.rfind(_START)
            if keep < 0 or not self._mark.startswith(data[keep:]):
                keep = len(data)
            self._pass_on(data[:keep])
            self._held = data[keep:]
            return b""
        self._pass_on(data[:place])
        rest = data[place + len(self._mark) :]
        head = _HEAD.match(rest)
        if head is not None:
            self._number, self._missing = int(head[1]), int(head[2])
            if not self._missing:
                self._frame(self._number, b"")
            return rest[head.end() :]
        if len(rest) > _LONGEST_HEAD:  # a command has printed the token without being the driver
            self._pass_on(self._mark)
            return rest
        self._held = data[place:]
        return b""

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._plain(data)
