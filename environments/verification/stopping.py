"""Ending what the agent left running, except the services that a task asks for."""

from __future__ import annotations

from dataclasses import dataclass, field

from environments.sandboxes.base import Sandbox
from environments.tasks.model import Keep
from environments.verification.process_table import LISTING, ProcessTable, parse_listing

_TIMEOUT = 60.0
_ROUNDS = 20
_DOCKER = "docker"
"""Backend whose first process is the framework's, with a session that nothing else can join."""

_SHARED_PROCESS_TABLES = ("none", "landlock")
"""Isolations in which processes of others are visible, which are none of our business."""


@dataclass(slots=True)
class Stopped:
    """What was ended and what lives on, as ``number name``. ``note`` says what could not be done."""

    killed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    note: str = ""


async def stop(sandbox: Sandbox, keep: Keep) -> Stopped:
    """End the agent's processes. Raises ``SandboxError`` where that fails.

    Where nothing is kept the backend does it, from outside if it can. Where services are kept the others
    are frozen until none is left that was not, so that nothing escapes by forking, and then killed.
    """
    if keep == "all":
        return Stopped(note="nothing was stopped")
    if sandbox.info.isolation.split()[0] in _SHARED_PROCESS_TABLES:
        await sandbox.kill_all()
        return Stopped(note=f"services cannot be told apart with {sandbox.info.isolation} isolation")
    table = await _look(sandbox)
    if table.own and not table.living():
        return Stopped()
    served = table.served_by() if keep == "listeners" else set()
    if not served:
        killed = _named(table, table.living())
        await sandbox.kill_all()
        return Stopped(killed)
    return await _stop_others(sandbox, table)


async def _stop_others(sandbox: Sandbox, table: ProcessTable) -> Stopped:
    for _ in range(_ROUNDS):
        doomed = table.living() - table.served_by()
        if doomed <= table.stopped:
            break
        await _signal(sandbox, "STOP", doomed - table.stopped)
        table = await _look(sandbox)
    if table.own and not table.living():
        return Stopped()
    served = table.served_by()
    doomed = table.living() - served
    await _signal(sandbox, "KILL", doomed)
    return Stopped(_named(table, doomed), _named(table, served))


async def _look(sandbox: Sandbox) -> ProcessTable:
    result = await sandbox.exec(["/bin/sh", "-c", LISTING], cwd="/", timeout=_TIMEOUT, output_limit=8 << 20)
    return parse_listing(result.text, first_session_is_ours=sandbox.info.backend == _DOCKER)


async def _signal(sandbox: Sandbox, name: str, processes: set[int]) -> None:
    """The shell's own ``kill``: no program of the sandbox is needed."""
    if processes:
        numbers = " ".join(map(str, sorted(processes)))
        script = f"for p in {numbers}; do kill -{name} $p 2>/dev/null; done; :"
        await sandbox.exec(["/bin/sh", "-c", script], cwd="/", timeout=_TIMEOUT)


def _named(table: ProcessTable, processes: set[int]) -> list[str]:
    return [f"{pid} {table.names.get(pid, '')}" for pid in sorted(processes)]
