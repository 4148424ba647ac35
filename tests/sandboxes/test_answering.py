"""A sandbox that its agent has overwhelmed is judged all the same: no new draw for a fork bomb."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from environments.errors import SandboxBroken
from environments.sandboxes.answering import ensure_answer
from environments.sandboxes.base import ExecResult, Resources, SandboxSpec
from tests.tools.plain_sandbox import PlainSandbox

from .conftest import World

BOMB = "nohup setsid bash -c 'b() { b | b & }; b; sleep 600' > /dev/null 2>&1 & sleep 2"


def test_what_keeps_every_command_from_starting_is_ended(isolated_world: World) -> None:
    async def main() -> None:
        async with isolated_world.backend() as backend, asyncio.timeout(200):
            spec = SandboxSpec(resources=Resources(processes=64))
            sandbox = await backend.create(spec)
            await sandbox.exec(BOMB, timeout=20)
            await ensure_answer(sandbox)
            await sandbox.kill_all()
            assert (await sandbox.exec("echo alive")).text == "alive\n"
            await sandbox.close()

    asyncio.run(main())


class Overwhelmed(PlainSandbox):
    """Says that nothing can be started, until its processes were ended; with ``broken`` also then."""

    broken = False
    ended = 0

    async def alive(self) -> bool:
        return self.ended > 0 and not self.broken

    async def kill_all(self) -> None:
        self.ended += 1

    async def exec(self, *arguments: Any, **settings: Any) -> ExecResult:
        return ExecResult(exit_code=126, stdout=b"", stderr=b"cannot fork", duration=0.0)


def test_a_sandbox_in_which_nothing_runs_any_more_was_broken_by_its_agent(tmp_path: Path) -> None:
    sandbox = Overwhelmed(tmp_path)
    asyncio.run(ensure_answer(sandbox))
    assert sandbox.ended == 1
    sandbox.broken = True
    with pytest.raises(SandboxBroken, match="cannot fork"):
        asyncio.run(ensure_answer(sandbox))
