"""Which files of a tree a search looks at: all but those that ignore files leave out, as in ripgrep.

``.rgignore`` counts before ``.ignore``, and that before ``.gitignore``; of equal ones the innermost. What
git says (``.gitignore``, ``info/exclude``, the user's own) counts within repositories alone, and not
beyond the directory that has the ``.git``. A directory that is left out is left out whole. A glob that
the search is narrowed to lets in what fits it, as ripgrep's ``--glob`` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from environments.tools.search_ignores import Rules

_LINE = re.compile(
    rb"(?P<place>\^\d+|\.(?:/.*?)??)/(?P<name>\.git/info/exclude|\.gitignore|\.ignore|\.rgignore|\.git)"
    rb":(?P<text>.*)",
    re.DOTALL,
)
_GLOBAL = b"~:"
_KINDS = (".rgignore", ".ignore", ".gitignore", ".git/info/exclude")
_OF_GIT = (".gitignore", ".git/info/exclude")

Parts = tuple[str, ...]


@dataclass(slots=True)
class _Directory:
    """What is known of a directory. ``sources`` are those in and above it that say something, inside out."""

    path: Parts
    rules: dict[str, Rules] = field(default_factory=dict)
    has_git: bool = False
    sources: tuple[_Directory, ...] = ()
    left_out: bool = False


class IgnoreTree:
    """The ignore files in and above a directory.

    ``listing`` has one line for each line of theirs and one for each ``.git``: ``./a/.gitignore:LINE``,
    ``^2/.ignore:LINE`` where it is two directories up, ``~:LINE`` for the user's own. ``where`` is the
    directory's absolute path. Line breaks in names are ``\\x01``, as in the names of ``kept``.
    """

    def __init__(self, listing: bytes, where: bytes, glob: str | None) -> None:
        self._base: Parts = tuple(part for part in where.decode("latin-1").split("/") if part)
        self._glob = Rules(glob.encode("utf-8", "surrogateescape").decode("latin-1")) if glob else None
        self._known: dict[Parts, _Directory] = {}
        self._texts: dict[tuple[Parts, str], list[str]] = {}
        self._git: set[Parts] = set()
        own: list[str] = []
        for line in listing.split(b"\n"):
            if line.startswith(_GLOBAL):
                own.append(line[len(_GLOBAL) :].decode("latin-1"))
            elif (found := _LINE.match(line)) is not None:
                self._note(found)
        self._users = Rules("\n".join(own))

    def kept(self, names: Iterable[bytes]) -> list[bytes]:
        """Of the files (``./a/b.c``) those that a search looks at."""
        return [name for name in names if self._is_kept(name)]

    def _note(self, found: re.Match[bytes]) -> None:
        place = found["place"].decode("latin-1")
        if place.startswith("^"):
            path = self._base[: max(0, len(self._base) - int(place[1:]))]
        else:
            path = (*self._base, *(part for part in place.split("/")[1:]))
        name = found["name"].decode()
        if name == ".git":
            self._git.add(path)
        else:
            self._texts.setdefault((path, name), []).append(found["text"].decode("latin-1"))

    def _is_kept(self, name: bytes) -> bool:
        *above, last = name.decode("latin-1").split("/")[1:]
        directory = self._directory((*self._base, *above))
        if directory.left_out:
            return False
        # A glob let this file in, whatever the rules say; else it would not be in the list.
        return self._glob is not None or not self._ignored(directory, (*directory.path, last), False)

    def _directory(self, path: Parts) -> _Directory:
        found = self._known.get(path)
        if found is not None:
            return found
        depth = len(path)
        while depth and path[:depth] not in self._known:
            depth -= 1
        above = self._known.get(path[:depth])
        for length in range(depth + (above is not None), len(path) + 1):
            above = self._known[path[:length]] = self._enter(path[:length], above)
        assert above is not None
        return above

    def _enter(self, path: Parts, above: _Directory | None) -> _Directory:
        texts = ((kind, self._texts.get((path, kind))) for kind in _KINDS)
        rules = {kind: Rules("\n".join(lines)) for kind, lines in texts if lines}
        found = _Directory(path, rules, path in self._git)
        own = (found,) if rules or found.has_git else ()
        found.sources = own + (above.sources if above is not None else ())
        if above is not None and len(path) > len(self._base):
            let_in = self._glob is not None and self._glob.ignored(path[len(self._base) :], True)
            found.left_out = above.left_out or (not let_in and self._ignored(above, path, True))
        return found

    def _ignored(self, directory: _Directory, path: Parts, is_directory: bool) -> bool:
        """What the rules in and above the directory of a path say of it."""
        verdicts: dict[str, bool] = {}
        in_repository = False
        for source in directory.sources:
            for kind, rules in source.rules.items():
                if kind in verdicts or (kind in _OF_GIT and in_repository):
                    continue
                verdict = rules.ignored(path[len(source.path) :], is_directory)
                if verdict is not None:
                    verdicts[kind] = verdict
            in_repository = in_repository or source.has_git
        kinds = _KINDS if in_repository else _KINDS[:2]
        for kind in kinds:
            if kind in verdicts:
                return verdicts[kind]
        return bool(
            in_repository and self._users and self._users.ignored(path[len(self._base) :], is_directory)
        )
