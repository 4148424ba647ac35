"""The real machines that the tests of this directory use, named by environment variables.

``HERMES_TEST_SSH``: ``[user@]host[:port][?key=FILE&known_hosts=FILE]``.
``HERMES_TEST_SINGULARITY_IMAGE``: a SIF file, a directory, or a reference that can be pulled here.

The suite of ``tests/sandboxes`` runs on each of them, by ``suite``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from sandboxes.counting import new_duration

from environments.config import HermesAgentEnvConfig
from environments.errors import SandboxError
from environments.sandboxes.base import Backend, NetworkPolicy, SandboxSpec
from environments.sandboxes.registry import create_backend
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox

MODULES = (
    *(
        "test_arguments",
        "test_attacks",
        "test_commands",
        "test_conformance",
        "test_deaths",
        "test_files",
        "test_lifetime",
        "test_network",
    ),
    *("test_processes", "test_shell", "test_transfer"),
)
RUN_ID = f"test{os.getpid()}"
"""Other runs on the machine must not share it, or they would end each other's sandboxes."""

SECONDS = new_duration()
"""How long the processes sleep that a test of this run counts."""

KINDS = ("strongest_world", "isolated_world", "rooted_world", "filtering_world", "ending_world")
"""The worlds that tests ask for, besides ``world``."""


def ssh_settings() -> dict[str, Any]:
    """Settings of the ssh backend; skips where there is no machine to test on."""
    text = os.environ.get("HERMES_TEST_SSH")
    if not text:
        pytest.skip(
            "HERMES_TEST_SSH names no machine to test on: [user@]host[:port][?key=FILE&known_hosts=FILE]"
        )
    address, _, query = text.partition("?")
    options = {f"ssh_{name}": values[-1] for name, values in parse_qs(query).items()}
    return {"ssh_host": address, "sandbox_network": "public", **options}


def singularity_settings() -> dict[str, Any]:
    """Settings of the singularity backend; skips where there is no image to test with."""
    image = os.environ.get("HERMES_TEST_SINGULARITY_IMAGE")
    if not image:
        pytest.skip("HERMES_TEST_SINGULARITY_IMAGE names no image to test with")
    return {"singularity_image": image}


STARVE_INIT = (
    "echo 1000 >/proc/1/oom_score_adj; for i in 1 2 3 4 5 6 7 8; do "
    "(head -c 64000000 /dev/zero | tail -c 64000000 | sleep 5) & done; wait"
)
"""Uses up at most 512 MB, of which the kernel makes the container's first process pay."""


class RealWorld:
    """Makes sandboxes of one backend, with the interface of the worlds of ``tests/sandboxes``."""

    def __init__(
        self, name: str, settings: dict[str, Any], rung: str = "none", *, server: Any = None
    ) -> None:
        """``server`` is what a hosted backend's SDK talks to."""
        self.name = name
        self.rung = rung
        self.settings = settings
        self.server = server
        self.kills_commands = name != "ssh"

    def make(self, run_id: str = RUN_ID, **settings: Any) -> Backend:
        return create_backend(self.name, HermesAgentEnvConfig(**{**self.settings, **settings}), run_id)

    def spec(self, spec: SandboxSpec | None = None) -> SandboxSpec:
        spec = spec or SandboxSpec()
        return replace(spec, network=NetworkPolicy("public")) if self.name == "ssh" else spec

    async def destroy(self, backend: Any, sandbox: Any) -> None:
        """Let the sandbox die as it does by what a command of the agent did."""
        if self.name == "docker":
            with contextlib.suppress(SandboxError):
                await sandbox.exec(STARVE_INIT, timeout=60)
        elif self.name == "singularity":
            os.kill(sandbox._machine._instance.pid, signal.SIGKILL)
        elif self.name == "ssh":
            await sandbox.exec("rm -rf $(dirname ~)", cwd="/")
        elif self.name == "modal":
            self.server.end(self.server.running()[0], "FAILURE", 1)
        else:
            self.server.end(self.server.running()[0], "stopped")

    async def lose(self, backend: Any, sandbox: Any) -> None:
        """Let the engine be gone, which no command of the agent can bring about."""
        if self.name == "docker":
            backend._engine.address = replace(backend._engine.address, path="/nowhere/engine.sock")
            await backend._engine.close()
            await backend._engine.call("GET", "/_ping")
        elif self.name == "singularity":
            os.kill(sandbox._machine._instance.pid, signal.SIGKILL)
            await asyncio.sleep(0.5)
        elif self.name == "ssh":
            host = backend._host
            for link in list(host._connections._connections):
                link.connection.abort()
            options = host._connections.options
            host._connections.options = replace(options, target=replace(options.target, port=1))
        else:
            self.server.end(self.server.running()[0])

    @asynccontextmanager
    async def backend(self, **settings: Any) -> AsyncIterator[Backend]:
        backend = self.make(**settings)
        try:
            yield backend
        finally:
            await backend.close()

    @asynccontextmanager
    async def sandbox(self, spec: SandboxSpec | None = None, **settings: Any) -> AsyncIterator[RemoteSandbox]:
        async with self.backend(**settings) as backend:
            sandbox = await backend.create(self.spec(spec))
            yield sandbox
            await sandbox.close()

    def run(
        self,
        body: Callable[[RemoteSandbox], Awaitable[None]],
        spec: SandboxSpec | None = None,
        **settings: Any,
    ) -> None:
        """Run ``body`` on a new sandbox."""

        async def main() -> None:
            async with self.sandbox(spec, **settings) as sandbox:
                await body(sandbox)

        asyncio.run(asyncio.wait_for(main(), 110))


def suite(
    *, modules: Sequence[str] = MODULES, without: Mapping[str, str] = {}, unfit: Mapping[str, str] = {}
) -> dict[str, Any]:
    """The tests of ``tests/sandboxes`` and their fixtures, to be put into a module with a ``world``.

    ``without``: tests that the backend's nature forbids, ``unfit``: kinds of world that it is not; each
    with the reason, by which it is skipped.
    """
    tests = str(Path(__file__).parents[2])
    if tests not in sys.path:
        sys.path.insert(0, tests)
    found: dict[str, Any] = {}
    for name in (*(f"sandboxes.{name}" for name in modules), "heavy_cases"):
        module = importlib.import_module(name)
        for key, value in vars(module).items():
            if _is_test_of_a_world(key, value) or type(value).__name__ == "FixtureFunctionDefinition":
                found[key] = _skipped(without[key]) if key in without else value
    return found | {kind: _world_of(kind, unfit.get(kind)) for kind in KINDS}


def _is_test_of_a_world(name: str, value: Any) -> bool:
    """Whether it is a test that runs on whatever backend it is given."""
    if not name.startswith("test_") or not callable(value):
        return False
    return not {"world", *KINDS}.isdisjoint(inspect.signature(value).parameters)


def _skipped(reason: str) -> Callable[[], None]:
    def test() -> None:
        pytest.skip(reason)

    return test


def _world_of(kind: str, reason: str | None) -> Any:
    def fixture(world: RealWorld) -> RealWorld:
        return world if reason is None else pytest.skip(reason)

    return pytest.fixture(name=kind)(fixture)


def killed_run(
    name: str, settings: dict[str, Any], count: int, *, seconds: int = 34977, run_id: str = "dead"
) -> None:
    """Make ``count`` sandboxes in a process of its own, and kill that process.

    In each of them three processes sleep for ``seconds``.
    """
    script = Path(__file__).with_name("dead_run.py")
    killed_python("ready", str(script), name, json.dumps(settings), str(count), str(seconds), run_id)


def killed_python(last_words: str, *arguments: str) -> None:
    """Have a Python of its own do something with the project, and kill it once it has printed a line."""
    run = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == f"{last_words}\n"
    finally:
        run.kill()
        run.communicate()


def living(arguments: str) -> int:
    """How many processes of the host have exactly these arguments."""
    table = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True)
    lines = [line.split(None, 1) for line in table.stdout.splitlines()]
    return sum(1 for state, args in lines if not state.startswith("Z") and args == arguments)
