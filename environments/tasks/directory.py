"""Task directories on disk: one, or all below a directory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from environments.errors import ConfigError
from environments.tasks.model import Step, Task
from environments.tasks.task_file import Settings, StepSettings, parse

TASK_FILE = "task.toml"
_DEPTH = 4
_CHUNK = 1 << 20


def is_task(directory: Path) -> bool:
    """Whether a directory is a task."""
    return (directory / TASK_FILE).is_file()


def find_tasks(root: Path) -> list[Path]:
    """Task directories at ``root`` or below, sorted; nothing is looked for inside a task."""
    if is_task(root):
        return [root]
    found: list[Path] = []
    level = [root]
    for _ in range(_DEPTH):
        below: list[Path] = []
        for directory in level:
            for entry in sorted(directory.iterdir()):
                if entry.name.startswith(".") or not entry.is_dir() or entry.is_symlink():
                    continue
                (found if is_task(entry) else below).append(entry)
        level = below
    return sorted(found)


def load_tasks_below(root: Path) -> list[Task]:
    """All tasks below a directory. Raises ``ConfigError`` for a broken one, and where there is none."""
    paths = find_tasks(root)
    if not paths:
        raise ConfigError(f"{root} holds no task: no directory below it has a {TASK_FILE}")
    tasks = [load_task(path) for path in paths]
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):  # the same name in two folders
        tasks = [load_task(path, name=str(path.relative_to(root))) for path in paths]
    return tasks


def load_task(directory: Path, *, name: str | None = None) -> Task:
    """One task; its name is the directory's unless given. Raises ``ConfigError``."""
    directory = directory.resolve()
    file = directory / TASK_FILE
    try:
        settings = parse(file.read_text("utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return Task(
        name=name or directory.name,
        directory=directory,
        steps=_steps(directory, settings),
        machine=settings.machine,
        metadata=settings.metadata,
        solution_env=settings.solution_env,
        reward_strategy=settings.reward_strategy,
        schema_version=settings.schema_version,
        unknown=settings.unknown,
        digest=digest_of(directory),
    )


def _steps(directory: Path, settings: Settings) -> tuple[Step, ...]:
    if settings.steps:
        return tuple(_step(directory, step, settings) for step in settings.steps)
    return (
        Step(
            name="",
            directory=directory,
            instruction=_instruction(directory),
            agent_timeout=settings.agent_timeout,
            agent_user=settings.agent_user,
            verifier=settings.verifier,
            artifacts=settings.artifacts,
        ),
    )


def _step(directory: Path, step: StepSettings, settings: Settings) -> Step:
    own = directory / "steps" / step.name
    return Step(
        name=step.name,
        directory=own,
        instruction=_instruction(own),
        agent_timeout=settings.agent_timeout if step.agent_timeout is None else step.agent_timeout,
        agent_user=step.agent_user or settings.agent_user,
        verifier=step.verifier,
        min_reward=step.min_reward,
        healthcheck=step.healthcheck,
        artifacts=step.artifacts,
        shared_tests=directory / "tests",
    )


def _instruction(directory: Path) -> str:
    """The instruction, empty where there is none: ``check`` says so, and running the task refuses."""
    try:
        return (directory / "instruction.md").read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{directory / 'instruction.md'} cannot be read: {error}") from error


def digest_of(directory: Path) -> str:
    """A hash of names, modes and contents of all files below a directory: 16 hex digits."""
    whole = hashlib.sha256()
    for parent, names, files in os.walk(directory):
        names.sort()
        for name in sorted(files):
            path = Path(parent, name)
            relative = path.relative_to(directory).as_posix()
            whole.update(f"{relative}\0".encode("utf-8", "surrogateescape"))
            if path.is_symlink():
                whole.update(f"link {path.readlink()}\0".encode("utf-8", "surrogateescape"))
            elif path.is_file():
                whole.update(b"x" if os.access(path, os.X_OK) else b"-")
                whole.update(_content_hash(path))
    return whole.hexdigest()[:16]


def _content_hash(path: Path) -> bytes:
    content = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            content.update(chunk)
    return content.digest()
