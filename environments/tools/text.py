"""Terminal output as the model sees it: no escape sequences, valid Unicode, bounded length."""

from __future__ import annotations

import re

OUTPUT_LIMIT = 50_000
"""Characters of one command's output that the model sees."""

_HEAD_SHARE = 0.4

_ESCAPES = re.compile(
    r"""
    \x1b\[ [0-?]* [ -/]* [@-~]                        # control sequences: colours, cursor movement
  | \x1b[\]PX^_] [^\x07\x1b]* (?: \x07 | \x1b\\ )?    # strings: titles, hyperlinks, device control
  | \x1b [ -/]* [0-~]                                 # two-character and charset escapes
  | \x1b                                              # an escape cut off
  | [\x00-\x08\x0b\x0c\x0e-\x1a\x7f]                  # control characters without meaning in text
    """,
    re.VERBOSE,
)

INCOMPLETE_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*|[ -/]*)?\Z")
"""An escape sequence that goes on in output still to come."""


def decode(data: bytes) -> str:
    """Bytes as text; what is not UTF-8 becomes U+FFFD."""
    return data.decode("utf-8", "replace")


def strip_escapes(text: str) -> str:
    """Remove terminal escape sequences and control characters; tabs and line ends stay."""
    return _ESCAPES.sub("", text).replace("\r\n", "\n")


def shorten(text: str, limit: int = OUTPUT_LIMIT, *, lost: int = 0) -> str:
    """At most ``limit`` characters: 40 % from the start, a notice, the rest from the end.

    ``lost`` is what is missing in the middle of ``text`` already, and counts as left out.
    """
    if len(text) <= limit:
        return text
    room = max(0, limit - len(_notice(len(text) + lost)))
    head = int(room * _HEAD_SHARE)
    tail = room - head
    end = text[len(text) - tail :] if tail else ""
    return (text[:head] + _notice(len(text) - room + lost) + end)[:limit]


def shorten_line(line: str, limit: int) -> str:
    """One line, cut at ``limit`` characters with the number of those left out."""
    if len(line) <= limit:
        return line
    return f"{line[:limit]} [{len(line) - limit:,} more characters in this line]"


def _notice(count: int) -> str:
    return f"\n\n[... {count:,} characters left out ...]\n\n"
