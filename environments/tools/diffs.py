"""Unified diffs of what an edit did."""

from __future__ import annotations

import difflib
import re

_CONTEXT = 3
_LARGEST = 4_000_000
"""Lines before times lines after; beyond it a diff would block for seconds."""

_HEADER = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


def unified_diff(path: str, before: str, after: str, new_path: str | None = None) -> str:
    """The difference of two texts in unified form; a path of ``/dev/null`` means no file."""
    old, new = _lines(before), _lines(after)
    start, end = _common(old, new)
    old_part, new_part = old[start : len(old) - end], new[start : len(new) - end]
    names = (_name("a", path), _name("b", new_path or path))
    if len(old_part) * len(new_part) > _LARGEST:
        return f"--- {names[0]}\n+++ {names[1]}\n({len(old_part)} lines replaced by {len(new_part)})\n"
    diff = difflib.unified_diff(old_part, new_part, *names, n=_CONTEXT)
    return "".join(_closed(_moved(line, start)) for line in diff)


def _lines(text: str) -> list[str]:
    """Lines with their ends, which are line feeds alone: a form feed or a lone CR ends none."""
    *whole, rest = text.split("\n")
    return [line + "\n" for line in whole] + ([rest] if rest else [])


def _common(old: list[str], new: list[str]) -> tuple[int, int]:
    """Equal lines at both ends, less those shown as context: difflib is slow on long equal runs."""
    shortest = min(len(old), len(new))
    start = _equal(old, new, shortest)
    end = _equal(old[start:][::-1], new[start:][::-1], shortest - start)
    return max(0, start - _CONTEXT), max(0, end - _CONTEXT)


def _equal(old: list[str], new: list[str], most: int) -> int:
    """How many lines at the start are equal, found by halves: to compare slices is quick."""
    equal = 0
    while equal < most:
        middle = (equal + most + 1) // 2
        if old[equal:middle] == new[equal:middle]:
            equal = middle
        else:
            most = middle - 1
    return equal


def _moved(line: str, offset: int) -> str:
    header = _HEADER.match(line) if line.startswith("@@") else None
    if header is None:
        return line
    old, new = int(header[1]) + offset, int(header[3]) + offset
    return f"@@ -{old}{header[2] or ''} +{new}{header[4] or ''} @@\n"


def _closed(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _name(side: str, path: str) -> str:
    return path if path == "/dev/null" else f"{side}/{path.lstrip('/')}"
