"""Globs of search_files, as regular expressions over the paths that ``find .`` prints."""

from __future__ import annotations

import re

from environments.tools.base import ToolInputError
from environments.tools.search_patterns import literal, one_of

_BRACKET = re.compile(r"\[([!^]?)([^\]/][^\]/]*|\][^\]/]*)\]")
_RANGE = re.compile(r".-.|.", re.DOTALL)


def glob_to_extended(glob: str) -> str:
    """A glob as a pattern for paths that begin with ``./``.

    Without a slash it is compared with the name alone, at any depth; ``**`` crosses directories,
    ``{a,b}`` is a choice, ``[a-z]`` and ``[!a-z]`` one character.
    """
    if not glob.strip() or "\n" in glob or "\0" in glob:
        raise ToolInputError("the glob is empty or has a line break in it")
    text = glob.strip().removeprefix("./").lstrip("/")
    if text.startswith("!"):
        raise ToolInputError(
            f"the glob {glob!r} leaves files out, which is not possible here; name those to search, or write "
            "\\! for the character itself"
        )
    pieces = ["^\\./" if "/" in text else "^\\./(.*/)?"]
    depth = position = 0
    while position < len(text):
        piece, length, change = _piece(text, position, depth)
        pieces.append(piece)
        position += length
        depth += change
    if depth:
        raise ToolInputError(f"the glob {glob!r} has a brace that is not closed")
    return f"{''.join(pieces)}$"


def hidden_is_meant(glob: str) -> bool:
    """Whether a glob can only be meant for entries whose name begins with a dot."""
    return any(part.startswith(".") and part not in (".", "..") for part in glob.strip().split("/"))


def _piece(text: str, position: int, depth: int) -> tuple[str, int, int]:
    """Expression for what stands at a position, its length there, and what it does to brace depth."""
    if text.startswith("**/", position):
        return "(.*/)?", 3, 0
    if text.startswith("**", position):
        return ".*", 2, 0
    bracket = _BRACKET.match(text, position)
    if bracket is not None:
        return _bracket(bracket), len(bracket[0]), 0
    character = text[position]
    if character == "[":
        raise ToolInputError(
            f"the glob {text!r} has a [ that is not closed; write \\[ for the character itself"
        )
    if character == "{" and "}" in text[position:]:
        return "(", 1, 1
    if character == "}" and depth:
        return ")", 1, -1
    if character == "," and depth:
        return "|", 1, 0
    if character == "*":
        return "[^/]*", 1, 0
    if character == "?":
        return one_of(["/"], True), 1, 0
    if character == "\\" and position + 1 < len(text):
        return literal(text[position + 1]), 2, 0
    return literal(character), 1, 0


def _bracket(found: re.Match[str]) -> str:
    members = _RANGE.findall(found[2])
    if any(len(member) == 3 and member[0] > member[2] for member in members):
        raise ToolInputError(f"the glob has {found[0]}, which is no range of characters")
    try:
        return one_of([*members, "/"] if found[1] else members, bool(found[1]))
    except ValueError as error:
        raise ToolInputError(f"the glob has {found[0]}: {error}") from None
