"""Removing what a sandbox left on disk, however deep or read-only; nothing may run in it any more."""

from __future__ import annotations

import os
import stat


def remove_tree(top: str) -> None:
    """Remove a directory and all below it; links are removed, never followed.

    Every directory found is first moved to the top, so neither recursion nor path length limits
    how deep the tree may be. What others remove meanwhile is no error.
    """
    empty_tree(top)
    _remove_empty(top)


def empty_tree(top: str, keep: str | None = None) -> None:
    """As ``remove_tree``, but the directory itself stays, with its entry ``keep`` where it has one."""
    try:
        _unlock(top)
    except FileNotFoundError:
        return
    counter = 0
    todo = [top]
    while todo:
        directory = todo.pop()
        for path in _entries(directory):
            if directory == top and os.path.basename(path) == keep:
                continue
            try:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    os.unlink(path)
                    continue
                _unlock(path)
                counter += 1
                moved = os.path.join(top, f".removed-{os.getpid()}-{counter}")
                os.rename(path, moved)
                todo.append(moved)
            except FileNotFoundError:
                continue
        if directory != top:
            _remove_empty(directory)


def _unlock(directory: str) -> None:
    """Make a directory ours to empty. Root needs no permission, and must not be lured through a link."""
    if os.geteuid() != 0:
        os.chmod(directory, 0o700)


def _entries(directory: str) -> list[str]:
    try:
        return [os.path.join(directory, name) for name in os.listdir(directory)]
    except FileNotFoundError:
        return []


def _remove_empty(directory: str) -> None:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return
