"""Memory, processes and lifetime are bounded, with control groups and without."""

from __future__ import annotations

import pytest

from environments.sandboxes.base import Resources, SandboxSpec
from environments.sandboxes.local.sandbox import LocalSandbox

from .conftest import World
from .counting import count, new_duration

HOG = "/usr/bin/python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20) + b\"1\")'"


@pytest.fixture(params=["control groups", "without"])
def control_groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the guardian may use control groups: it looks for them in a process of its own."""
    wanted = request.param == "control groups"
    if not wanted:
        from environments.sandboxes.local import nursery

        switch_off = "import inside.cgroups as c; c._CONTROLLERS = (); "
        monkeypatch.setattr(
            nursery, "_BOOT", nursery._BOOT.replace("from inside", switch_off + "from inside", 1)
        )
    return wanted


def test_a_memory_hog_is_killed_and_the_sandbox_lives(world: World, control_groups: bool) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(HOG, timeout=60)
        assert not result.timed_out
        assert result.exit_code != 0
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    world.run(body, SandboxSpec(resources=Resources(memory_mb=128)))


def test_many_small_hogs_are_bounded_together(world: World, control_groups: bool) -> None:
    small = "/usr/bin/python3 -c 'import time; x = b\"1\" * (40 << 20); time.sleep(30)'"

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(f"for i in 1 2 3 4 5 6; do {small} & done; wait -n; echo $?", timeout=60)
        assert not result.timed_out
        assert result.text.strip() in ("137", "1")

    world.run(body, SandboxSpec(resources=Resources(memory_mb=128)))


def test_a_fork_bomb_is_contained(world: World, control_groups: bool) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        seconds = new_duration()
        await sandbox.exec(f"while true; do sleep {seconds} & done 2>/dev/null & sleep 2", timeout=30)
        running = count(seconds)
        assert running <= 400
        result = await sandbox.exec("echo still", timeout=30)
        assert result.exit_code in (0, 1, 126, 128 + 9, 254)
        await sandbox.kill_all()
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    world.run(body, SandboxSpec(resources=Resources(processes=60, memory_mb=1024)))


def test_a_bomb_that_outruns_its_killer_is_killed(world: World, control_groups: bool) -> None:
    bomb = "f() { f | f & f | f & }; f"

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(f"{bomb}; sleep 100", timeout=1.5)
        assert result.timed_out or result.killed_by == 9  # by the time-out or by the watchdog
        await sandbox.kill_all()
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    world.run(body, SandboxSpec(resources=Resources(processes=100)))


def test_limits_are_reported(strongest_world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        assert sandbox.info.resources["memory_mb"] == 256
        assert sandbox.info.resources["processes"] == 77

    strongest_world.run(body, sandbox_memory_mb=256, sandbox_processes=77)
