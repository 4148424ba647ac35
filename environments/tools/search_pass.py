"""Searches by one program without a shell, for the ordinary case.

What a search of a small tree costs is processes. Where the sandbox's ``grep`` and ``find`` can, the
pattern is plain ASCII and the glob is one that ``find`` reads as we do, ``find`` does it all in one go.
Whatever is else, any search that finds very much, and any tree with ignore files in or above it, is left
to the scripts of ``search_files``.
"""

from __future__ import annotations

import re

FIND_LIMIT = 200_000
"""Bytes of matches up to which one pass is enough."""

VARIABLES = {"LC_ALL": "C"}

_PLAIN_GLOB = re.compile(r"[A-Za-z0-9_*-][A-Za-z0-9_.*-]*\Z", re.ASCII)


def plain_glob(glob: str | None) -> str | None:
    """The glob for ``find -name``, ``*`` for none; None where find may read it otherwise."""
    if glob is None or not glob.strip():
        return "*"
    text = glob.strip()
    return text if _PLAIN_GLOB.match(text) and "**" not in text else None


def listing(glob: str) -> list[str]:
    """A command that lists the files below the current directory, hidden ones left out."""
    return [*_files(glob), "-print"]


def matching(expression: str, ignore_case: bool, context: int, glob: str, file: str | None) -> list[str]:
    """A command that prints ``FILE NUL NUMBER:TEXT`` for each line that matches, of one file or of all."""
    grep = ["grep", "-s", "-I", "-E", "-n", "-H", "-Z", *(["-i"] if ignore_case else [])]
    if context:
        grep += ["-A", str(context), "-B", str(context)]
    grep += ["-e", expression, "--"]
    return [*grep, file] if file is not None else [*_files(glob), "-exec", *grep, "{}", "+"]


def is_whole(output: bytes) -> bool:
    """Whether what one pass printed is the answer: it met no ignore file and no line break in a name."""
    return not any(mark in output for mark in _MARKS)


_IGNORE_FILES = (".git", ".gitignore", ".ignore", ".rgignore")
_MARKS = (b".git\0", b"ignore\0", b"?\0")
_LEVELS = 16
"""Directories above that are looked at; above the root there is the root again."""


def _files(glob: str) -> list[str]:
    """Marks, ended by a NUL, say that one pass is not enough."""
    name = [] if glob == "*" else ["-name", glob]
    above = ["../" * level + file for level in range(1, _LEVELS + 1) for file in _IGNORE_FILES]
    rules = [word for file in _IGNORE_FILES for word in ("-o", "-name", file)][1:]
    broken = ["-name", "*\n*", "-exec", "printf", "?\\0", ";", "-prune"]
    return [
        *("find", ".", *above, "(", *rules, ")", "-prune", "-print0", "-o", "-name", ".?*", "-prune", "-o"),
        *(*broken, "-o", "-type", "f", *name),
    ]
