"""Where below a directory the tasks are, and what there looks like one and is none."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from environments.errors import ConfigError

TASK_FILE = "task.toml"
DEPTH = 4
"""Levels of directories that are looked through."""

_PARTS = ("instruction.md", "environment", "tests", "solution", "steps")
_OLD_TASK_FILES = ("task.yaml", "task.yml")
_MOST_SHOWN = 20


@dataclass(slots=True)
class Found:
    """Paths are relative to where the search began, with ``/`` between their parts."""

    tasks: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Directories that could not be looked into, and why."""
    resembling: dict[str, str] = field(default_factory=dict)
    """What looks like a task and is none, and why."""
    without: list[str] = field(default_factory=list)
    """Directories that hold no task and nothing like one."""


def is_task(directory: Path) -> bool:
    """Whether a directory is a task."""
    return _is_file(directory / TASK_FILE)


def find_tasks(root: Path) -> Found:
    """Tasks at ``root`` (then ``"."`` alone) or below, sorted; nothing is looked for inside a task.

    Links to tasks count, other links to directories are not followed: they may lead in a circle.
    """
    found = Found()
    if is_task(root):
        found.tasks.append(".")
        return found
    _walk(root, "", 1, found)
    found.tasks.sort()
    return found


def no_task(root: Path, found: Found) -> ConfigError:
    """The error for a directory without a task."""
    reason = near_cause(root)
    lines = [f"{root} holds no task: {reason or f'no directory below it has a {TASK_FILE}'}"]
    near = [f"  {name}: {text}" for name, text in {**found.unreadable, **found.resembling}.items()]
    return ConfigError("\n".join([*lines, *near[:_MOST_SHOWN]]))


def _walk(directory: Path, prefix: str, depth: int, found: Found) -> bool:
    """Look through a directory; whether there is anything in it that is said."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        found.unreadable[prefix.rstrip("/") or "."] = f"it cannot be read: {error.strerror or error}"
        return True
    said, silent = False, list[str]()
    for entry in entries:
        name = prefix + entry.name
        if entry.name.startswith("."):
            continue
        if is_task(Path(entry.path)):
            found.tasks.append(name)
        elif entry.is_symlink():
            if _is_file(Path(entry.path)):
                continue
            reason = _of_link(entry)
            if reason is None:
                silent.append(name)
                continue
            found.resembling[name] = reason
        elif not _is_directory(entry):
            continue
        elif not _look(Path(entry.path), name, depth, found):
            silent.append(name)
            continue
        said = True
    if said or not prefix:  # else the directory above says that there is nothing in this one
        found.without += silent
    return said


def _look(directory: Path, name: str, depth: int, found: Found) -> bool:
    before = len(found.tasks)
    said = depth < DEPTH and _walk(directory, f"{name}/", depth + 1, found)
    if len(found.tasks) == before and (reason := near_cause(directory)):
        found.resembling[name] = reason
        return True
    return said


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # what cannot be looked into is no task, and is named as what it is
        return False


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _of_link(entry: os.DirEntry[str]) -> str | None:
    """Why a link that is no task looks like one or like several; None where it does not."""
    if not _is_directory(entry):
        return "it is a link that leads nowhere"
    target = Path(entry.path)
    try:
        several = any(is_task(below) for below in target.iterdir())
    except OSError:
        return None
    return (
        "it is a link to a directory of tasks, and such are not followed" if several else near_cause(target)
    )


def near_cause(directory: Path) -> str | None:
    """Why a directory that looks like a task is none; None where it does not look like one."""
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return None
    if TASK_FILE in names:
        return f"its {TASK_FILE} is no regular file"
    if old := [name for name in names if name in _OLD_TASK_FILES]:
        return f"it has {old[0]}, the form of Terminal-Bench 1; {TASK_FILE} is needed"
    near = [name for name in names if name.lower() == TASK_FILE or name.startswith(f"{TASK_FILE}.")]
    near += get_close_matches(
        TASK_FILE, [n for n in names if n.lower().endswith(("toml", "tml"))], cutoff=0.8
    )
    if near:
        return f"it has {near[0]}, but no {TASK_FILE}"
    parts = [part for part in _PARTS if part in names]
    if "instruction.md" in parts or len(parts) >= 2:
        return f"it has {', '.join(parts)}, but no {TASK_FILE}"
    return None
