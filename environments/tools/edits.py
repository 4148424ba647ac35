"""Finding the one place that an edit means, and changing nothing else.

A ladder of readings, each tried only if the one before found nothing: exact text, line ends aside,
trailing blanks aside, indentation shifted by one constant prefix (the new text is shifted alike).
Nothing looser: what fits several places, or none, is an error that shows the model where to look.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from environments.tools.base import ToolInputError

_BOM = b"\xef\xbb\xbf"
_SHOWN_CANDIDATES = 10
_NEAREST_LINES = 3_000


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


def find_lines(lines: Sequence[str], wanted: Sequence[str]) -> list[LineMatch]:
    """Every place where ``wanted`` stands as whole lines, on the first rung that finds any."""
    if not wanted:
        return []
    rungs: list[Callable[[Sequence[str], Sequence[str]], Shift | None]] = [_same]
    if any(line.strip() for line in wanted):
        rungs += [_same_but_blanks, _shifted]
    for fits in rungs:
        found = []
        for start in range(len(lines) - len(wanted) + 1):
            shift = fits(lines[start : start + len(wanted)], wanted)
            if shift is not None:
                found.append(LineMatch(start, shift))
        if found:
            return found
    return []


def replace_text(text: str, old: str, new: str, replace_all: bool = False) -> tuple[str, int, str | None]:
    """The text with ``old`` replaced, how often, and a note where it was not found literally."""
    if not old:
        raise EditError("old_string is empty; give the text to replace (write_file makes a new file)")
    if old == new:
        raise EditError("old_string and new_string are the same; there is nothing to change")
    for rung in (_exact, _line_ends_aside, _whole_lines):
        spans, note = rung(text, old, new)
        if not spans:
            continue
        if len(spans) > 1 and not replace_all:
            raise EditError(_ambiguous([text.count("\n", 0, start) + 1 for start, _, _ in spans]))
        chosen = _without_overlap(spans)
        return _splice(text, chosen), len(chosen), note
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
    return (
        f"old_string fits {len(numbers)} places, at lines {ambiguous_lines(numbers)}; add lines around it "
        "until it fits one, or set replace_all to change all of them"
    )


_Span = tuple[int, int, str]
"""Start, end and replacement."""


def _exact(text: str, old: str, new: str) -> tuple[list[_Span], str | None]:
    spans = []
    start = text.find(old)
    while start != -1:
        # Where old_string speaks of carriage returns itself, new_string is meant to the letter.
        fitted = new if "\r" in old else _with_line_ends(new, text, start)
        spans.append((start, start + len(old), fitted))
        start = text.find(old, start + 1)
    return spans, None


def _line_ends_aside(text: str, old: str, new: str) -> tuple[list[_Span], str | None]:
    plain, plain_old = text.replace("\r\n", "\n"), old.replace("\r\n", "\n")
    if plain == text and plain_old == old:
        return [], None
    pieces = text.split("\r\n")
    # Position of each line end in the plain text that was two characters in the file.
    ends = [total - 1 for total in accumulate(len(piece) + 1 for piece in pieces[:-1])]
    spans = []
    start = plain.find(plain_old)
    while start != -1:
        end = start + len(plain_old)
        first, last = start + bisect_left(ends, start), end + bisect_left(ends, end)
        spans.append((first, last, _with_line_ends(new.replace("\r\n", "\n"), text, first)))
        start = plain.find(plain_old, start + 1)
    return spans, "line ends differed from the file's and were kept as in the file"


def _whole_lines(text: str, old: str, new: str) -> tuple[list[_Span], str | None]:
    lines, ends = split(text)
    wanted, wanted_ends = split(old)
    if not any(line.strip() for line in wanted):
        return [], None
    matches = find_lines(lines, wanted)
    if not matches:
        return [], None
    starts = [0, *accumulate(len(line) + len(end) for line, end in zip(lines, ends, strict=True))]
    old_is_closed, new_is_closed = wanted_ends[-1] != "", new.endswith("\n")
    body = new.replace("\r\n", "\n")
    if old_is_closed and new_is_closed:
        body = body[:-1]
    spans = []
    for match in matches:
        last = match.start + len(wanted) - 1
        end = starts[last] + len(lines[last])
        if old_is_closed and not new_is_closed:
            end += len(ends[last])
        fitted = "\n".join(match.shift.apply(line) for line in body.split("\n"))
        spans.append((starts[match.start], end, _with_line_ends(fitted, text, starts[match.start])))
    return spans, str(matches[0].shift)


def _with_line_ends(new: str, text: str, position: int) -> str:
    """``new`` with the line ends that the file has at this place."""
    at = text.find("\n", position)
    if at == -1:
        at = text.rfind("\n", 0, position)
    if at > 0 and text[at - 1] == "\r":
        return new.replace("\r\n", "\n").replace("\n", "\r\n")
    return new


def _without_overlap(spans: list[_Span]) -> list[_Span]:
    chosen: list[_Span] = []
    for span in spans:
        if not chosen or span[0] >= chosen[-1][1]:
            chosen.append(span)
    return chosen


def _splice(text: str, spans: list[_Span]) -> str:
    pieces, position = [], 0
    for start, end, replacement in spans:
        pieces += [text[position:start], replacement]
        position = end
    return "".join([*pieces, text[position:]])


def _same(lines: Sequence[str], wanted: Sequence[str]) -> Shift | None:
    return Shift() if lines == wanted else None


def _same_but_blanks(lines: Sequence[str], wanted: Sequence[str]) -> Shift | None:
    same = all(a.rstrip() == b.rstrip() for a, b in zip(lines, wanted, strict=True))
    return Shift() if same else None


def _shifted(lines: Sequence[str], wanted: Sequence[str]) -> Shift | None:
    shift: Shift | None = None
    for line, want in zip(lines, wanted, strict=True):
        have, need = line.rstrip(), want.rstrip()
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
