"""Text of others on a terminal: what would be obeyed there is shown instead."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that reorder what stands beside them
    "\ud800-\udfff]"  # halves of characters, as names on disk that are no UTF-8 are read
)


def harmless(text: str) -> str:
    """The text with control and reordering characters shown instead of obeyed.

    >>> harmless("\\x1b[2Jgone")
    '\\\\x1b[2Jgone'
    """
    return _CONTROL.sub(lambda match: _shown(ord(match[0])), text.replace("\r\n", "\n"))


def label(text: str) -> str:
    """A name on one line: harmless, and with line ends and tabs shown too.

    >>> label("two\\nlines")
    'two\\\\nlines'
    """
    return harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def _shown(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is no UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
