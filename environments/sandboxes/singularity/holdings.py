"""Instances of any run: what is noted of each in its directory, and finding, reaping and ending them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from environments.sandboxes import owner
from environments.sandboxes.base import SandboxEntry
from environments.sandboxes.local.inside.directories import remove_tree
from environments.sandboxes.singularity import process_table
from environments.sandboxes.singularity.engine import Engine, Instance
from environments.sandboxes.singularity.options import Features
from environments.sandboxes.singularity.run_directory import all_runs, dead_runs, tidy

logger = logging.getLogger(__name__)

_NOTE = "sandbox.json"
_RUN = re.compile(r"\Ahermes-(.*)-[0-9a-f]{8}\Z")


@dataclass(slots=True)
class Note:
    """What another process has to know of an instance; times are Unix times."""

    family: str
    features: dict[str, bool]
    working_directory: str | None
    network: str
    made: float
    deadline: float
    process: int
    began: str
    world: str
    kept: bool = False

    @classmethod
    def of(
        cls, family: str, features: Features, working_directory: str | None, network: str, lifetime: float
    ) -> Note:
        """A note on an instance that this process makes now."""
        now, process = time.time(), os.getpid()
        known = (family, asdict(features), working_directory, network, now, now + lifetime)
        return cls(*known, process, owner.started(process), owner.world())

    def write(self, directory: Path) -> None:
        """Write it into the instance's directory, whole or not at all."""
        new = directory / f"{_NOTE}.new"
        new.write_text(json.dumps(asdict(self)))
        new.replace(directory / _NOTE)

    @classmethod
    def read(cls, directory: Path) -> Note | None:
        """The note of an instance; None where there is none, or of another version."""
        try:
            return cls(**json.loads((directory / _NOTE).read_text()))
        except (OSError, ValueError, TypeError):
            return None


def entries(running: Iterable[Instance]) -> list[SandboxEntry]:
    """Every instance of this user that a run of ours made, and what ended ones have left. Blocking."""
    alive = {instance.name: instance for instance in running}
    return [
        _entry(directory, alive.get(directory.name))
        for run in all_runs()
        for directory in sorted(run.glob(f"{run.name}-*"))
    ]


def _entry(directory: Path, instance: Instance | None) -> SandboxEntry:
    note, run = Note.read(directory), _RUN.match(directory.parent.name)
    known: dict[str, Any] = {"backend": "singularity", "id": directory.name, "handle": str(directory)}
    known["run"] = run[1] if run else ""
    if note is None:
        return SandboxEntry(**known)
    same_world = note.world == owner.world()
    return SandboxEntry(
        **known,
        owner=f"process {note.process}",
        owner_alive=owner.is_alive(str(note.process), note.began, same_world=same_world) and bool(instance),
        created_at=note.made,
        deadline=note.deadline,
        kept=note.kept and instance is not None,
    )


def keeps_one(run: Path) -> bool:
    """Whether an instance of a run is to outlive it. Blocking."""
    notes = map(Note.read, run.glob(f"{run.name}-*"))
    return any(note is not None and note.kept for note in notes)


async def reap(engine: Engine) -> None:
    """Kill the instances of dead runs, and remove their files; but not those that were kept."""
    dead = await asyncio.to_thread(dead_runs)
    if dead:
        running = await engine.instances()
        for run in dead:
            await asyncio.to_thread(_reap_run, run, running)
        await asyncio.to_thread(tidy)


async def end(engine: Engine, name: str, directory: Path) -> bool:
    """Kill an instance, whoever uses it, and remove its files. False where they cannot be removed."""
    for instance in await engine.instances(name):
        await asyncio.to_thread(kill_instance, instance)
    try:
        await asyncio.to_thread(remove_tree, str(directory))
    except OSError as error:
        logger.warning("%s is left: %s", directory, error)
        return False
    return True


def kill_instance(instance: Instance) -> None:
    """Kill an instance that nobody uses, wait for its end, remove its logs. Blocking."""
    master = process_table.parent_of(instance.pid)
    if f"[{instance.name}]" in process_table.command_line(master):  # else the number is another's by now
        os.kill(instance.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10.0
        while process_table.command_line(master) and time.monotonic() < deadline:
            time.sleep(0.01)
    for path in instance.logs:
        Path(path).unlink(missing_ok=True)


def _reap_run(run: Path, running: list[Instance]) -> None:
    alive = {instance.name: instance for instance in running if instance.name.startswith(f"{run.name}-")}
    kept = set()
    for name in alive:
        note = Note.read(run / name)
        if note is not None and note.kept and note.deadline > time.time():
            kept.add(name)
    for name in alive.keys() - kept:
        kill_instance(alive[name])
    leftover = [path for path in run.iterdir() if path.name not in kept] if kept else [run]
    for path in leftover:
        try:
            remove_tree(str(path)) if path.is_dir() else path.unlink()
        except OSError as error:
            logger.warning("%s is left of a dead run: %s", path, error)
