"""Choosing tasks by name: globs to take, globs to leave out.

A glob without a slash is compared with the last part of a task's name too, so that ``fix-git`` means
``hard/fix-git`` wherever it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

from environments.cli_output import plural
from environments.errors import ConfigError, UnknownName
from environments.globs import chosen
from environments.tasks.model import Task


def select(
    tasks: Sequence[Task], take: Sequence[str] | None, skip: Sequence[str] | None, *, where: str = "env"
) -> list[Task]:
    """Tasks that match one of ``take`` (None: all) and none of ``skip``, in their order.

    Raises ``UnknownName`` for a glob that matches nothing, ``ConfigError`` where nothing is left.
    """
    wanted = set(select_names([task.name for task in tasks], take, skip, where=where))
    return [task for task in tasks if task.name in wanted]


def select_names(
    names: Sequence[str], take: Sequence[str] | None, skip: Sequence[str] | None, *, where: str = "env"
) -> list[str]:
    """The same for names alone."""
    taken = _named(names, take, f"--{where}.task_filter") if take else set(names)
    left_out = _named(names, skip, f"--{where}.skip_tasks") if skip else set()
    found = [name for name in names if name in taken and name not in left_out]
    if not found:
        raise ConfigError(f"--{where}.task_filter and --{where}.skip_tasks leave no task")
    return found


def meant(glob: str, names: Sequence[str]) -> set[str]:
    """The names that a glob means, in whole or by their last part."""
    whole = chosen(glob, names)
    if whole == [glob] or "/" in glob:
        return set(whole)
    last_parts: dict[str, list[str]] = {}
    for name in names:
        last_parts.setdefault(name.rpartition("/")[2], []).append(name)
    return set(whole).union(*(last_parts[part] for part in chosen(glob, last_parts)))


def _named(names: Sequence[str], globs: Sequence[str], option: str) -> set[str]:
    found: set[str] = set()
    for glob in globs:
        if not (these := meant(glob, names)):
            raise UnknownName("task", glob, names, f"{option} (of {plural(len(names), 'task')})")
        found |= these
    return found
