"""What of a task its agent meets, as a hash: everything but what judges alone.

Two versions of a task with the same hash put an agent before the same work, and an attempt at one is an
attempt at the other; only how it is graded may differ.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict
from pathlib import Path

from environments.results.plain import content_hash
from environments.tasks.directory import digest_of
from environments.tasks.finding import TASK_FILE
from environments.tasks.model import Task

_VERIFIERS = re.compile(r"(?:steps\.\d+\.)?verifier\.")
"""Keys of ``task.toml`` that concern a verifier, as ``Task.unknown`` names them."""
_READ_ELSEWHERE = (TASK_FILE, "instruction.md")
_JUDGES = ("tests", "solution")


def task_view(task: Task, *, with_solution: bool) -> str:
    """A hash of a task's machine, limits, users, files and unknown keys; not of its tests, its
    ``[verifier]`` and its metadata. 16 hex digits.

    ``with_solution`` takes in the solution, which the oracle meets. Reads the files: run it in a thread.
    """
    steps = [
        {
            "name": step.name,
            "instruction": step.instruction,
            "timeout": step.agent_timeout,
            "user": step.agent_user,
            "healthcheck": step.healthcheck,
            "min_reward": step.min_reward,
        }
        for step in task.steps
    ]
    return content_hash(
        {
            "machine": asdict(task.machine),
            "steps": steps,
            "unknown": {key: value for key, value in task.unknown.items() if not _VERIFIERS.match(key)},
            "files": _files(task, with_solution),
            "solution_env": dict(task.solution_env) if with_solution else {},
        }
    )


def _files(task: Task, with_solution: bool) -> dict[str, str]:
    """A hash for each file and directory of a task and of its steps."""
    left_out = (*_READ_ELSEWHERE, *(_JUDGES[:1] if with_solution else _JUDGES))
    places = {"": task.directory} | {step.name: step.directory for step in task.steps if step.name}
    found: dict[str, str] = {}
    for name, place in places.items():
        skipped = left_out if name else (*left_out, "steps")
        entries = sorted(place.iterdir()) if place.is_dir() else []
        found |= {f"{name}/{path.name}": _hash(path) for path in entries if path.name not in skipped}
    return found


def _hash(path: Path) -> str:
    if path.is_dir():
        return digest_of(path)
    if not path.is_file():  # a pipe, a link that leads nowhere
        return "-"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
