"""What outlives a run and what does not, alike on every backend.

A sandbox that was kept can be found, joined and removed by others; of a run that was killed nothing is
left once the next has started: no sandbox, process, mount, directory or control group.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_engines import IMAGE, use_engine
from hosted_world import daytona_server, modal_server
from real_backends import RealWorld, killed_python, killed_run, singularity_settings, ssh_settings

from environments.errors import SandboxReleased
from environments.sandboxes.base import Backend, SandboxEntry, SandboxSpec

sys.path.insert(0, str(Path(__file__).parents[2]))
from sandboxes.counting import count, new_duration

pytestmark = pytest.mark.integration

BACKENDS = ("local", "docker", "podman", "ssh", "singularity", "modal", "daytona")
SANDBOXES = 64


@pytest.fixture(params=BACKENDS)
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealWorld]:
    name: str = request.param
    if name in ("docker", "podman"):
        use_engine(name, monkeypatch)
        yield RealWorld("docker", {"docker_image": IMAGE})
    elif name in ("modal", "daytona"):
        for _ in (modal_server if name == "modal" else daytona_server)(monkeypatch):
            yield RealWorld(name, {})
    elif name == "ssh":
        yield RealWorld(name, ssh_settings())
    else:
        yield RealWorld(name, singularity_settings() if name == "singularity" else {})


@pytest.fixture
def run_id() -> str:
    """A run that no other test, nor another run of this one, has on a shared machine."""
    return f"life{secrets.token_hex(4)}"


async def entries_of(backend: Backend, run_id: str) -> list[SandboxEntry]:
    return [entry for entry in await backend.survey() if entry.run == run_id]


def test_a_kept_sandbox_outlives_its_run_and_others_do_not(world: RealWorld, run_id: str) -> None:
    seconds = new_duration()

    async def main() -> None:
        run, other, next_run = world.make(run_id), world.make("other"), world.make("next")
        sandbox, second = [await run.create(world.spec(SandboxSpec(lifetime=600))) for _ in range(2)]
        await sandbox.exec("echo mine >note")
        await sandbox.exec(f"(setsid sleep {seconds} >/dev/null 2>&1 &)")
        both = await entries_of(other, run_id)
        assert {entry.id for entry in both} == {sandbox.id, second.id}
        assert all(entry.owner_alive and not entry.abandoned and not entry.kept for entry in both)

        until = await sandbox.keep(300)
        assert time.time() + 200 < until < time.time() + 700
        with pytest.raises(SandboxReleased):
            await sandbox.exec("true")
        await run.close()
        await next_run.check()
        (kept,) = await entries_of(other, run_id)
        assert (kept.id, kept.kept, kept.abandoned) == (sandbox.id, True, False)
        assert kept.deadline == pytest.approx(until, abs=10)

        joined = await other.attach(kept)
        assert (await joined.exec("cat note")).text == "mine\n"
        assert count(seconds) == 1
        terminal = await joined.spawn("test -t 0 && echo terminal; exit 3", pty=True)
        assert await terminal.wait(30) == 3
        assert b"terminal" in await terminal.read()
        await joined.detach()
        assert [entry.id for entry in await entries_of(other, run_id)] == [sandbox.id]
        assert await other.remove([kept]) == []
        assert await entries_of(other, run_id) == []
        assert count(seconds) == 0
        await other.close()
        await next_run.close()

    asyncio.run(asyncio.wait_for(main(), 110))


def test_a_kept_sandbox_outlives_the_death_of_its_run_but_not_its_deadline(
    world: RealWorld, run_id: str
) -> None:
    seconds = new_duration()
    killed_python("kept", "-c", _KEEPER, world.name, json.dumps(world.settings), run_id, str(seconds))

    async def main() -> None:
        backend = world.make("next")
        await backend.check()
        (kept,) = await entries_of(backend, run_id)
        assert kept.kept
        assert count(seconds) == 1
        assert kept.deadline is not None
        await asyncio.sleep(max(0.0, kept.deadline - time.time()) + 8.0)  # over SSH one looks every 5 s
        await backend.reap()
        assert await entries_of(backend, run_id) == []
        assert count(seconds) == 0
        await backend.close()

    asyncio.run(asyncio.wait_for(main(), 110))


_KEEPER = """
import asyncio, json, sys
from dataclasses import replace
from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import NetworkPolicy, SandboxSpec
from environments.sandboxes.registry import create_backend

async def main():
    name, settings, run_id, seconds = sys.argv[1:]
    backend = create_backend(name, HermesAgentEnvConfig(**json.loads(settings)), run_id)
    network = NetworkPolicy("public" if name == "ssh" else "none")
    sandbox, other = [await backend.create(SandboxSpec(lifetime=25, network=network)) for _ in range(2)]
    await sandbox.exec(f"(setsid sleep {seconds} >/dev/null 2>&1 &)")
    await other.exec(f"(setsid sleep {seconds} >/dev/null 2>&1 &)")
    await sandbox.keep(20)
    print("kept", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_nothing_is_left_of_a_killed_run_once_the_next_has_started(world: RealWorld, run_id: str) -> None:
    seconds = new_duration()
    killed_run(world.name, world.settings, SANDBOXES, seconds=seconds, run_id=run_id)

    async def main() -> list[SandboxEntry]:
        backend = world.make("next")
        await backend.check()
        left = await entries_of(backend, run_id)
        await backend.close()
        return left

    assert asyncio.run(asyncio.wait_for(main(), 200)) == []
    assert count(seconds) == 0
    assert traces_of(run_id) == []


def traces_of(run_id: str) -> list[str]:
    """Mounts, directories, control groups and processes of this machine that bear a run's name."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if run_id in line]
    paths = [str(path) for path in Path(tempfile.gettempdir()).glob("hermes-*/*") if run_id in path.name]
    for directory, names, _ in os.walk("/sys/fs/cgroup"):  # which passes over what goes meanwhile
        paths += [f"{directory}/{name}" for name in names if run_id in name]
    commands = subprocess.run(["ps", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True)
    processes = [line for line in commands.stdout.splitlines() if run_id in line and " Z" not in line]
    return mounts + paths + processes


def test_a_run_that_ends_leaves_nothing(world: RealWorld, run_id: str) -> None:
    seconds = new_duration()

    async def main() -> None:
        backend: Any = world.make(run_id)
        for sandbox in [await backend.create(world.spec()) for _ in range(4)]:
            await sandbox.exec(f"(setsid sleep {seconds} >/dev/null 2>&1 &)")
        await backend.close()

    asyncio.run(asyncio.wait_for(main(), 110))
    assert count(seconds) == 0
    assert traces_of(run_id) == []
