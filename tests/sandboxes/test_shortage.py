"""A machine that has no room for another process: waited for, and never taken for the agent's doing."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import ProcessShortage
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.local import shortage
from environments.sandboxes.local.backend import LocalBackend
from environments.sandboxes.local.sandbox import LocalSandbox

from .conftest import World

_PIDS = Path("/sys/fs/cgroup/pids")


class Machine:
    """Bounds this process, and all that it starts, as a machine or a container would."""

    def __init__(self, group: Path) -> None:
        self._group = group

    def leave_room_for(self, processes: int) -> None:
        current = int((self._group / "pids.current").read_text())
        (self._group / "pids.max").write_text(str(current + processes))

    def leave_room(self) -> None:
        (self._group / "pids.max").write_text("max")


@pytest.fixture
def machine() -> Iterator[Machine]:
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = next((path for _, kind, path in lines if kind == "pids"), None)
    if own is None or not os.access(_PIDS / own.lstrip("/") / "cgroup.procs", os.W_OK):
        pytest.skip("the number of processes cannot be bounded here")
    group = _PIDS / own.lstrip("/") / f"hermes-machine-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield Machine(group)
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def test_everything_comes_right_when_there_is_little_room(world: World, machine: Machine) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        machine.leave_room_for(6)

        async def command(number: int) -> None:
            result = await sandbox.exec("exec cat", stdin=b"x" * 100_000)
            assert (result.exit_code, result.stdout) == (0, b"x" * 100_000), result

        async def file(number: int) -> None:
            path, data = f"{sandbox.home}/{number}", os.urandom(200_000)
            await sandbox.write_bytes(path, data)
            assert await sandbox.read_bytes(path) == data

        async def background(number: int) -> None:
            process = await sandbox.spawn("exec sleep 0.1")
            assert await process.wait(60) == 0

        kinds = (command, file, background)
        await asyncio.gather(*(kinds[number % 3](number) for number in range(24)))
        machine.leave_room()

    world.run(body)


def test_without_any_room_the_machine_is_blamed(
    world: World, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortage, "_PATIENCE", 0.5)

    async def body(sandbox: LocalSandbox) -> None:
        assert (await sandbox.exec("exit 3")).exit_code == 3
        machine.leave_room_for(0)
        for refused in (
            sandbox.exec("echo a"),
            sandbox.spawn("true"),
            sandbox.write_bytes(f"{sandbox.home}/large", bytes(200_000)),
        ):
            with contextlib.suppress(ProcessShortage):  # where it needed none
                await refused
        machine.leave_room()
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    world.run(body)


def test_a_crowded_machine_is_no_reason_for_less_isolation(
    strongest_world: World, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortage, "_PATIENCE", 0.5)

    async def main() -> None:
        before = len([*Path("/proc/self/fd").iterdir()])
        async with World("auto").backend() as backend:
            await asyncio.to_thread(int)  # the framework's own thread is there already
            machine.leave_room_for(2)
            with pytest.raises(ProcessShortage):
                await backend.check()
            machine.leave_room()
            await backend.check()
            assert backend.isolation == strongest_world.rung
        assert len([*Path("/proc/self/fd").iterdir()]) <= before

    asyncio.run(main())


def test_sandboxes_wait_for_room(strongest_world: World, machine: Machine) -> None:
    async def main() -> None:
        async with strongest_world.backend(sandbox_creation_concurrency=8) as backend:
            await backend.check()
            machine.leave_room_for(12)

            async def use(backend: LocalBackend) -> None:
                sandbox = await backend.create(SandboxSpec())
                assert (await sandbox.exec("exec echo here")).text == "here\n"
                await sandbox.close()

            await asyncio.gather(*(use(backend) for _ in range(8)))
            machine.leave_room()

    asyncio.run(asyncio.wait_for(main(), 100))
