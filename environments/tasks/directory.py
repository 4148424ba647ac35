"""Task directories on disk: one, or all below a directory."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from environments.errors import ConfigError
from environments.tasks.finding import TASK_FILE, Found, find_tasks, no_task
from environments.tasks.model import Step, Task
from environments.tasks.task_file import Settings, StepSettings, parse

_CHUNK = 1 << 20
_LARGEST_TEXT = 8 << 20
"""Bytes of a ``task.toml`` or an instruction; more is a mistake, and no model could read it."""
_FOLLOWED = ("instruction.md", "environment", "tests", "solution", "workdir")


@dataclass(slots=True)
class Loaded:
    """What is below a directory."""

    tasks: list[Task] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    """Tasks that cannot be read, and why."""
    found: Found = field(default_factory=Found)


def load_tasks_below(root: Path, *, inside: Path | None = None) -> Loaded:
    """All tasks below a directory, which may be links to tasks.

    A task's name is its path below ``root``, whatever stands beside it, and that of ``root`` where it is
    the task itself. ``inside`` is where all parts of a task must be. Raises ``ConfigError`` where there is
    no task, not even one that cannot be read.
    """
    found = find_tasks(root)
    loaded = Loaded(found=found)
    for path in found.tasks:
        alone = path == "."
        name = printable(root.resolve().name if alone else path)
        try:
            if name != (root.resolve().name if alone else path):
                raise ConfigError(f"{name}: its name is no UTF-8 text; rename it")
            loaded.tasks.append(load_task(root / path, name=name, inside=inside))
        except ConfigError as error:
            loaded.broken[name] = str(error)
    loaded.broken |= {printable(name): f"{name}: {text}" for name, text in found.unreadable.items()}
    if not found.tasks:
        raise no_task(root, found)
    return loaded


def printable(name: str) -> str:
    """A name on disk as text, bytes that are no UTF-8 as ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def load_task(directory: Path, *, name: str | None = None, inside: Path | None = None) -> Task:
    """One task; its name is the directory's unless given. ``inside`` is as for ``load_tasks_below``.

    Raises ``ConfigError``, also where a file of it cannot be read.
    """
    try:
        return _load(directory, name or directory.name, inside)
    except OSError as error:
        path = printable(error.filename or str(directory))
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except RuntimeError as error:  # links in a circle, and tables within tables without end
        raise ConfigError(f"{printable(str(directory))} cannot be read: {error}") from error


def _load(directory: Path, name: str, inside: Path | None) -> Task:
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
    """A hash of names, modes and contents of all files below a directory: 16 hex digits.

    Raises ``OSError`` where something cannot be read.
    """
    whole = hashlib.sha256()
    for parent, names, files in os.walk(directory, onerror=_raise):
        names.sort()
        for name in sorted(files):
            path = Path(parent, name)
            relative = path.relative_to(directory).as_posix()
            mode = path.lstat().st_mode
            whole.update(f"{relative}\0".encode("utf-8", "surrogateescape"))
            if stat.S_ISLNK(mode):
                whole.update(f"link {path.readlink()}\0".encode("utf-8", "surrogateescape"))
            elif stat.S_ISREG(mode):
                whole.update(b"x" if os.access(path, os.X_OK) else b"-")
                whole.update(_content_hash(path))
    return whole.hexdigest()[:16]


def _raise(error: OSError) -> None:
    raise error


def _content_hash(path: Path) -> bytes:
    content = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            content.update(chunk)
    return content.digest()
