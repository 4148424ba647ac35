"""A mark in a program's own output that says: it has ended, with this code.

A provider tells the end of a program by another way than its output, and keeps the output open while
processes that the program left behind hold it. A mark written to the same pipe after the program's
last byte needs neither: all that comes before it is the program's, nothing more is to come.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

_START = b"\x1e"
_LONGEST_CODE = 12
_CODE = re.compile(rb"(\d{1,9})\r?\n")

WRAPPER = r"""
trap : INT QUIT
exec 3>&2 2>/dev/null
(exec sh -c "$1" 2>&3 3>&-)
c=$?
printf '\036%s %s\n' "$2" "$c"
[ -n "$3" ] || printf '\036%s %s\n' "$2" "$c" >&3
exit "$c"
"""
"""Program, token, anything if stderr needs no mark. The shell's own remarks on signals are dropped."""


def new_token() -> str:
    """A word that no program prints by chance."""
    return secrets.token_hex(16)


class MarkedStream:
    """Passes one stream on up to its mark; ``code`` is known from then on."""

    def __init__(self, token: str, receive: Callable[[bytes], None]) -> None:
        self.code: int | None = None
        self._mark = _START + token.encode() + b" "
        self._receive = receive
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take output as it comes, cut anywhere. Returns what follows the mark."""
        if self.code is not None:
            return data
        if not self._held and _START not in data:
            self._receive(data)
            return b""
        data = self._held + data
        place = data.find(self._mark)
        if place >= 0:
            return self._at_mark(data, place)
        keep = data.rfind(_START)
        if keep < 0 or not self._mark.startswith(data[keep:]):
            keep = len(data)
        self._pass_on(data[:keep])
        self._held = data[keep:]
        return b""

    def flush(self) -> None:
        """The stream has ended without a mark: what looked like the beginning of one was none."""
        held, self._held = self._held, b""
        if self.code is None:
            self._pass_on(held)

    def _at_mark(self, data: bytes, place: int) -> bytes:
        self._pass_on(data[:place])
        rest = data[place + len(self._mark) :]
        found = _CODE.match(rest)
        if found is None and len(rest) > _LONGEST_CODE:  # the program has printed the token itself
            self._pass_on(self._mark)
            return self.feed(rest)
        if found is None:
            self._held = data[place:]
            return b""
        self._held = b""
        self.code = int(found[1])
        return rest[found.end() :]

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._receive(data)
