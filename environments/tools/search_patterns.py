r"""Patterns of search_files, in the one dialect that every grep understands.

A regular expression is read here and written anew as POSIX extended: ``\d``, ``\w``, ``\s``, groups
without capture and lazy quantifiers (which do not change *whether* a line matches) are rewritten;
look-around and back-references are refused. So a search gives the same answer in every image.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from environments.tools.base import ToolInputError

_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " \t\r\f\v"}
_CONTROL = {"t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_SPECIAL = set(".[]{}()*+?^$|\\")
_EMPTY = ".{0}"
"""Matches nothing at all; POSIX leaves ``()`` and ``a|`` undefined."""

_POSIX_CLASS = re.compile(r"\[:[a-z]+:\]")
_BOUND = re.compile(r"\{(\d*)(,?)(\d*)\}")


@dataclass(slots=True)
class _Reader:
    pattern: str
    position: int = 0

    def rest(self, prefix: str) -> bool:
        return self.pattern.startswith(prefix, self.position)

    def take(self, count: int = 1) -> str:
        taken = self.pattern[self.position : self.position + count]
        self.position += count
        return taken

    @property
    def more(self) -> bool:
        return self.position < len(self.pattern)


def to_extended(pattern: str) -> tuple[str, bool]:
    """The pattern for ``grep -E``, and whether case is to be ignored.

    ``ToolInputError`` says what is wrong with it, or which part no grep without PCRE can do.
    """
    if not pattern:
        raise ToolInputError("pattern is empty; give a regular expression")
    if "\n" in pattern or "\0" in pattern:
        raise ToolInputError("pattern has a line break in it, but lines are searched one by one")
    ignore_case = pattern.startswith("(?i)")
    reader = _Reader(pattern, 4 if ignore_case else 0)
    pieces: list[str] = []
    depth = 0
    can_repeat = False
    while reader.more:
        at = reader.position
        character = reader.take()
        if character == "(":
            pieces.append(_open_group(reader, at))
            depth += 1
            can_repeat = False
        elif character == ")":
            depth -= 1
            if depth < 0:
                raise _bad(pattern, at, "this ) closes nothing; write \\) for the character itself")
            pieces.append(")" if pieces[-1] not in ("(", "|") else f"{_EMPTY})")
            can_repeat = True
        elif character == "|":
            pieces.append("|" if pieces and pieces[-1] not in ("(", "|") else f"{_EMPTY}|")
            can_repeat = False
        elif character in "*+?" or (character == "{" and _BOUND.match(pattern, at) and can_repeat):
            if not can_repeat:
                raise _bad(pattern, at, f"there is nothing before {character} to repeat; write \\{character}")
            pieces.append(_quantifier(reader, character, at))
            can_repeat = False
        else:
            pieces.append(_atom(reader, character, at))
            can_repeat = character not in "^$"
    if depth:
        raise _bad(pattern, pattern.find("("), "a ( is not closed; write \\( for the character itself")
    if pieces and pieces[-1] == "|":
        pieces.append(_EMPTY)
    return "".join(pieces), ignore_case


def _open_group(reader: _Reader, at: int) -> str:
    if not reader.rest("?"):
        return "("
    named = re.compile(r"\?P?<[A-Za-z_]\w*>").match(reader.pattern, reader.position)
    if reader.rest("?:") or named is not None:
        reader.take(len(named[0]) if named is not None else 2)
        return "("
    raise _bad(
        reader.pattern,
        at,
        "look-around and inline flags are not supported (but (?i) at the start is); "
        "search for something simpler, or use grep -P in the terminal",
    )


def _quantifier(reader: _Reader, character: str, at: int) -> str:
    text = character
    if character == "{":
        bound = _BOUND.match(reader.pattern, at)
        assert bound is not None
        reader.position = bound.end()
        low, comma, high = bound.groups()
        if not low and not high:
            raise _bad(reader.pattern, at, "a repetition needs a number; write \\{ for the character itself")
        if max(int(low or 0), int(high or 0)) > 255 or (low and high and int(low) > int(high)):
            raise _bad(reader.pattern, at, "a repetition goes up to 255, from the lower to the higher")
        text = f"{{{low or 0}{comma}{high}}}"
    if reader.rest("?"):
        # Lazy or greedy, the same lines match.
        reader.take()
    elif reader.rest("+"):
        raise _bad(reader.pattern, at, "possessive repetition is not supported")
    if reader.rest("*") or reader.rest("+") or reader.rest("?"):
        raise _bad(reader.pattern, reader.position, "a repetition cannot be repeated")
    return text


def _atom(reader: _Reader, character: str, at: int) -> str:
    if character == "[":
        return _bracket(reader, at)
    if character == "\\":
        return _escape(reader, at)
    if character == "$":
        # The carriage return of a file with CRLF does not belong to the line.
        return "\r?$"
    if character in "{}]":
        return _literal(character)
    return character


def _escape(reader: _Reader, at: int) -> str:
    if not reader.more:
        raise _bad(reader.pattern, at, "it ends with a single backslash; write \\\\ for the character itself")
    character = reader.take()
    if character in _CLASSES:
        return f"[{_CLASSES[character]}]"
    if character.lower() in _CLASSES:
        return f"[^{_CLASSES[character.lower()]}]"
    if character in _CONTROL:
        return _CONTROL[character]
    if character in "bB<>":
        return f"\\{character}"
    if character in "Az":
        return "^" if character == "A" else "\r?$"
    if character.isascii() and character.isalnum():
        raise _bad(reader.pattern, at, f"\\{character} is not supported")
    return _literal(character)


def _bracket(reader: _Reader, at: int) -> str:
    negated = reader.rest("^")
    if negated:
        reader.take()
    members: list[str] = []
    first = True
    while True:
        if not reader.more:
            raise _bad(reader.pattern, at, "a [ is not closed; write \\[ for the character itself")
        posix = _POSIX_CLASS.match(reader.pattern, reader.position)
        if posix is not None:
            members.append(reader.take(len(posix[0])))
        elif reader.rest("]") and not first:
            reader.take()
            break
        else:
            members.append(_member(reader, at))
        first = False
    return _written(members, negated)


def _member(reader: _Reader, at: int) -> str:
    """One character or range of a bracket expression, or the inside of a class such as ``\\d``."""
    low = _member_character(reader, at)
    if len(low) != 1 or not reader.rest("-") or reader.rest("-]"):
        return low
    reader.take()
    high = _member_character(reader, at)
    if len(high) != 1 or high < low:
        raise _bad(reader.pattern, at, f"{low}-{high} is no range of characters")
    return f"{low}-{high}"


def _member_character(reader: _Reader, at: int) -> str:
    character = reader.take()
    if character != "\\":
        return character
    if not reader.more:
        raise _bad(reader.pattern, at, "a [ is not closed")
    character = reader.take()
    if character in _CLASSES:
        return _CLASSES[character]
    if character in _CONTROL:
        return _CONTROL[character]
    if character.isascii() and character.isalnum():
        raise _bad(reader.pattern, at, f"\\{character} in [ ] is not supported")
    return character


def _written(members: list[str], negated: bool) -> str:
    """POSIX has no escapes in brackets: ``]`` goes first, ``-`` last, ``^`` not first."""
    closing = "]" if "]" in members else ""
    hyphen = "-" if "-" in members else ""
    caret = "^" if "^" in members else ""
    others = "".join(member for member in members if member not in ("]", "-", "^"))
    if caret and not negated and not closing and not others:
        return r"\^" if not hyphen else "[-^]"
    return f"[{'^' if negated else ''}{closing}{others}{caret}{hyphen}]"


def glob_to_extended(glob: str) -> str:
    """A glob as a pattern for paths that begin with ``./``.

    Without a slash it is compared with the name alone, at any depth; ``**`` crosses directories,
    ``{a,b}`` is a choice.
    """
    if not glob.strip() or "\n" in glob or "\0" in glob:
        raise ToolInputError("the glob is empty or has a line break in it")
    text = glob.strip().removeprefix("./").lstrip("/")
    start = "^\\./" if "/" in text else "^\\./(.*/)?"
    pieces: list[str] = []
    braces = 0
    position = 0
    while position < len(text):
        bracket = re.compile(r"\[!?\]?[^\]/]*\]").match(text, position)
        character = text[position]
        if text.startswith("**/", position):
            pieces.append("(.*/)?")
            position += 3
            continue
        if text.startswith("**", position):
            pieces.append(".*")
            position += 2
            continue
        if bracket is not None:
            inside = bracket[0][1:-1]
            pieces.append(f"[^{inside[1:]}]" if inside.startswith(("!", "^")) else f"[{inside}]")
            position = bracket.end()
            continue
        if character == "{" and "}" in text[position:]:
            braces += 1
            pieces.append("(")
        elif character == "}" and braces:
            braces -= 1
            pieces.append(")")
        elif character == "," and braces:
            pieces.append("|")
        elif character in "*?":
            pieces.append("[^/]*" if character == "*" else "[^/]")
        elif character == "\\" and position + 1 < len(text):
            position += 1
            pieces.append(_literal(text[position]))
        else:
            pieces.append(_literal(character))
        position += 1
    if braces:
        raise ToolInputError(f"the glob {glob!r} has a brace that is not closed")
    return f"{start}{''.join(pieces)}$"


def _literal(character: str) -> str:
    return f"\\{character}" if character in _SPECIAL else character


def _bad(pattern: str, position: int, reason: str) -> ToolInputError:
    return ToolInputError(
        f"pattern {pattern!r} cannot be searched for: at character {position + 1}, {reason}"
    )
