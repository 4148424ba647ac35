"""The process that guardians are forked from."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from environments.config import HermesAgentEnvConfig
from environments.errors import SandboxError
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.local.backend import LocalBackend

from .counting import count, new_duration


def run(body: Any) -> None:
    async def main() -> None:
        backend = LocalBackend(HermesAgentEnvConfig(), f"nursery{os.getpid()}")
        try:
            await body(backend)
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def nursery_of(backend: LocalBackend) -> int:
    process = backend._nursery._process
    assert process is not None
    return process.pid


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_it_is_one_for_all_reaps_all_and_goes_with_the_backend() -> None:
    pids: list[int] = []

    async def body(backend: LocalBackend) -> None:
        sandboxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(4)))
        pid = nursery_of(backend)
        pids.append(pid)
        assert len(children(pid)) == 4
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
        for _ in range(100):
            if not children(pid):
                break
            await asyncio.sleep(0.05)
        assert not children(pid)

    run(body)
    assert not Path(f"/proc/{pids[0]}").exists()


def test_it_holds_nothing_of_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_FRAMEWORK", "xyzzy")

    async def body(backend: LocalBackend) -> None:
        await backend.create(SandboxSpec())
        pid = nursery_of(backend)
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
        held = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
        # Its own three, its orders, and the one guardian.
        assert sorted(name.split(":")[0] for name in held if name != "/dev/null") in (
            ["anon_inode", "socket"],
            ["pidfd", "socket"],
        )

    run(body)


def test_its_death_harms_no_sandbox_and_another_takes_its_place() -> None:
    async def body(backend: LocalBackend) -> None:
        first = await backend.create(SandboxSpec())
        before = nursery_of(backend)
        os.kill(before, signal.SIGKILL)
        assert (await first.exec("echo on")).text == "on\n"
        second = None
        for _ in range(20):  # the very next may not know of it yet
            try:
                second = await backend.create(SandboxSpec())
                break
            except SandboxError:
                await asyncio.sleep(0.05)
        assert second is not None
        assert nursery_of(backend) != before
        assert (await second.exec("echo on")).text == "on\n"
        seconds = new_duration()
        await first.exec(f"(setsid sleep {seconds} >/dev/null 2>&1 &)")
        await first.close()
        assert count(seconds) == 0

    run(body)


def test_a_creation_that_is_given_up_leaves_nothing() -> None:
    async def body(backend: LocalBackend) -> None:
        await backend.check()
        for pause in (0.0, 0.001, 0.01, 0.03):
            making = asyncio.ensure_future(backend.create(SandboxSpec()))
            await asyncio.sleep(pause)
            making.cancel()
            await asyncio.wait({making})
            if not making.cancelled():  # it was quicker
                await making.result().close()
        pid = nursery_of(backend)
        for _ in range(100):
            if not children(pid):
                break
            await asyncio.sleep(0.05)
        assert not children(pid)

    run(body)
