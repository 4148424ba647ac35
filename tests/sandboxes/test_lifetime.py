"""A sandbox ends at its deadline, and that is nobody's doing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from environments.errors import SandboxBroken, SandboxError
from environments.sandboxes.base import SandboxSpec

from .conftest import World

LIFETIME = 8
"""Seconds; making a sandbox on a busy machine takes some of them."""


def test_the_lifetime_ends_a_sandbox(ending_world: World) -> None:
    async def main() -> None:
        async with ending_world.sandbox(SandboxSpec(lifetime=LIFETIME)) as sandbox, asyncio.timeout(90):
            with pytest.raises(SandboxError, match="lifetime") as caught:
                await sandbox.exec("sleep 100")
            assert not isinstance(caught.value, SandboxBroken)
            with pytest.raises(SandboxError, match="lifetime"):
                await sandbox.exec("true")
            with contextlib.suppress(SandboxError):  # which says why
                assert not await sandbox.alive()

    asyncio.run(main())


def test_what_runs_in_the_background_ends_with_it(ending_world: World) -> None:
    async def main() -> None:
        async with ending_world.sandbox(SandboxSpec(lifetime=LIFETIME)) as sandbox, asyncio.timeout(90):
            process = await sandbox.spawn("sleep 100")
            assert await process.wait() == 137

    asyncio.run(main())
