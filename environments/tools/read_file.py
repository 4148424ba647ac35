"""``read_file``: numbered lines of a text file, in pages."""

from __future__ import annotations

import functools
import operator
import posixpath
from dataclasses import dataclass

from environments.sandboxes.base import Sandbox
from environments.tools.base import JSON, Tool, ToolInputError, ToolState
from environments.tools.paths import describe, not_found, resolve
from environments.tools.text import decode, shorten_line

LINE_LIMIT = 2_000
"""Characters shown of one line; the rest of it is reachable with the terminal."""

CONTENT_LIMIT = 100_000
"""Characters of one page. The tool is exempt from result budgets, so it keeps its own."""

WHOLE_FILE_LIMIT = 4 * 1024 * 1024
"""Bytes up to which a file is loaded; of larger ones only the page is."""

_MOST_LINES = 2_000
_SNIFF = 8192
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}

DESCRIPTION = (
    "Read a text file. Lines are numbered (NUMBER|TEXT); offset is the first line, limit the number of "
    "lines. Long lines are shortened. Use search_files to find text in many files."
)


@dataclass(slots=True)
class _Page:
    lines: list[str]
    total_lines: int
    file_size: int


async def read_file(state: ToolState, path: str, offset: int = 1, limit: int = 500) -> JSON:
    """Lines ``offset`` to ``offset + limit - 1``, counted from 1."""
    if limit < 1:
        raise ToolInputError("limit must be at least 1")
    target = resolve(state, path)
    sandbox = state.sandbox
    try:
        start = await sandbox.read_bytes(target, length=WHOLE_FILE_LIMIT)
    except IsADirectoryError:
        return {"error": await _describe_directory(sandbox, target)}
    except (FileNotFoundError, NotADirectoryError):
        return {"error": await not_found(sandbox, target)}
    except OSError as error:
        return {"error": f"{target} cannot be read: {describe(error)}"}
    kind = binary_kind(target, start)
    if kind is not None:
        return {"error": f"{target} is {kind} and has no lines to show; use the terminal to look into it"}
    if len(start) < WHOLE_FILE_LIMIT:
        page = _page_of_text(start, offset, limit)
    else:
        page = await _page_of_large_file(sandbox, target, offset, limit)
    return _result(target, page, offset)


def binary_kind(path: str, data: bytes) -> str | None:
    """What a file is that is not text, for an error; None for text."""
    for magic, name in _IMAGES.items():
        if data.startswith(magic) and (name != "BMP" or path.lower().endswith(".bmp")):
            return f"an image ({name})"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "an image (WEBP)"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16 text"
    return "a binary file" if b"\0" in data[:_SNIFF] else None


def split_lines(text: str) -> list[str]:
    r"""Lines without their ends. Only ``\n`` and ``\r\n`` end a line, as editors and grep see it."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def number_lines(lines: list[str], first: int) -> str:
    """``     1|text``: a number six wide, a bar, the line."""
    if first == 1 and len(lines) <= _MOST_LINES:
        return "\n".join(map(operator.add, _margin(), lines))
    return "\n".join(f"{first + index:6d}|{line}" for index, line in enumerate(lines))


@functools.cache
def _margin() -> tuple[str, ...]:
    """Numbers of the lines of any first page: to make them took most of the time of a call."""
    return tuple(f"{number:6d}|" for number in range(1, _MOST_LINES + 1))


def _page_of_text(data: bytes, offset: int, limit: int) -> _Page:
    lines = split_lines(decode(data).removeprefix("\ufeff"))
    return _Page(lines[offset - 1 : offset - 1 + limit], len(lines), len(data))


_COUNT = 'wc -l -c < "$1"; tail -c 1 < "$1" | wc -l'
_CUT = 'tail -n +"$2" < "$1" | head -n "$3" | cut -b 1-"$4"'


async def _page_of_large_file(sandbox: Sandbox, path: str, offset: int, limit: int) -> _Page:
    """Only the page travels; the tools used are those that busybox has too."""
    counted = await sandbox.exec(["sh", "-c", _COUNT, "sh", path], timeout=120)
    numbers = counted.text.split()
    if counted.exit_code != 0 or len(numbers) != 3:
        raise OSError(f"{path} cannot be measured: {decode(counted.stderr).strip() or 'time-out'}")
    newlines, size, ends_with_newline = map(int, numbers)
    # A character has at most four bytes; cutting there leaves shortening to what follows.
    width = str(4 * LINE_LIMIT + 4)
    arguments = ["sh", path, str(offset), str(limit), width]
    cut = await sandbox.exec(["sh", "-c", _CUT, *arguments], timeout=120, output_limit=20_000_000)
    if cut.exit_code != 0:
        raise OSError(f"{path} cannot be read in part: {decode(cut.stderr).strip() or 'time-out'}")
    return _Page(split_lines(decode(cut.stdout)), newlines + (1 - ends_with_newline), size)


def _result(path: str, page: _Page, offset: int) -> JSON:
    if page.total_lines and offset > page.total_lines:
        return {
            "error": f"offset {offset} is past the end: {path} has {page.total_lines} lines",
            "total_lines": page.total_lines,
            "file_size": page.file_size,
        }
    shown = _shown(page.lines)
    last = offset + len(shown) - 1
    result: JSON = {
        "content": number_lines(shown, offset),
        "total_lines": page.total_lines,
        "file_size": page.file_size,
        "truncated": last < page.total_lines,
    }
    if result["truncated"]:
        result["hint"] = f"lines {offset}-{last} of {page.total_lines}; go on with offset={last + 1}"
    return result


def _shown(lines: list[str]) -> list[str]:
    """The lines that fit into one page, each with what is shown of it."""
    longest = max(map(len, lines), default=0)
    if longest <= LINE_LIMIT and len(lines) * (longest + 8) <= CONTENT_LIMIT:  # as nearly all do
        return lines
    shown: list[str] = []
    length = 0
    for line in lines:
        short = shorten_line(line, LINE_LIMIT)
        length += len(short) + 8
        if shown and length > CONTENT_LIMIT:
            break
        shown.append(short)
    return shown


async def _describe_directory(sandbox: Sandbox, path: str) -> str:
    entries = await sandbox.list(path)
    names = [posixpath.basename(entry.path) + ("/" if entry.kind == "directory" else "") for entry in entries]
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return f"{path} is a directory; in it: {', '.join(names[:30]) or 'nothing'}{more}"


TOOLS = (
    Tool(
        name="read_file",
        description=DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File; absolute, ~ or relative to the shell."},
                "offset": {
                    "type": "integer",
                    "default": 1,
                    "minimum": 1,
                    "description": "First line, from 1.",
                },
                "limit": {
                    "type": "integer",
                    "default": 500,
                    "maximum": _MOST_LINES,
                    "description": "Number of lines.",
                },
            },
            "required": ["path"],
        },
        function=read_file,
        toolset="file",
        parallel_safe=True,
        exempt_from_budget=True,
    ),
)
