"""An agent that stops what serves its instance, outside of it as well: a group of processes spans both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from real_backends import RealWorld, killed_python, singularity_settings

from environments.errors import SandboxBroken
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox
from environments.sandboxes.singularity.engine import Engine
from environments.sandboxes.singularity.instance import InstanceMachine
from environments.sandboxes.singularity.program_process import ProgramProcess

pytestmark = pytest.mark.integration

STOP_PARENT = "kill -STOP $PPID; sleep 300"
STOP_ALL = "while :; do kill -STOP -1; done"


@pytest.fixture
def world() -> RealWorld:
    return RealWorld("singularity", singularity_settings())


@pytest.fixture
def run_id() -> str:
    return f"stop{secrets.token_hex(4)}"


def left_of(run_id: str) -> list[str]:
    """What is left of a run: processes inside and outside its instances, entries, files, mounts."""
    name = f"hermes-{run_id}-"
    base = Path(tempfile.gettempdir()) / f"hermes-singularity-{os.geteuid()}"
    left = [str(path) for path in base.glob(f"{name}*")]
    left += [line for line in Path("/proc/mounts").read_text().splitlines() if name in line]
    listed = [Engine.find().path, "instance", "list", "--json"]
    found = json.loads(subprocess.run(listed, capture_output=True, text=True, check=True).stdout)
    left += [entry["instance"] for entry in found["instances"] or [] if name in entry["instance"]]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if name.encode() in told:
            left.append(f"process {process.name}")
    return left


def enders() -> set[str]:
    """Processes that end instances at their deadlines, of ours and of dead runs."""
    asked = ["ps", "-eo", "pid,ppid,args"]
    table = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    found = [line.split()[:2] for line in table.splitlines() if line.endswith("singularity/ending.py")]
    return {pid for pid, parent in found if parent in ("1", str(os.getpid()))}


def ended_but(before: set[str]) -> bool:
    """Whether there comes a time at which none is left but those of before."""
    deadline = time.monotonic() + 20.0
    while not enders() <= before:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return True


def stays(run_id: str, *, files: bool = True) -> list[str]:
    """What is still left of a run after it was given some time to go; ``files`` of it included."""
    deadline = time.monotonic() + 20.0
    while (
        left := [part for part in left_of(run_id) if files or not part.startswith("/")]
    ) and time.monotonic() < deadline:
        time.sleep(0.3)
    return left


async def lasts(awaited: Awaitable[object]) -> float:
    """Seconds that something takes that may find the sandbox broken."""
    begun = time.monotonic()
    with contextlib.suppress(SandboxBroken):
        await awaited
    return time.monotonic() - begun


async def stop_parents(sandbox: RemoteSandbox) -> None:
    """Have two of the engine's processes outside be stopped by commands that go on inside."""
    for _ in range(2):
        await sandbox.spawn(STOP_PARENT)
    await asyncio.sleep(1.0)


def test_nothing_is_left_of_a_run_whose_agents_stopped_what_served_them(
    world: RealWorld, run_id: str
) -> None:
    before = enders()

    async def main() -> None:
        async with asyncio.timeout(100):
            backend = world.make(run_id)
            sandbox = await backend.create(SandboxSpec())
            assert await lasts(sandbox.exec(STOP_PARENT, timeout=2)) < 10
            await stop_parents(sandbox)
            assert (await sandbox.exec("echo on", timeout=30)).text == "on\n"
            await stop_parents(await backend.create(SandboxSpec()))
            begun = time.monotonic()
            await backend.close()
            assert time.monotonic() - begun < 30

    asyncio.run(main())
    assert left_of(run_id) == []
    assert ended_but(before)


def test_every_operation_ends_while_all_is_stopped_again_and_again(world: RealWorld, run_id: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(110):
            backend = world.make(run_id)
            sandbox = await backend.create(SandboxSpec())
            await sandbox.spawn(STOP_ALL)
            await asyncio.sleep(1.0)
            assert await lasts(sandbox.exec("echo", timeout=5)) < 20
            assert await lasts(sandbox.write_bytes("/tmp/file", b"x" * 1_000_000)) < 20
            assert await lasts(sandbox.list("/")) < 20
            with pytest.raises(SandboxBroken, match="again and again"):
                while True:
                    await sandbox.exec("sleep 1", timeout=5)
            running = asyncio.ensure_future(sandbox.read_bytes("/etc/passwd"))
            await asyncio.sleep(1.0)
            running.cancel()
            begun = time.monotonic()
            await asyncio.wait({running})
            assert time.monotonic() - begun < 10
            await sandbox.kill_all()
            assert (await sandbox.exec("echo on")).text == "on\n"
            await sandbox.spawn(STOP_ALL)
            await backend.close()

    asyncio.run(main())
    assert left_of(run_id) == []


async def _start_next(world: RealWorld) -> None:
    backend = world.make("next")
    await backend.check()
    await backend.close()


async def _reap(world: RealWorld) -> None:
    backend = world.make("next")
    await backend.reap()
    await backend.close()


async def _wait_for_the_deadline(world: RealWorld) -> None:
    """Nobody does anything: the deadline of each instance is kept by itself, its files by the next start."""
    await asyncio.sleep(8.0)


@pytest.mark.parametrize("ending", [_start_next, _reap, _wait_for_the_deadline])
def test_nothing_is_left_of_a_killed_run_whose_agents_stopped_what_served_them(
    world: RealWorld, run_id: str, ending: Callable[[RealWorld], Awaitable[None]]
) -> None:
    before = enders()
    lifetime = 8 if ending is _wait_for_the_deadline else 600
    killed_python("ready", "-c", _RUN, json.dumps(world.settings), run_id, str(lifetime))
    assert left_of(run_id)

    async def main() -> None:
        async with asyncio.timeout(80):
            await ending(world)
            if ending is _wait_for_the_deadline:
                assert await asyncio.to_thread(stays, run_id, files=False) == []
                await _start_next(world)

    asyncio.run(main())
    assert stays(run_id) == []
    assert ended_but(before)


_RUN = f"""
import asyncio, json, sys
from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.registry import create_backend

async def main():
    settings, run_id, lifetime = sys.argv[1:]
    backend = create_backend("singularity", HermesAgentEnvConfig(**json.loads(settings)), run_id)
    sandboxes = [await backend.create(SandboxSpec(lifetime=float(lifetime))) for _ in range(2)]
    for sandbox in sandboxes:
        for _ in range(2):
            await sandbox.spawn({STOP_PARENT!r})
    await sandboxes[1].spawn({STOP_ALL!r})
    await asyncio.sleep(1.0)
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_ending_a_command_moves_no_process_of_the_host(world: RealWorld, run_id: str) -> None:
    """Who joins an instance puts his parent into its control groups: by then that must not be another."""
    before = Path("/proc/1/cgroup").read_text()

    def joining(child: ProgramProcess) -> bool:
        try:
            return bool(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())
        except OSError:
            return True

    async def main() -> None:
        backend = world.make(run_id)
        sandbox = await backend.create(SandboxSpec())
        machine = sandbox._machine
        assert isinstance(machine, InstanceMachine)
        for _ in range(30):
            child = machine._start(["/bin/sh", "-c", "sleep 60"])
            while child.running and not joining(child):
                pass
            child.kill()
            await child.over()
        await backend.close()

    asyncio.run(main())
    assert Path("/proc/1/cgroup").read_text() == before
