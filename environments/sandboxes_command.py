"""``hermes-env sandboxes``: what runs on which backend, removing what nobody wants, entering one.

hermes-env sandboxes list
hermes-env sandboxes reap --expired
hermes-env sandboxes shell hermes-4f0c-1b2d --backend docker
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from environments.cli_output import emit, tell
from environments.errors import ConfigError, SandboxError, UnknownName, suggestion

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig
    from environments.sandboxes.base import SandboxEntry
    from environments.sandboxes.reach import Reached

_USAGE = """\
usage: hermes-env sandboxes list  [--run RUN] [--json]
       hermes-env sandboxes reap  [ID... | --run RUN | --expired | --all]
       hermes-env sandboxes shell ID [COMMAND...]

  list    what runs on every backend that can be reached from here, and whose it is
  reap    remove what dead runs left and what is past its deadline; or the sandboxes named, all of one
          run, only what is past its deadline, or everything, sandboxes of living runs included
  shell   open a shell in a sandbox, or run a command there

  --backend NAME        ask only this backend (may be repeated)
  --env.FIELD VALUE     a setting of a backend, as given to a run: --env.ssh_host HOST
"""
_FLAGS = {"list": ("--json",), "reap": ("--expired", "--all"), "shell": ()}
_VALUES = {"list": ("--backend", "--run"), "reap": ("--backend", "--run"), "shell": ("--backend",)}


@dataclass(slots=True)
class _Options:
    action: str
    words: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    backends: list[str] = field(default_factory=list)
    run: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code. Raises ``HermesError``.

    ``list`` and ``reap`` end with 1 where a backend named by ``--backend`` cannot be asked, ``reap`` also
    where something is left; ``shell`` ends with the code of what ran.
    """
    if not argv:
        tell(_USAGE)
        return 2
    if "-h" in argv[:2] or "--help" in argv[:2]:
        return emit(_USAGE)
    options = _read(argv)
    return asyncio.run(_run(options, _config(options.settings)))


def _read(argv: Sequence[str]) -> _Options:
    action, *rest = argv
    if action not in _FLAGS:
        raise ConfigError(f"hermes-env sandboxes: unknown action {action!r}{suggestion(action, _FLAGS)}")
    options = _Options(action)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--" or not word.startswith("-"):
            options.words += rest if word == "--" else [word]
            if word == "--" or (action == "shell" and len(options.words) > 1):
                options.words += [] if word == "--" else rest
                break
        elif word in _FLAGS[action]:
            options.flags.add(word)
        elif name in _VALUES[action] or name.startswith("--env."):
            if not equals and not rest:
                raise ConfigError(f"{name} needs a value")
            _set(options, name, value if equals else rest.pop(0))
        else:
            known = [*_FLAGS[action], *_VALUES[action], "--env.ssh_host"]
            raise ConfigError(
                f"hermes-env sandboxes {action}: unknown option {name}{suggestion(name, known)}"
            )
    return _checked(options)


def _set(options: _Options, name: str, value: str) -> None:
    if name == "--backend":
        options.backends.append(value)
    elif name == "--run":
        options.run = value
    else:
        options.settings[name.removeprefix("--env.")] = value


def _checked(options: _Options) -> _Options:
    if options.action == "list" and options.words:
        raise ConfigError(f"unexpected argument {options.words[0]!r}: 'hermes-env sandboxes list' takes none")
    if options.action == "shell" and not options.words:
        raise ConfigError("hermes-env sandboxes shell: which one? See 'hermes-env sandboxes list'")
    if options.action == "reap":
        ways = [*options.flags, *(["--run"] if options.run else []), *(["ID"] if options.words else [])]
        if len(ways) > 1:
            raise ConfigError(f"hermes-env sandboxes reap: {' and '.join(sorted(ways))} exclude each other")
    return options


def _config(settings: dict[str, str]) -> HermesAgentEnvConfig:
    from pydantic import ValidationError

    from environments.config import HermesAgentEnvConfig

    try:
        return HermesAgentEnvConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = f"--env.{'.'.join(map(str, first['loc']))}"
        if first["type"] == "extra_forbidden":
            known = [f"--env.{known}" for known in HermesAgentEnvConfig.model_fields]
            raise UnknownName("option", name, known) from error
        raise ConfigError(f"{name}: {first['msg']}") from error


async def _run(options: _Options, config: HermesAgentEnvConfig) -> int:
    from environments.sandboxes import reach

    asked = options.backends or reach.likely(config)
    reached = await reach.reach(list(dict.fromkeys(asked)), config)
    try:
        refused = _tell_problems(reached, named=bool(options.backends))
        if options.action == "shell":
            return await _shell(reached, options.words[0], options.words[1:])
        code = await _reap(reached, options) if options.action == "reap" else _list(reached, options)
        return code or refused
    finally:
        await reach.close(reached)


def _tell_problems(reached: Sequence[Reached], *, named: bool) -> int:
    """Say which backends could not be asked; 1 where the user had named one of them."""
    problems = [one for one in reached if one.problem is not None]
    for one in problems:
        tell(f"{'error' if named else 'not asked'}: {one.name}: {one.problem}\n")
    return int(named and bool(problems))


def _entries(reached: Sequence[Reached]) -> list[SandboxEntry]:
    return [entry for one in reached for entry in one.entries]


# -- list ---------------------------------------------------------------------------------------


def _list(reached: Sequence[Reached], options: _Options) -> int:
    entries = _of_run(_entries(reached), options.run)
    if "--json" in options.flags:
        return emit("".join(json.dumps(_as_json(entry)) + "\n" for entry in entries))
    if not entries:
        return emit("no sandboxes\n")
    heads = ("BACKEND", "ID", "RUN", "OWNER", "AGE", "LEFT", "STATE")
    rows = [heads, *map(_row, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return emit("".join(line.rstrip() + "\n" for line in lines))


def _row(entry: SandboxEntry) -> tuple[str, ...]:
    now = time.time()
    age = "-" if entry.created_at is None else _duration(now - entry.created_at)
    left = "-" if entry.deadline is None else _duration(entry.deadline - now)
    return entry.backend, entry.id, entry.run or "-", entry.owner or "-", age, left, _state(entry)


def _state(entry: SandboxEntry) -> str:
    if entry.expired:
        return "expired"
    if entry.kept:
        return "kept"
    return {True: "in use", False: "left over", None: "unknown"}[entry.owner_alive]


def _as_json(entry: SandboxEntry) -> dict[str, Any]:
    names = ("backend", "id", "run", "owner", "owner_alive", "created_at", "deadline", "kept")
    return {**{name: getattr(entry, name) for name in names}, "state": _state(entry)}


def _duration(seconds: float) -> str:
    if seconds < 0:
        return "0 s"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _of_run(entries: list[SandboxEntry], run: str | None) -> list[SandboxEntry]:
    if run is None:
        return entries
    found = [entry for entry in entries if entry.run == run]
    if not found:
        raise UnknownName("run", run, {entry.run for entry in entries if entry.run}, "--run")
    return found


# -- reap ---------------------------------------------------------------------------------------


async def _reap(reached: Sequence[Reached], options: _Options) -> int:
    wanted = _chosen(_entries(reached), options)
    removed, left = 0, 0
    for one in reached:
        if one.backend is None or one.problem is not None:
            continue
        mine = [entry for entry in one.entries if wanted is None or entry in wanted]
        if wanted is None:
            gone, stay = await one.backend.reap(), []
        else:
            stay = await one.backend.remove(mine) if mine else []
            gone = [entry for entry in mine if entry not in stay]
        for entry in gone:
            emit(f"removed {entry.backend} {entry.id} (run {entry.run or '-'}, {_state(entry)})\n")
        for entry in stay:
            tell(f"error: {entry.backend} {entry.id} cannot be removed\n")
        removed, left = removed + len(gone), left + len(stay)
    emit(f"{removed} removed{f', {left} left' if left else ''}\n")
    return int(left > 0)


def _chosen(entries: list[SandboxEntry], options: _Options) -> list[SandboxEntry] | None:
    """What the options name; None for what a starting run would remove."""
    if options.words:
        return [_named(entries, word) for word in options.words]
    if options.run is not None:
        return _of_run(entries, options.run)
    if "--all" in options.flags:
        return entries
    if "--expired" in options.flags:
        return [entry for entry in entries if entry.expired]
    return None


def _named(entries: list[SandboxEntry], word: str) -> SandboxEntry:
    """The sandbox of this id, or the only one whose id begins so."""
    found = [entry for entry in entries if entry.id == word]
    found = found or [entry for entry in entries if entry.id.startswith(word)]
    if len(found) > 1:
        names = ", ".join(f"{entry.id} ({entry.backend})" for entry in found[:5])
        raise ConfigError(f"{word!r} names {len(found)} sandboxes: {names}")
    if not found:
        raise UnknownName("sandbox", word, {entry.id for entry in entries})
    return found[0]


# -- shell --------------------------------------------------------------------------------------


async def _shell(reached: Sequence[Reached], name: str, command: list[str]) -> int:
    from environments.sandboxes.terminal import attend

    entry = _named(_entries(reached), name)
    backend = next(one.backend for one in reached if entry in one.entries)
    if backend is None:
        raise SandboxError(f"the backend {entry.backend} is gone")
    sandbox = await backend.attach(entry)
    try:
        return await attend(sandbox, command)
    finally:
        await sandbox.detach()
