"""What a search printed, as the pages of results that a model is shown."""

from __future__ import annotations

import re

from environments.sandboxes.base import ExecResult
from environments.tools.base import JSON
from environments.tools.text import decode, shorten_line

LINE_LIMIT = 500
"""Characters shown of a matching line."""

_NUMBERED = re.compile(r"(\d+)([:-])(.*)", re.DOTALL)


def real_name(name: bytes) -> bytes:
    """A name as it is, line breaks and all."""
    return name.replace(b"\x01", b"\n")


def counts_of(counted: bytes) -> dict[str, int]:
    """Matching lines by file, in the order of paths (of their bytes)."""
    found = []
    for line in counted.split(b"\n"):
        name, _, count = line.rpartition(b":")
        if name and count.isdigit() and count != b"0":
            found.append((real_name(name), int(count)))
    return {decode(name): count for name, count in sorted(found)}


def page_of(total: int, matches: list[JSON], offset: int) -> JSON:
    """One page, with how to get the next."""
    result: JSON = {"total_count": total, "matches": matches, "truncated": offset + len(matches) < total}
    if result["truncated"]:
        result["hint"] = f"go on with offset={offset + len(matches)}"
    return result


def files_of_page(counts: dict[str, int], limit: int, offset: int) -> tuple[list[str], int]:
    """The files that hold the page's matches, and how many matches in them come before the page."""
    files: list[str] = []
    seen, skipped = 0, 0
    for name, count in counts.items():
        if seen >= offset + limit:
            break
        if seen + count > offset:
            if not files:
                skipped = offset - seen
            files.append(name)
        seen += count
    return files, skipped


def lines_of_files(result: ExecResult) -> dict[bytes, list[str]]:
    """Numbered lines by file, in the order in which they were shown."""
    lines: dict[bytes, list[str]] = {}
    for line in result.stdout.split(b"\n"):
        name, apart, rest = line.partition(b"\0")
        if apart:
            lines.setdefault(real_name(name), []).append(decode(rest.replace(b"\0", b"")))
    return lines


def matches_of_file(path: str, numbered: list[str], context: int) -> list[JSON]:
    """Matches among the numbered lines of a file, each with the lines around it."""
    lines: list[tuple[int, bool, str]] = []
    for raw in numbered:
        found = _NUMBERED.match(raw)
        if found is not None:
            content = found[3].removesuffix("\r")
            if found[1] == "1":
                content = content.removeprefix("\ufeff")
            line = shorten_line(content, LINE_LIMIT)
            lines.append((int(found[1]), found[2] == ":", line))
    matches: list[JSON] = []
    by_number = {number: line for number, _, line in lines}
    for number, is_match, line in lines:
        if not is_match:
            continue
        match: JSON = {"path": path, "line": number, "content": line}
        if context:
            around = range(1, context + 1)
            match["before"] = [by_number[number - i] for i in reversed(around) if number - i in by_number]
            match["after"] = [by_number[number + i] for i in around if number + i in by_number]
        matches.append(match)
    return matches
