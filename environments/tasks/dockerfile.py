"""The part of a ``Dockerfile`` that can be carried out in a machine that is there already.

Backends without images (this machine, an ssh host) and images from elsewhere take no ``Dockerfile``. What
follows its last ``FROM`` can be replayed in a sandbox: ``COPY``, ``ADD`` of local files, ``ENV``, ``ARG``,
``WORKDIR`` and ``RUN``. The image itself is not the one that was named, and whoever replays says so.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from environments.errors import ConfigError

_IGNORED = {
    "LABEL",
    "EXPOSE",
    "CMD",
    "ENTRYPOINT",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "MAINTAINER",
    "VOLUME",
}
_ROOT = ("root", "0")
_VARIABLE = re.compile(r"\\?\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Copy:
    """Put ``source`` of the build context at ``target``; a target with ``/`` at its end is a directory."""

    sources: tuple[str, ...]
    target: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Run shell text in ``directory``."""

    command: str
    directory: str
    environment: dict[str, str]
    user: str | None = None


@dataclass(slots=True)
class Replay:
    """What to do, in order, and what holds afterwards."""

    base: str = ""
    actions: list[Copy | Run] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    working_directory: str | None = None
    user: str | None = None
    """Whose the machine is in the end; None for root."""
    problems: list[str] = field(default_factory=list)
    """Instructions that cannot be replayed."""

    @property
    def users(self) -> list[str]:
        """Users other than root that it needs, those of commands, files and in the end."""
        named = [a.user if isinstance(a, Run) else a.owner for a in self.actions]
        return list(dict.fromkeys(user for user in (*named, self.user) if user is not None))


def read_dockerfile(path: Path) -> Replay:
    """The last stage of a file. Raises ``ConfigError`` where it cannot be read."""
    try:
        text = path.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    replay = Replay()
    before: dict[str, str] = {}
    arguments = before
    for word, rest in _instructions(text):
        if word == "FROM":
            replay, arguments = Replay(base=_expand(rest, before).split(" ")[0]), {}
        elif word == "ARG" and rest in before:  # declared again, it is known in this stage too
            arguments[rest] = before[rest]
        else:
            _take(replay, arguments, word, rest)
    return replay


def _take(replay: Replay, arguments: dict[str, str], word: str, rest: str) -> None:
    known = {**arguments, **replay.environment}
    if word == "RUN":
        if rest.startswith(("<<", "--")):
            replay.problems.append(_shown(f"RUN {rest.split(maxsplit=1)[0]}"))
            return
        replay.actions.append(Run(_command(rest), replay.working_directory or "/", known, replay.user))
    elif word in ("COPY", "ADD"):
        _take_copy(replay, word, _expand(rest, known))
    elif word == "WORKDIR":
        replay.working_directory = posixpath.join(
            replay.working_directory or "/", _unquoted(_expand(rest, known))
        )
    elif word == "ENV":
        replay.environment.update(_pairs(_expand(rest, known)))
    elif word == "ARG":
        arguments.update(_pairs(_expand(rest, known)) if "=" in rest else {})
    elif word == "USER":
        replay.user = _user(_unquoted(_expand(rest, known)))
    elif word not in _IGNORED:
        replay.problems.append(_shown(word))


def _take_copy(replay: Replay, word: str, rest: str) -> None:
    whole, flags = rest, list[str]()
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        flags.append(flag)
        rest = rest.lstrip()
    paths = _words(rest)
    remote = any(p.startswith(("http://", "https://", "git@")) for p in paths[:-1])
    if len(paths) < 2 or remote or any(flag.startswith("--from") for flag in flags):
        replay.problems.append(_shown(f"{word} {whole[:60]}"))
        return
    target = posixpath.join(replay.working_directory or "/", paths[-1])
    if paths[-1].endswith("/") or paths[-1] in (".", "./") or len(paths) > 2:
        target = posixpath.normpath(target) + "/"
    owners = [_user(flag.partition("=")[2]) for flag in flags if flag.startswith("--chown=")]
    replay.actions.append(Copy(tuple(paths[:-1]), target, owners[-1] if owners else None))


def _user(text: str) -> str | None:
    """``name`` or ``name:group``; None for root, as whom everything is done anyway."""
    return None if text.partition(":")[0] in (*_ROOT, "", "/") else text


def _instructions(text: str) -> list[tuple[str, str]]:
    """Instruction and arguments of each logical line; comments are left out."""
    found: list[tuple[str, str]] = []
    current = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#") or (not stripped and current):
            continue
        if stripped.endswith("\\"):
            current += stripped[:-1] + " "
            continue
        current = (current + stripped).strip()
        if current:
            word, _, rest = current.partition(" ")
            found.append((word.upper(), rest.strip()))
        current = ""
    return found


def _command(rest: str) -> str:
    return shlex.join(_words(rest)) if rest.startswith("[") and rest.endswith("]") else rest


def _words(rest: str) -> list[str]:
    """Words of the JSON form or of the shell's; an odd quote makes the text one word."""
    try:
        return [str(word) for word in json.loads(rest)] if rest.startswith("[") else shlex.split(rest)
    except ValueError:
        return [rest]


def _pairs(rest: str) -> dict[str, str]:
    first, _, value = rest.partition(" ")
    if "=" not in first:
        return {first: value.strip()}
    return {name: text for name, _, text in (word.partition("=") for word in _words(rest))}


def _unquoted(text: str) -> str:
    words = _words(text)
    return words[0] if words else "/"


def _shown(text: str) -> str:
    """Text that can be printed, whatever bytes it was read from."""
    return text.encode("utf-8", "replace").decode()


def _expand(text: str, known: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[0].startswith("\\"):
            return match[0][1:]
        return known.get(match[1] or match[3]) or match[2] or ""

    return _VARIABLE.sub(value, text)
