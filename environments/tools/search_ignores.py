r"""The rules of ``.gitignore``, ``.ignore`` and ``.rgignore`` files, as ripgrep reads them.

Rules and paths are text with one character per byte (Latin-1), because that is how ripgrep compares them.
Whoever writes rules may want the matching to take for ever: each ``*`` takes the first place that fits and
is never tried again, which is enough within one part of a path, so the time is bounded by the lengths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MOST_ALTERNATIVES = 64
_MOST_RULES = 10_000
_SPECIAL = re.compile(r"[*?\[\]{}\\]")

Name = str | re.Pattern[str]
"""What one part of a path must be."""


class BadGlob(ValueError):
    """The glob means nothing; ripgrep leaves its line out."""


@dataclass(frozen=True, slots=True)
class _Glob:
    """A glob over the parts of a path, as what stands between its ``**``."""

    groups: list[list[Name]]

    def matches(self, path: Sequence[str]) -> bool:
        first, *others = self.groups
        if not others:
            return len(path) == len(first) and _fit(first, path, 0)
        last = others.pop()
        end = len(path) - len(last)
        start = len(first)
        if start > end or not _fit(first, path, 0) or not _fit(last, path, end):
            return False
        for group in others:
            while start + len(group) <= end and not _fit(group, path, start):
                start += 1
            start += len(group)
            if start > end:
                return False
        return True


@dataclass(frozen=True, slots=True)
class _Rule:
    globs: tuple[_Glob, ...]
    whitelists: bool
    directories_only: bool


class Rules:
    """The rules of one file; paths are parts below the directory that it stands in."""

    def __init__(self, text: str) -> None:
        self._rules: list[_Rule] = []
        self._names: dict[str, list[int]] = {}
        self._endings: list[tuple[str, int]] = []
        self._others: list[int] = []
        for line in text.removeprefix("\xef\xbb\xbf").split("\n")[:_MOST_RULES]:
            rule = _rule(line.removesuffix("\r"))
            if rule is not None:
                self._sort_in(rule, len(self._rules))
                self._rules.append(rule)
        self._all_endings = tuple({ending for ending, _ in self._endings})

    def __bool__(self) -> bool:
        return bool(self._rules)

    def ignored(self, path: Sequence[str], is_directory: bool) -> bool | None:
        """Whether the last rule that fits ignores the path or lets it in; None where none fits."""
        for index in sorted(self._candidates(path), reverse=True):
            rule = self._rules[index]
            if is_directory or not rule.directories_only:
                return not rule.whitelists
        return None

    def _candidates(self, path: Sequence[str]) -> Iterator[int]:
        name = path[-1]
        yield from self._names.get(name, ())
        if self._all_endings and name.endswith(self._all_endings):
            yield from (index for ending, index in self._endings if name.endswith(ending))
        for index in self._others:
            if any(glob.matches(path) for glob in self._rules[index].globs):
                yield index

    def _sort_in(self, rule: _Rule, index: int) -> None:
        """Most rules are names or endings, which need no trying out."""
        simple = [_simple(glob) for glob in rule.globs]
        for name, ending in (found for found in simple if found is not None and all(simple)):
            if name is not None:
                self._names.setdefault(name, []).append(index)
            else:
                self._endings.append((ending, index))
        if not all(simple):
            self._others.append(index)


def _rule(line: str) -> _Rule | None:
    if line.startswith("#"):
        return None
    if not line.endswith("\\ "):
        line = line.rstrip(" \t\r\v\f")
    if not line:
        return None
    whitelists = anchored = False
    if line.startswith(("\\!", "\\#")):
        line = line[1:]
    else:
        if line.startswith("!"):
            whitelists, line = True, line[1:]
        if line.startswith("/"):
            anchored, line = True, line[1:]
    directories_only = line.endswith("/")
    if directories_only:
        line = line[:-1].removesuffix("\\")
    if not anchored and "/" not in line and line != "**":
        line = f"**/{line}"
    if line.endswith("/**"):
        line += "/*"
    try:
        globs = tuple(_Glob(_groups(one)) for one in _alternatives(line))
    except BadGlob:
        return None
    return _Rule(globs, whitelists, directories_only)


def _simple(glob: _Glob) -> tuple[str | None, str] | None:
    """The name, or the ending of names, that a glob means at any depth; None where it means more."""
    if len(glob.groups) != 2 or glob.groups[0] or len(glob.groups[1]) != 1:
        return None
    (name,) = glob.groups[1]
    if isinstance(name, str):
        return name, ""
    ending = _ending(name)
    return None if ending is None else (None, ending)


def _fit(group: Sequence[Name], path: Sequence[str], start: int) -> bool:
    for offset, part in enumerate(group):
        name = path[start + offset]
        if name != part if isinstance(part, str) else part.match(name) is None:
            return False
    return True


def _alternatives(glob: str) -> list[str]:
    """The globs that ``{a,b}`` in a glob stands for."""
    done = [""]
    stack: list[tuple[list[str], list[str]]] = []  # what stands before a brace, and its ended branches
    for token in _tokens(glob):
        if token == "{":
            stack.append((done, []))
            done = [""]
        elif token == "," and stack:
            stack[-1][1].extend(done)
            done = [""]
        elif token == "}":
            if not stack:
                raise BadGlob("a brace is closed that was not opened")
            before, branches = stack.pop()
            done = [head + branch for head in before for branch in [*branches, *done]]
            if len(done) > _MOST_ALTERNATIVES:
                raise BadGlob("too many alternatives")
        else:
            done = [text + token for text in done]
    if stack:
        raise BadGlob("a brace is not closed")
    return done


def _tokens(glob: str) -> Iterator[str]:
    """Single characters; an escaped one with its backslash, a class with its brackets."""
    position = 0
    while position < len(glob):
        length = 1
        if glob[position] == "\\":
            length = 2
            if position + 1 == len(glob):
                raise BadGlob("nothing is escaped")
        elif glob[position] == "[":
            first = position + 1 + (glob[position + 1 : position + 2] in ("!", "^"))
            end = glob.find("]", first + 1)
            if end < 0:
                raise BadGlob("a class is not closed")
            length = end + 1 - position
        yield glob[position : position + length]
        position += length


def _groups(glob: str) -> list[list[Name]]:
    groups: list[list[Name]] = [[]]
    part: list[str] = []
    for token in [*_tokens(glob), "/"]:
        if token != "/":
            part.append(token)
            continue
        if part == ["*", "*"]:
            groups.append([])
        else:
            groups[-1].append(_part(part))
        part = []
    return groups


def _part(tokens: list[str]) -> Name:
    """One part, as a name or an expression whose time is bounded."""
    if not any(token in ("*", "?") or token.startswith("[") for token in tokens):
        return "".join(map(_unescaped, tokens))
    chunks: list[str] = [""]
    for token in tokens:
        if token == "*":
            chunks.append("")
        elif token == "?":
            chunks[-1] += "."
        elif token.startswith("["):
            chunks[-1] += _class(token)
        else:
            chunks[-1] += re.escape(_unescaped(token))
    first, *others = chunks
    if not others:
        return re.compile(rf"(?s:{first})\Z")
    last = others.pop()
    middle = "".join(f"(?>.*?{chunk})" for chunk in others if chunk)
    return re.compile(rf"(?s:{first}{middle}.*{last})\Z")


def _unescaped(token: str) -> str:
    return token[1] if token.startswith("\\") else token


def _class(token: str) -> str:
    negated = token[1] in "!^"
    inner = token[1 + negated : -1]
    members: list[str] = []
    position = 0
    while position < len(inner):
        if inner[position + 1 : position + 2] == "-" and position + 2 < len(inner):
            low, high = inner[position], inner[position + 2]
            if low > high:
                raise BadGlob("a range has its ends exchanged")
            members.append(f"{re.escape(low)}-{re.escape(high)}")
            position += 3
        else:
            members.append(re.escape(inner[position]))
            position += 1
    return f"[{'^' if negated else ''}{''.join(members)}]"


_ANYTHING = "(?s:.*"


def _ending(part: re.Pattern[str]) -> str | None:
    """The text of an expression that is ``*`` and a text; None for others."""
    if not part.pattern.startswith(_ANYTHING):
        return None
    text = part.pattern[len(_ANYTHING) : -len(r")\Z")]
    plain = re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
    return plain if re.escape(plain) == text else None
