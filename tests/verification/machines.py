"""Local sandboxes to grade in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from environments.config import HermesAgentEnvConfig
from environments.errors import NotSupported
from environments.sandboxes.base import Sandbox, SandboxSpec
from environments.sandboxes.local.backend import LocalBackend


@asynccontextmanager
async def fresh() -> AsyncIterator[Sandbox]:
    """One local sandbox with a file system and a process table of its own."""
    backend = LocalBackend(HermesAgentEnvConfig(), f"grade{os.getpid()}")
    try:
        try:
            await backend.check()
        except NotSupported as error:
            pytest.skip(str(error))
        if backend.isolation not in ("namespaces", "bubblewrap"):
            pytest.skip(f"/tests needs a file system of its own; here is {backend.isolation} isolation")
        yield await backend.create(SandboxSpec())
    finally:
        await backend.close()


def in_sandbox(body: Callable[[Sandbox], Awaitable[None]]) -> None:
    """Run ``body`` on a new sandbox."""

    async def main() -> None:
        async with fresh() as sandbox:
            await body(sandbox)

    asyncio.run(asyncio.wait_for(main(), 100))
