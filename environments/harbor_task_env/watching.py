"""Whether tasks are still what was loaded: an attempt at one task must not be graded with another's tests."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from environments.errors import SandboxError
from environments.tasks.directory import digest_of
from environments.tasks.model import Task

Signature = tuple[tuple[str, int, int, int], ...]


class TaskChanged(SandboxError):
    """A task is no longer what the run was begun with. The next run takes it as another item."""

    lasting = True


class Watch:
    """Remembers what tasks look like on disk. Blocking; called in threads."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._seen = {task.name: _signature(task) for task in tasks}

    def problem(self, task: Task) -> str | None:
        """What has become of a task, None where it is the same."""
        if _signature(task) == self._seen[task.name]:
            return None
        try:
            if digest_of(task.directory) == task.digest:
                return None
            return f"{task.name} has changed since the run began; the next run rolls it out as it is then"
        except OSError as error:
            return f"{task.name} cannot be read any more: {error.filename}: {error.strerror}"


def _signature(task: Task) -> Signature:
    """Times and sizes of all files: far cheaper than what is in them."""
    found: list[tuple[str, int, int, int]] = []
    for parent, _, files in os.walk(task.directory):
        for name in files:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except OSError:
                continue
            found.append((str(path), status.st_mtime_ns, status.st_size, status.st_mode))
    return tuple(sorted(found))
