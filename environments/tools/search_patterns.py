r"""Regular expressions of search_files, in the one dialect that every grep understands.

A pattern is read here and written anew as POSIX extended: ``\d``, ``\w``, ``\s``, groups without
capture and lazy quantifiers (which do not change *whether* a line matches) are rewritten;
look-around and back-references are refused. grep then runs in the C locale, the only one that every
image has, so what stands for one character is written out as the bytes of one in UTF-8. Raw bytes
are lone surrogates here, as Python's ``surrogateescape`` has them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from environments.tools.base import ToolInputError

_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " \t\r\f\v"}
_CONTROL = {"t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_SPECIAL = set(".[]{}()*+?^$|\\")
CONTINUATION = "\udc80-\udcbf"
"""The bytes that go on a character of UTF-8, for a bracket expression."""

_EMPTY = ".{0}"
"""Matches nothing at all; POSIX leaves ``()`` and ``a|`` undefined."""

_LINE_START = "^(\ufeff)?"
"""A byte order mark belongs to the file, not to its first line."""

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
    if "\n" in pattern:
        raise ToolInputError("pattern has a line break in it, but lines are searched one by one")
    if "\0" in pattern:
        raise ToolInputError("pattern has a NUL character in it, which no text file has")
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
        members, negated = _bracket(reader, at)
        return _one_of(reader, members, negated, at)
    if character == "\\":
        return _escape(reader, at)
    if character == "$":
        # The carriage return of a file with CRLF does not belong to the line.
        return "\r?$"
    if character == ".":
        return _one_of(reader, [], True, at)
    return _LINE_START if character == "^" else literal(character)


def _escape(reader: _Reader, at: int) -> str:
    if not reader.more:
        raise _bad(reader.pattern, at, "it ends with a single backslash; write \\\\ for the character itself")
    character = reader.take()
    if character.lower() in _CLASSES:
        return _one_of(reader, [_CLASSES[character.lower()]], character.isupper(), at)
    if character in _CONTROL:
        return _CONTROL[character]
    if character in "bB<>":
        return f"\\{character}"
    if character in "Az":
        return _LINE_START if character == "A" else "\r?$"
    if character.isascii() and character.isalnum():
        raise _bad(reader.pattern, at, f"\\{character} is not supported")
    return literal(character)


def _bracket(reader: _Reader, at: int) -> tuple[list[str], bool]:
    """Members of a bracket expression, and whether it means all others."""
    negated = reader.rest("^")
    if negated:
        reader.take()
    members: list[str] = []
    while True:
        if not reader.more:
            raise _bad(reader.pattern, at, "a [ is not closed; write \\[ for the character itself")
        posix = _POSIX_CLASS.match(reader.pattern, reader.position)
        if posix is not None:
            members.append(reader.take(len(posix[0])))
        elif reader.rest("]") and members:
            reader.take()
            return members, negated
        else:
            members.append(_member(reader, at))


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


def _one_of(reader: _Reader, members: list[str], negated: bool, at: int) -> str:
    # Any number of bytes is any number of characters: no need to spell those out. Not so for +, which
    # could be content with the later bytes of the character before.
    repeated = reader.rest("*")
    try:
        return one_of(members, negated, repeated)
    except ValueError as error:
        raise _bad(reader.pattern, at, str(error)) from None


def one_of(members: list[str], negated: bool, repeated: bool = False) -> str:
    """One character out of members (characters, ranges ``a-z``, classes), or one that is none of them.

    ``ValueError`` where bytes cannot express it.
    """
    wide = [member for member in members if not member.isascii()]
    narrow = [member for member in members if member.isascii()]
    if wide and (negated or any(len(member) > 1 for member in wide)):
        raise ValueError("characters outside ASCII can stand in [ ] only one by one, and not after ^")
    if not negated:
        choices = [*wide, *([_bracket_text(narrow, False)] if narrow else [])]
        return choices[0] if len(choices) == 1 and not wide else f"({'|'.join(choices)})"
    if repeated:
        return _bracket_text(narrow, True) if narrow else "."
    return f"({_bracket_text([*narrow, CONTINUATION], True)}[{CONTINUATION}]*)"


def _bracket_text(members: list[str], negated: bool) -> str:
    """POSIX has no escapes in brackets: ``]`` goes first, ``-`` last, ``^`` not first."""
    closing = "]" if "]" in members else ""
    hyphen = "-" if "-" in members else ""
    caret = "^" if "^" in members else ""
    others = "".join(member for member in members if member not in ("]", "-", "^"))
    if caret and not negated and not closing and not others:
        return "[-^]" if hyphen else r"\^"
    return f"[{'^' if negated else ''}{closing}{others}{caret}{hyphen}]"


def literal(character: str) -> str:
    """One character that means itself."""
    if character in _SPECIAL:
        return f"\\{character}"
    # A group, so that what repeats it repeats all of its bytes.
    return character if character.isascii() else f"({character})"


def to_octal(expression: str) -> str:
    """The bytes of an expression as printf of any shell reads them, safe on every way into a sandbox."""
    return "".join(f"\\{byte:03o}" for byte in expression.encode("utf-8", "surrogateescape"))


def _bad(pattern: str, position: int, reason: str) -> ToolInputError:
    return ToolInputError(
        f"pattern {pattern!r} cannot be searched for: at character {position + 1}, {reason}"
    )
