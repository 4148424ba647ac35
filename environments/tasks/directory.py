"""Task directories on disk: one, or all below a directory."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from environments.errors import ConfigError
from environments.tasks.model import Step, Task
from environments.tasks.task_file import Settings, StepSettings, parse

TASK_FILE = "task.toml"
_DEPTH = 4
_CHUNK = 1 << 20
_LARGEST_TEXT = 8 << 20
"""Bytes of a ``task.toml`` or an instruction; more is a mistake, and no model could read it."""
_FOLLOWED = ("instruction.md", "environment", "tests", "solution", "workdir")
_MOST_SHOWN = 20


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
                if entry.name.startswith(".") or not entry.is_dir():
                    continue
                if is_task(entry):
                    found.append(entry)
                elif not entry.is_symlink():  # which may lead in a circle
                    below.append(entry)
        level = below
    return sorted(found)


def load_tasks_below(
    root: Path, *, broken: dict[str, str] | None = None, inside: Path | None = None
) -> list[Task]:
    """All tasks below a directory, which may be links to tasks.

    A task that cannot be read is noted in ``broken`` with the reason; without it ``ConfigError`` names all
    of them. It is raised as well where there is no task. ``inside`` is where all parts of a task must be.
    """
    paths = find_tasks(root)
    if not paths:
        raise ConfigError(f"{root} holds no task: no directory below it has a {TASK_FILE}")
    names = [path.name for path in paths]
    if len(set(names)) < len(names):  # the same name in two folders
        names = [path.relative_to(root).as_posix() for path in paths]
    tasks: list[Task] = []
    failed: dict[str, str] = {}
    for path, name in zip(paths, names, strict=True):
        try:
            tasks.append(load_task(path, name=None if path == root else name, inside=inside))
        except ConfigError as error:
            failed[name] = str(error)
    if broken is not None:
        broken |= failed
    elif failed:
        shown = list(failed.values())
        more = f"\nand {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
        raise ConfigError("\n".join(shown[:_MOST_SHOWN]) + more)
    return tasks


def load_task(directory: Path, *, name: str | None = None, inside: Path | None = None) -> Task:
    """One task; its name is the directory's unless given. ``inside`` is as for ``load_tasks_below``.

    Raises ``ConfigError``.
    """
    name = name or directory.name
    directory = directory.resolve()
    file = directory / TASK_FILE
    if inside is not None:
        _check_inside(directory, inside.resolve())
    text = _text_of(file)
    if text is None:
        raise ConfigError(f"{directory} is no task: it has no {TASK_FILE}")
    settings = parse(text, str(file))
    return Task(
        name=name or directory.name,  # of "." there is no name before it is resolved
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
    return (_text_of(directory / "instruction.md") or "").strip()


def _text_of(path: Path) -> str | None:
    """A small text file; None where there is none. A pipe, whose writer may never come, is not waited for."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is no regular file")
        if status.st_size > _LARGEST_TEXT:
            raise ConfigError(f"{path} has {status.st_size} bytes; at most {_LARGEST_TEXT} make sense")
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is no UTF-8 text: byte {error.start} is {error.object[error.start]:#x}"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def _check_inside(directory: Path, root: Path) -> None:
    """Refuse a stranger's task whose parts are links to what is on this machine."""
    whole = [directory, *(directory / "steps").glob("*")]
    for path in [directory / TASK_FILE, *(part / name for part in whole for name in ("", *_FOLLOWED))]:
        if not path.resolve().is_relative_to(root):
            raise ConfigError(f"{path} is a link that leads out of {root.name}")


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
