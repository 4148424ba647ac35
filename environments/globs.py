"""Names that a user chooses from by globs. A name always matches itself, whatever it is made of."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable


def matches(name: str, pattern: str) -> bool:
    """Whether a glob means a name.

    >>> matches("a[1]", "a[1]"), matches("fix-git", "*-git"), matches("Fix", "fix")
    (True, True, False)
    """
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def chosen(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern means: the one that it is, else those that it matches as a glob."""
    known = list(names)
    return [pattern] if pattern in known else [name for name in known if fnmatch.fnmatchcase(name, pattern)]
