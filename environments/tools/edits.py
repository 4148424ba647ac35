"""Finding the one place that an edit means, and changing nothing else.

A ladder of readings, each tried only if the one before found nothing: exact text, line ends aside,
trailing blanks aside, indentation shifted by one constant prefix (the new text is shifted alike).
Nothing looser: what fits several places, or none, is an error that shows the model where to look.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice

from environments.tools.base import ToolInputError

_BOM = b"\xef\xbb\xbf"
_SHOWN_CANDIDATES = 10
_NEAREST_LINES = 3_000
_MOST_CANDIDATES = 1_000


class EditError(ToolInputError):
    """The edit cannot be made; nothing was changed."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file's text. Bytes that are not UTF-8 survive as surrogates; a byte order mark is kept apart."""

    text: str
    bom: bool = False

    @classmethod
    def decode(cls, data: bytes) -> TextFile:
        """Text of a file's bytes."""
        return cls(data.removeprefix(_BOM).decode("utf-8", "surrogateescape"), data.startswith(_BOM))

    def encode(self, text: str) -> bytes:
        """Bytes of this file with another text."""
        return (_BOM if self.bom else b"") + text.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Shift:
    """How the model's indentation differs from the file's: a prefix to add, or one to take away."""

    add: str = ""
    remove: str = ""

    def apply(self, line: str) -> str:
        """One new line with the file's indentation. ``EditError`` if it is not indented enough."""
        if not line.strip():
            return line
        if not line.startswith(self.remove):
            raise EditError(
                "the text was found with less indentation, and the new text cannot be shifted alike: "
                f"{line.strip()[:80]!r} is not indented by {self.remove!r}. Give both texts as in the file"
            )
        return self.add + line[len(self.remove) :]

    def __str__(self) -> str:
        if self.add:
            return f"the new text was indented by {self.add!r} more, as in the file"
        if self.remove:
            return f"the new text was indented by {self.remove!r} less, as in the file"
        return "trailing blanks or line ends differed from the file's"


@dataclass(frozen=True, slots=True)
class LineMatch:
    """Lines of a file, from ``start``, that fit those wanted."""

    start: int
    shift: Shift = Shift()


class Lines:
    """Lines of a text with what searching them again and again needs."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.exact = list(lines)

    @cached_property
    def without_trailing_blanks(self) -> list[str]:
        """Each line without the blanks at its end."""
        return [line.rstrip() for line in self.exact]

    @cached_property
    def without_blanks(self) -> list[str]:
        """Each line without the blanks around it."""
        return [line.strip() for line in self.exact]


def find_lines(lines: Lines, wanted: Sequence[str]) -> list[LineMatch]:
    """Every place where ``wanted`` stands as whole lines, on the first rung that finds any."""
    if not wanted:
        return []
    found = [LineMatch(start) for start in _runs(lines.exact, list(wanted))]
    if found or not any(line.strip() for line in wanted):
        return found
    trimmed = [line.rstrip() for line in wanted]
    found = [LineMatch(start) for start in _runs(lines.without_trailing_blanks, trimmed)]
    if found:
        return found
    for start in _runs(lines.without_blanks, [line.strip() for line in wanted]):
        shift = _shift(lines.without_trailing_blanks[start : start + len(trimmed)], trimmed)
        if shift is not None:
            found.append(LineMatch(start, shift))
    return found


def _runs(lines: list[str], wanted: list[str]) -> Iterator[int]:
    """Where ``wanted`` stands in ``lines``."""
    # list.index looks for the first line that has a text; comparing every window would take minutes.
    lead = next((index for index, line in enumerate(wanted) if line), 0)
    position = lead
    while True:
        try:
            position = lines.index(wanted[lead], position)
        except ValueError:
            return
        start = position - lead
        if lines[start : start + len(wanted)] == wanted:
            yield start
        position += 1


def replace_text(text: str, old: str, new: str, replace_all: bool = False) -> tuple[str, int, str | None]:
    """The text with ``old`` replaced, how often, and a note where it was not found literally."""
    if not old:
        raise EditError("old_string is empty; give the text to replace (write_file makes a new file)")
    if old == new:
        raise EditError("old_string and new_string are the same; there is nothing to change")
    for rung in (_exact, _line_ends_aside, _whole_lines):
        found = rung(text, old, new, replace_all)
        places = list(found if replace_all else islice(found, _MOST_CANDIDATES))
        if not places:
            continue
        ends = _LineEnds(text)
        if len(places) > 1 and not replace_all:
            raise EditError(_ambiguous([ends.line_of(place.start) for place in places]))
        chosen = _without_overlap(places)
        return _splice(text, chosen, ends), len(chosen), places[0].note
    raise EditError(f"old_string was not found. {nearest(split(text)[0], split(old)[0])}")


def split(text: str) -> tuple[list[str], list[str]]:
    r"""Lines and their ends (``\n``, ``\r\n``, or nothing for a last line that has none)."""
    lines, ends = [], []
    pieces = text.split("\n")
    for piece in pieces[:-1]:
        carriage = piece.endswith("\r")
        lines.append(piece[:-1] if carriage else piece)
        ends.append("\r\n" if carriage else "\n")
    if pieces[-1]:
        lines.append(pieces[-1])
        ends.append("")
    return lines, ends


def nearest(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """A hint that shows the lines most like those wanted, with their numbers."""
    if not lines:
        return "The file is empty."
    keys = [line.strip() for line in wanted if line.strip()]
    if not keys:
        return "It has only blank lines, which are compared exactly."
    start = _most_alike(lines[:_NEAREST_LINES], keys)
    if start is None:
        return "Nothing in the file is like it; read the file first."
    first = max(0, start - 1)
    shown = lines[first : start + min(len(wanted), 8) + 1]
    numbered = "\n".join(f"{first + index + 1:6d}|{line[:200]}" for index, line in enumerate(shown))
    return f"The nearest text is at line {start + 1}:\n{numbered}"


def ambiguous_lines(numbers: Iterable[int]) -> str:
    """Line numbers for an error text, not too many of them."""
    found = list(numbers)
    more = f" and {len(found) - _SHOWN_CANDIDATES} more" if len(found) > _SHOWN_CANDIDATES else ""
    return ", ".join(map(str, found[:_SHOWN_CANDIDATES])) + more


def _ambiguous(numbers: list[int]) -> str:
    count = len(numbers) if len(numbers) < _MOST_CANDIDATES else f"{len(numbers)} or more"
    return (
        f"old_string fits {count} places, at lines {ambiguous_lines(numbers)}; add lines around it "
        "until it fits one, or set replace_all to change all of them"
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A part of the text and what is to stand there; ``literal`` if its line ends are meant so."""

    start: int
    end: int
    new: str
    shift: Shift | None = None
    note: str | None = None
    literal: bool = False

    def replacement(self, ends: _LineEnds) -> str:
        """The new text with the indentation and the line ends of this place."""
        new = self.new
        if self.shift is not None:
            new = "\n".join(map(self.shift.apply, new.split("\n")))
        if self.literal or "\n" not in new or not ends.are_crlf_at(self.start):
            return new
        return new.replace("\r\n", "\n").replace("\n", "\r\n")


class _LineEnds:
    """Where the lines of a text end, and how."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._asked = False

    def line_of(self, position: int) -> int:
        """Number of the line, from 1."""
        return bisect_left(self._positions, position) + 1

    def are_crlf_at(self, position: int) -> bool:
        """Whether the line at a position ends in CRLF; for a last line without end, the one before."""
        end = self._end_after(position)
        return end > 0 and self._text[end - 1] == "\r"

    def _end_after(self, position: int) -> int:
        if not self._asked:  # for one place, a look is less work than a list
            self._asked = True
            end = self._text.find("\n", position)
            return end if end >= 0 else self._text.rfind("\n")
        if not self._positions:
            return -1
        return self._positions[min(bisect_left(self._positions, position), len(self._positions) - 1)]

    @cached_property
    def _positions(self) -> list[int]:
        return [found.start() for found in re.finditer("\n", self._text)]


def _exact(text: str, old: str, new: str, replace_all: bool) -> Iterator[_Place]:
    # Where old_string speaks of carriage returns itself, new_string is meant to the letter.
    literal = "\r" in old
    if (old[0] == "\n" and f"\r{old}" in text) or (old[-1] == "\r" and f"{old}\n" in text):
        return  # half of a CRLF is no place: line ends aside there may be one
    for start in _positions(text, old, replace_all):
        yield _Place(start, start + len(old), new, literal=literal)


def _line_ends_aside(text: str, old: str, new: str, replace_all: bool) -> Iterator[_Place]:
    plain, plain_old = text.replace("\r\n", "\n"), old.replace("\r\n", "\n")
    if plain == text and plain_old == old:
        return
    pieces = text.split("\r\n")
    # Position of each line end in the plain text that was two characters in the file.
    ends = [total - 1 for total in accumulate(len(piece) + 1 for piece in pieces[:-1])]
    body = new.replace("\r\n", "\n")
    note = "line ends differed from the file's and were kept as in the file"
    for start in _positions(plain, plain_old, replace_all):
        end = start + len(plain_old)
        first, last = start + bisect_left(ends, start), end + bisect_left(ends, end)
        yield _Place(first, last, body, note=note)


def _whole_lines(text: str, old: str, new: str, _replace_all: bool) -> Iterator[_Place]:
    lines, ends = split(text)
    wanted, wanted_ends = split(old)
    if not any(line.strip() for line in wanted):
        return
    starts = [0, *accumulate(len(line) + len(end) for line, end in zip(lines, ends, strict=True))]
    old_is_closed, new_is_closed = wanted_ends[-1] != "", new.endswith("\n")
    body = new.replace("\r\n", "\n")
    if old_is_closed and new_is_closed:
        body = body[:-1]
    for match in find_lines(Lines(lines), wanted):
        last = match.start + len(wanted) - 1
        end = starts[last] + len(lines[last])
        if old_is_closed and not new_is_closed:
            end += len(ends[last])
        yield _Place(starts[match.start], end, body, match.shift, str(match.shift))


def _positions(text: str, wanted: str, apart: bool) -> Iterator[int]:
    """Every position of a text; with ``apart`` only those that do not overlap the one before."""
    start = text.find(wanted)
    while start != -1:
        yield start
        start = text.find(wanted, start + (len(wanted) if apart else 1))


def _without_overlap(places: list[_Place]) -> list[_Place]:
    chosen: list[_Place] = []
    for place in places:
        if not chosen or place.start >= chosen[-1].end:
            chosen.append(place)
    return chosen


def _splice(text: str, places: list[_Place], ends: _LineEnds) -> str:
    pieces, position = [], 0
    for place in places:
        pieces += [text[position : place.start], place.replacement(ends)]
        position = place.end
    return "".join([*pieces, text[position:]])


def _shift(lines: Sequence[str], wanted: Sequence[str]) -> Shift | None:
    """The one shift that turns ``wanted`` into ``lines``, neither with blanks at line ends."""
    shift: Shift | None = None
    for have, need in zip(lines, wanted, strict=True):
        if not have and not need:
            continue
        found = _shift_between(have, need)
        if found is None or (shift is not None and found != shift):
            return None
        shift = found
    return shift


def _shift_between(have: str, need: str) -> Shift | None:
    if not have or not need:
        return None
    if have.endswith(need):
        prefix = have[: len(have) - len(need)]
        return Shift(add=prefix) if not prefix.strip(" \t") else None
    if need.endswith(have):
        prefix = need[: len(need) - len(have)]
        return Shift(remove=prefix) if not prefix.strip(" \t") else None
    return None


def _most_alike(lines: Sequence[str], keys: list[str]) -> int | None:
    stripped = [line.strip() for line in lines]
    wanted = set(keys)
    if wanted.intersection(stripped):
        # The window with most lines in common; difflib over every window would take too long.
        hits = [line in wanted for line in stripped]
        width = len(keys)
        totals = [0, *accumulate(hits)]
        score = [totals[min(i + width, len(hits))] - totals[i] if hits[i] else 0 for i in range(len(hits))]
        return max(range(len(score)), key=lambda i: (score[i], -i))
    key = max(keys, key=len)
    close = difflib.get_close_matches(key[:200], {line[:200] for line in stripped if line}, n=1, cutoff=0.5)
    return next((i for i, line in enumerate(stripped) if line[:200] == close[0]), None) if close else None
