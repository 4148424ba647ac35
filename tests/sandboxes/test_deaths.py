"""Whose doing it is that a sandbox no longer works: the agent's, or nobody's in the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from environments.errors import SandboxBroken, SandboxError, SandboxReleased
from environments.sandboxes.base import Backend, Sandbox, SandboxSpec

from .conftest import World


@contextlib.asynccontextmanager
async def busy(world: World) -> AsyncIterator[tuple[Backend, Sandbox, asyncio.Future[object]]]:
    """A sandbox in which a command runs."""
    async with world.backend(sandbox_memory_mb=256) as backend, asyncio.timeout(100):
        sandbox = await backend.create(world.spec(SandboxSpec()))
        running = asyncio.ensure_future(sandbox.exec("sleep 300"))
        await asyncio.sleep(1)
        try:
            yield backend, sandbox, running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await sandbox.close()
        with pytest.raises(SandboxReleased):
            await sandbox.exec("true")


def test_a_sandbox_that_dies_under_a_command_was_broken_by_it(world: World) -> None:
    async def main() -> None:
        async with busy(world) as (backend, sandbox, running):
            await world.destroy(backend, sandbox)
            with pytest.raises(SandboxBroken):
                await (running if world.kills_commands else sandbox.exec("true"))
            with pytest.raises(SandboxBroken):
                await sandbox.exec("true")
            with contextlib.suppress(SandboxBroken):
                assert not await sandbox.alive()

    asyncio.run(main())


def test_an_engine_that_is_gone_is_no_fault_of_the_agent(world: World) -> None:
    async def main() -> None:
        async with world.backend() as backend, asyncio.timeout(100):
            sandbox = await backend.create(world.spec(SandboxSpec()))
            with contextlib.suppress(SandboxError):  # that it is gone, is all it says
                await world.lose(backend, sandbox)
            with pytest.raises(SandboxError) as caught:
                await sandbox.exec("true", timeout=60)
            assert not isinstance(caught.value, SandboxBroken | SandboxReleased)
            await sandbox.close()

    asyncio.run(main())
