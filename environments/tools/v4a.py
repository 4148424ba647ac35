"""The V4A patch format: read it, and apply its hunks to a text.

::

    *** Begin Patch
    *** Update File: path          *** Add File: path          *** Delete File: path
    *** Move to: other path        +line                       *** End Patch
    @@ a line above, such as a function's head
     context
    -old line
    +new line
    *** End of File                (the hunk ends where the file ends)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from environments.tools.edits import (
    EditError,
    LineMatch,
    Lines,
    Shift,
    ambiguous_lines,
    find_lines,
    nearest,
    split,
)

_BEGIN, _END, _END_OF_FILE, _MOVE = "*** Begin Patch", "*** End Patch", "*** End of File", "*** Move to:"
_HEADER = re.compile(r"\*\*\* (Update|Add|Delete) File: *(.+?) *\Z")
_LINE_NUMBERS = re.compile(r"-\d+(,\d+)? \+\d+(,\d+)?\Z")


@dataclass(slots=True)
class Hunk:
    """Lines with their sign: ``" "`` context, ``"-"`` old, ``"+"`` new."""

    anchors: list[str] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    at_end: bool = False

    @property
    def wanted(self) -> list[str]:
        """What stands in the file before the change."""
        return [text for sign, text in self.lines if sign != "+"]


@dataclass(slots=True)
class FilePatch:
    """What happens to one file."""

    action: Literal["update", "add", "delete"]
    path: str
    move_to: str | None = None
    hunks: list[Hunk] = field(default_factory=list)
    content: list[str] = field(default_factory=list)


def parse_patch(text: str) -> list[FilePatch]:
    """The file patches in a V4A text. ``EditError`` says which line is wrong and what was expected."""
    lines = text.replace("\r\n", "\n").split("\n")
    first, last = _frame(lines)
    patches: list[FilePatch] = []
    for number in range(first, last):
        line = lines[number]
        header = _HEADER.match(line)
        if header is not None:
            action: Literal["update", "add", "delete"] = header[1].lower()  # type: ignore[assignment]
            patches.append(FilePatch(action, header[2]))
        elif not patches:
            if line.strip():
                raise _wrong(
                    number, line, "'*** Update File: path', '*** Add File: path' or '*** Delete File: path'"
                )
        else:
            _read_line(patches[-1], line, number)
    if not patches:
        raise EditError(
            "the patch has no '*** Update File: path', '*** Add File: path' or '*** Delete File: path'"
        )
    for patch in patches:
        _finish(patch)
    return patches


def apply_hunks(text: str, hunks: Sequence[Hunk], path: str) -> tuple[str, list[str]]:
    """The text with all hunks applied, and notes where one was not found literally."""
    lines, ends = split(text)
    searched = Lines(lines)
    placed: list[tuple[LineMatch, Hunk]] = []
    after = 0
    for number, hunk in enumerate(hunks, 1):
        match = _place(searched, hunk, after, f"hunk {number} of {path}")
        placed.append((match, hunk))
        after = match.start + len(hunk.wanted)
    placed.sort(key=lambda pair: pair[0].start)
    for (one, hunk), (other, _) in pairwise(placed):
        if other.start < one.start + len(hunk.wanted):
            raise EditError(f"two hunks of {path} change the same lines near line {other.start + 1}")
    notes = [f"{path}: {match.shift}" for match, _ in placed if match.shift != Shift()]
    return _rebuild(lines, ends, placed), notes


def _frame(lines: list[str]) -> tuple[int, int]:
    begin = next((i for i, line in enumerate(lines) if line.strip() == _BEGIN), None)
    if begin is None:
        raise EditError(f"the patch must begin with the line '{_BEGIN}'")
    end = next((i for i in range(len(lines) - 1, begin, -1) if lines[i].rstrip() == _END), None)
    if end is None:
        raise EditError(f"the patch does not end with the line '{_END}'; it may have been cut off")
    return begin + 1, end


def _read_line(patch: FilePatch, line: str, number: int) -> None:
    if patch.action == "add":
        if line.startswith("+"):
            patch.content.append(line[1:])
        elif line.strip():
            raise _wrong(number, line, "a line that begins with '+', as all of a new file must")
    elif patch.action == "delete":
        if line.strip():
            raise _wrong(number, line, "nothing, as the file is deleted")
    elif line.startswith(_MOVE) and not patch.hunks:
        patch.move_to = line.removeprefix(_MOVE).strip()
    else:
        _read_hunk_line(patch.hunks, line, number)


def _read_hunk_line(hunks: list[Hunk], line: str, number: int) -> None:
    if line.startswith("@@"):
        anchor = line[2:].strip()
        anchor = anchor.removesuffix("@@").rstrip() if anchor.endswith("@@") else anchor
        if not hunks or hunks[-1].lines:
            hunks.append(Hunk())
        # Line numbers of a unified diff are no anchor: models count badly.
        if anchor and not _LINE_NUMBERS.match(anchor):
            hunks[-1].anchors.append(anchor)
        return
    if not hunks or hunks[-1].at_end:
        hunks.append(Hunk())
    if line.rstrip() == _END_OF_FILE:
        hunks[-1].at_end = True
    elif line[:1] in (" ", "-", "+"):
        hunks[-1].lines.append((line[0], line[1:]))
    elif not line:
        # An empty context line whose blank was lost on the way.
        hunks[-1].lines.append((" ", ""))
    else:
        raise _wrong(number, line, "' ' (context), '-' (old), '+' (new) or '@@' at its beginning")


def _finish(patch: FilePatch) -> None:
    if patch.action != "update":
        return
    for hunk in patch.hunks:
        # Empty lines that only separate sections are no context.
        while hunk.lines and hunk.lines[-1] == (" ", "") and not hunk.at_end:
            hunk.lines.pop()
    patch.hunks = [hunk for hunk in patch.hunks if hunk.lines]
    for number, hunk in enumerate(patch.hunks, 1):
        if all(sign == " " for sign, _ in hunk.lines):
            raise EditError(f"hunk {number} of {patch.path} changes nothing: it has no '-' and no '+' line")
    if not patch.hunks and patch.move_to is None:
        raise EditError(f"'*** Update File: {patch.path}' has no hunk")


def _place(searched: Lines, hunk: Hunk, after: int, name: str) -> LineMatch:
    """The one place a hunk means. Anchors and the order of hunks only choose between several."""
    lines, wanted = searched.exact, hunk.wanted
    if not wanted:
        return _place_insertion(lines, hunk, name)
    matches = find_lines(searched, wanted)
    if hunk.at_end:
        matches = [match for match in matches if match.start + len(wanted) == len(lines)]
    if not matches:
        where = " at the end of the file" if hunk.at_end else ""
        raise EditError(f"{name} was not found{where}. {nearest(lines, wanted)}")
    for anchor in hunk.anchors:
        matches = _in_scope(lines, anchor, matches, name)
    if len(matches) > 1:
        matches = [match for match in matches if match.start >= after] if after else matches
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise EditError(f"{name} fits only places before the hunk above it; hunks go from top to bottom")
    numbers = ambiguous_lines(match.start + 1 for match in matches)
    raise EditError(
        f"{name} fits {len(matches)} places, at lines {numbers}; add context lines, or '@@' with the line "
        "of the function or class it is in"
    )


def _place_insertion(lines: list[str], hunk: Hunk, name: str) -> LineMatch:
    if hunk.at_end or not lines:
        return LineMatch(len(lines))
    if not hunk.anchors:
        raise EditError(f"{name} only adds lines; give context lines, an '@@' line or '{_END_OF_FILE}'")
    found = _anchor_lines(lines, hunk.anchors[-1], name)
    if len(found) > 1:
        raise EditError(f"{name}: '@@ {hunk.anchors[-1]}' fits lines {ambiguous_lines(i + 1 for i in found)}")
    return LineMatch(found[0] + 1)


def _in_scope(lines: list[str], anchor: str, matches: list[LineMatch], name: str) -> list[LineMatch]:
    """Matches in the blocks that the anchor heads; where a block has none, all below the anchor."""
    heads = _anchor_lines(lines, anchor, name)
    inside = [m for m in matches if any(head <= m.start < _block_end(lines, head) for head in heads)]
    if inside:
        return inside
    below = [match for match in matches if match.start >= heads[0]]
    if not below:
        raise EditError(f"{name}: its lines stand only above '@@ {anchor}' (line {heads[0] + 1})")
    found = [
        m for m in below if any(head <= m.start and not _another(lines, head, m.start) for head in heads)
    ]
    if not found:
        numbers = ambiguous_lines(match.start + 1 for match in below)
        raise EditError(
            f"{name}: its lines are not in '@@ {anchor}', but at lines {numbers}; name what they are in"
        )
    return found


def _another(lines: list[str], head: int, position: int) -> bool:
    """Whether the next function, class or the like begins between an anchor and a place below it."""
    depth, kind = _indentation(lines[head]), lines[head].split()[:1]
    between = (line for line in lines[_block_end(lines, head) : position + 1] if line.strip())
    return any(_indentation(line) <= depth and line.split()[:1] == kind for line in between)


def _anchor_lines(lines: list[str], anchor: str, name: str) -> list[int]:
    wanted = anchor.strip()
    found = [i for i, line in enumerate(lines) if line.strip() == wanted]
    # 'def run' for 'def run(self):' has one reading too.
    found = found or [i for i, line in enumerate(lines) if line.strip().startswith(wanted)]
    if not found:
        raise EditError(f"{name}: no line is like '@@ {anchor}'. {nearest(lines, [anchor])}")
    return found


def _block_end(lines: list[str], head: int) -> int:
    """Where the indented block below a line ends."""
    depth = _indentation(lines[head])
    for index in range(head + 1, len(lines)):
        if lines[index].strip() and _indentation(lines[index]) <= depth:
            return index
    return len(lines)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _rebuild(lines: list[str], ends: list[str], placed: list[tuple[LineMatch, Hunk]]) -> str:
    usual = "\r\n" if ends.count("\r\n") > ends.count("\n") else "\n"
    closed = not ends or ends[-1] != ""
    result: list[tuple[str, str]] = []
    position = 0
    for match, hunk in placed:
        result += zip(lines[position : match.start], ends[position : match.start], strict=True)
        position = match.start
        for sign, text in hunk.lines:
            if sign == "+":
                near = ends[position - 1] if position else (ends[0] if ends else "")
                result.append((match.shift.apply(text), near or usual))
                continue
            if sign == " ":
                result.append((lines[position], ends[position]))
            position += 1
    result += zip(lines[position:], ends[position:], strict=True)
    text = "".join(line + (end or usual) for line, end in result)
    if closed or not result:
        return text
    return text[: -len(result[-1][1] or usual)]


def _wrong(number: int, line: str, expected: str) -> EditError:
    return EditError(f"line {number + 1} of the patch is {line[:80]!r}; expected {expected}")
