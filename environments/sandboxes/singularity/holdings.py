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
from environments.sandboxes.local.inside.processes import send_signal
from environments.sandboxes.singularity import process_table
from environments.sandboxes.singularity.ending import STOPPED_PATIENCE, signal_marked
from environments.sandboxes.singularity.engine import Engine, Instance
from environments.sandboxes.singularity.options import Features
from environments.sandboxes.singularity.run_directory import all_runs, dead_runs, tidy

logger = logging.getLogger(__name__)

_NOTE = "sandbox.json"
_MASTER_PATIENCE, _END_PATIENCE = 10.0, 15.0
_FAMILY = re.compile(r"-(7[0-9]{9})\Z")
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


def has_one(run: Path) -> bool:
    """Whether an instance of a run is to outlive it, or could not be ended. Blocking."""
    return any(run.glob(f"{run.name}-*"))


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
    running = await engine.instances(name)
    if not await asyncio.to_thread(_end_all_of, name, running[0] if running else None):
        return False
    try:
        await asyncio.to_thread(remove_tree, str(directory))
    except OSError as error:
        logger.warning("%s is left: %s", directory, error)
        return False
    return True


def is_master(pid: int, name: str) -> bool:
    """Whether a process is the engine's above the init of an instance."""
    return f"[{name}]" in process_table.command_line(pid)


def finish(name: str, master: int) -> bool:
    """Wait until nothing is left of an instance whose init was killed; whether it came to that. Blocking.

    What a command has stopped outside the instance goes on, and is killed where that does not help. The
    engine's process above init is killed last: it is the one that tidies up.
    """
    family = _FAMILY.search(name)
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < _END_PATIENCE:
        stopped = signal.SIGCONT if passed < STOPPED_PATIENCE else signal.SIGKILL
        left = signal_marked(family[1].encode(), stopped) if family else 0
        if is_master(master, name):
            send_signal(master, signal.SIGCONT if passed < _MASTER_PATIENCE else signal.SIGKILL)
        elif not left:
            return True
        time.sleep(0.05)
    logger.warning("%s cannot be ended: %d of its processes are left", name, left)
    return False


def _end_all_of(name: str, instance: Instance | None) -> bool:
    """End all processes of an instance that nobody uses, and remove its logs. False where some are left.

    Of an instance that the engine does not know any more, what served it may still be there. Blocking.
    """
    if instance is None:
        return finish(name, 0)
    master = process_table.parent_of(instance.pid)
    if is_master(master, name):  # else the number is another's by now
        send_signal(instance.pid, signal.SIGKILL)
    for path in instance.logs:
        Path(path).unlink(missing_ok=True)
    return finish(name, master)


def _reap_run(run: Path, running: list[Instance]) -> None:
    alive = {instance.name: instance for instance in running if instance.name.startswith(f"{run.name}-")}
    kept = set()
    for name in alive:
        note = Note.read(run / name)
        if note is not None and note.kept and note.deadline > time.time():
            kept.add(name)
    for name in (alive.keys() | {path.name for path in run.glob(f"{run.name}-*")}) - kept:
        if not _end_all_of(name, alive.get(name)):
            kept.add(name)  # for the next start
    leftover = [path for path in run.iterdir() if path.name not in kept] if kept else [run]
    for path in leftover:
        try:
            remove_tree(str(path)) if path.is_dir() else path.unlink()
        except OSError as error:
            logger.warning("%s is left of a dead run: %s", path, error)
