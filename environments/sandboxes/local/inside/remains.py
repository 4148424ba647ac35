"""What a sandbox is outside its processes, a directory and control groups, and the removal of both.

The groups are named in a note in the directory, which goes last: whoever dies in the middle, or
cannot remove a group yet, leaves the note to the next who tries.
"""

from __future__ import annotations

import os

from .cgroups import remove_group
from .directories import empty_tree, remove_tree

_NOTE = "cgroups"


def note(directory: str) -> str:
    """The file that names the groups of the sandbox of this directory, one a line."""
    return os.path.join(directory, _NOTE)


def remove(directory: str, patience: float = 0.0) -> bool:
    """Kill what is in the groups, remove them, then the directory.

    False where a group stays after ``patience`` seconds: then the note stays too. ``OSError`` where
    something cannot be removed at all.
    """
    if [group for group in _noted(directory) if not remove_group(group, patience)]:
        empty_tree(directory, keep=_NOTE)
        return False
    remove_tree(directory)
    return True


def _noted(directory: str) -> list[str]:
    try:
        with open(note(directory), encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
