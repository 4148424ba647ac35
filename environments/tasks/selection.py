"""Choosing tasks by name: globs to take, globs to leave out."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from environments.errors import ConfigError, UnknownName
from environments.tasks.model import Task


def select(
    tasks: Sequence[Task], take: Sequence[str] | None, skip: Sequence[str] | None, *, where: str = "env"
) -> list[Task]:
    """Tasks that match one of ``take`` (None: all) and none of ``skip``, in their order.

    Raises ``UnknownName`` for a glob that matches nothing, ``ConfigError`` where nothing is left.
    """
    chosen = set(select_names([task.name for task in tasks], take, skip, where=where))
    return [task for task in tasks if task.name in chosen]


def select_names(
    names: Sequence[str], take: Sequence[str] | None, skip: Sequence[str] | None, *, where: str = "env"
) -> list[str]:
    """The same for names alone."""
    for globs, option in ((take, "task_filter"), (skip, "skip_tasks")):
        for glob in globs or []:
            if not any(fnmatch.fnmatchcase(name, glob) for name in names):
                raise UnknownName("task", glob, names, f"--{where}.{option}")
    chosen = [name for name in names if _matches(name, take, True) and not _matches(name, skip, False)]
    if not chosen:
        raise ConfigError(f"--{where}.task_filter and --{where}.skip_tasks leave no task")
    return chosen


def _matches(name: str, globs: Sequence[str] | None, default: bool) -> bool:
    return default if not globs else any(fnmatch.fnmatchcase(name, glob) for glob in globs)
