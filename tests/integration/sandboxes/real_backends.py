"""The real machines that the tests of this directory use, named by environment variables.

``HERMES_TEST_SSH``: ``[user@]host[:port][?key=FILE&known_hosts=FILE]``.
``HERMES_TEST_SINGULARITY_IMAGE``: a SIF file, a directory, or a reference that can be pulled here.

The suite of ``tests/sandboxes`` runs on each of them, by ``shared_tests``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import Backend, NetworkPolicy, SandboxSpec
from environments.sandboxes.registry import create_backend
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox

MODULES = (
    *("test_commands", "test_files", "test_lifetime", "test_network", "test_processes", "test_shell"),
    "test_transfer",
)


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


class RealWorld:
    """Makes sandboxes of one backend, with the interface of the worlds of ``tests/sandboxes``."""

    def __init__(self, name: str, settings: dict[str, Any], rung: str = "none") -> None:
        self.name = name
        self.rung = rung
        self.settings = settings

    def make(self, run_id: str = "test", **settings: Any) -> Backend:
        return create_backend(self.name, HermesAgentEnvConfig(**{**self.settings, **settings}), run_id)

    def spec(self, spec: SandboxSpec | None = None) -> SandboxSpec:
        spec = spec or SandboxSpec()
        return replace(spec, network=NetworkPolicy("public")) if self.name == "ssh" else spec

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


def shared_tests(*, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The tests of ``tests/sandboxes`` and their fixtures, to be put into a module with a ``world``."""
    tests = str(Path(__file__).parents[2])
    if tests not in sys.path:
        sys.path.insert(0, tests)
    found: dict[str, Any] = {}
    for name in MODULES:
        module = importlib.import_module(f"sandboxes.{name}")
        for key, value in vars(module).items():
            is_test = key.startswith("test_") and callable(value)
            if (is_test and key not in without) or type(value).__name__ == "FixtureFunctionDefinition":
                found[key] = value
    return found


def killed_run(name: str, settings: dict[str, Any], count: int) -> None:
    """Make ``count`` sandboxes in a process of its own, and kill that process."""
    script = Path(__file__).with_name("dead_run.py")
    run = subprocess.Popen(
        [sys.executable, str(script), name, json.dumps(settings), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
    finally:
        run.kill()
        run.communicate()


def living(arguments: str) -> int:
    """How many processes of the host have exactly these arguments."""
    table = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True)
    lines = [line.split(None, 1) for line in table.stdout.splitlines()]
    return sum(1 for state, args in lines if not state.startswith("Z") and args == arguments)
