"""Daytona's real SDK: life cycle, faults, and what it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosted_faults import Provider, shared_fault_tests
from hosted_world import daytona_server

from environments.errors import ConfigError, MissingExtra, SandboxBroken, SandboxError
from environments.sandboxes.base import NetworkPolicy, Resources, SandboxSpec
from environments.sandboxes.daytona.backend import DaytonaBackend

pytestmark = pytest.mark.integration

globals().update(shared_fault_tests())


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    for server in daytona_server(monkeypatch):
        yield Provider("daytona", server, "DAYTONA_API_KEY")


def test_what_daytona_is_asked_for(provider: Provider) -> None:
    spec = SandboxSpec(
        image="debian:12",
        network=NetworkPolicy("allow-list", ("pypi.org", "10.0.0.0/8", "1.2.3.4")),
        resources=Resources(cpus=1.5, memory_mb=1500, storage_mb=5000),
        lifetime=601,
    )

    async def body(backend: DaytonaBackend) -> None:
        sandbox = await backend.create(spec)
        asked = provider.server.running()[0].request
        assert (asked["autoStopInterval"], asked["ttlMinutes"], asked["autoDeleteInterval"]) == (11, 11, 0)
        assert (asked["cpu"], asked["memory"], asked["disk"]) == (2, 2, 5)
        assert asked["networkAllowList"] == "10.0.0.0/8,1.2.3.4/32"
        assert asked["domainAllowList"] == "pypi.org"
        assert asked["buildInfo"]["dockerfileContent"].startswith("FROM debian:12")
        assert asked["labels"]["hermes-run"] == "test"
        assert asked["target"] == "us"
        assert sandbox.info.resources == {"cpus": 2.0, "memory_mb": 2048.0, "storage_mb": 5120.0}

    provider.run(body)


def test_an_image_from_a_dockerfile(provider: Provider, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:12\nRUN echo made-here > /made\n")

    async def body(backend: DaytonaBackend) -> None:
        await backend.create(SandboxSpec(image=str(tmp_path)))
        build = provider.server.running()[0].request["buildInfo"]
        assert "RUN echo made-here > /made" in build["dockerfileContent"]

    provider.run(body)


def test_the_default_snapshot_has_its_own_size(provider: Provider) -> None:
    async def body(backend: DaytonaBackend) -> None:
        sandbox = await backend.create(SandboxSpec(resources=Resources(memory_mb=8192)))
        assert any("snapshot" in text for text in sandbox.info.limitations)
        assert sandbox.info.resources["memory_mb"] == 1024.0

    provider.run(body)


def test_a_cut_connection_is_an_error_and_kills_the_command(provider: Provider) -> None:
    async def body(backend: DaytonaBackend) -> None:
        sandbox = await backend.create(SandboxSpec())
        running = asyncio.ensure_future(sandbox.exec("setsid sleep 4455 & sleep 4455"))
        await asyncio.sleep(1)
        provider.server.cut_terminals(provider.server.running()[0])
        with pytest.raises(SandboxError, match="cut"):
            await running
        left = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[4]455'")
        assert left.text == "0\n"

    provider.run(body)


def test_a_sandbox_whose_daemon_died_was_broken_by_its_agent(provider: Provider) -> None:
    async def body(backend: DaytonaBackend) -> None:
        sandbox = await backend.create(SandboxSpec())
        running = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await asyncio.sleep(0.5)
        provider.server.end(provider.server.running()[0], "stopped")
        with pytest.raises(SandboxBroken):
            await running

    provider.run(body)


def test_a_server_that_is_not_there_is_told_before_the_run(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYTONA_API_URL", "http://127.0.0.1:9/api")

    async def main() -> None:
        backend = provider.make()
        with pytest.raises(ConfigError, match="does not answer"):
            await backend.check()
        await backend.close()

    asyncio.run(main())


def test_without_the_sdk_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"hermes-environments\[daytona\]"):
        Provider("daytona", None, "").make()
