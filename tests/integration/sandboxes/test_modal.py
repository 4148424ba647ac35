"""Modal's real SDK: life cycle, faults, and what it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosted_faults import Provider, shared_fault_tests
from hosted_world import forget_clients, modal_server

from environments.errors import MissingExtra, SandboxBroken, SandboxError
from environments.sandboxes.base import NetworkPolicy, Resources, SandboxSpec
from environments.sandboxes.modal.backend import ModalBackend

pytestmark = pytest.mark.integration

globals().update(shared_fault_tests())


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Provider]:
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none.toml"))
    for server in modal_server(monkeypatch):
        yield Provider("modal", server, "MODAL_TOKEN_ID")


def test_what_modal_is_asked_for(provider: Provider) -> None:
    spec = SandboxSpec(
        image="debian:12",
        network=NetworkPolicy("allow-list", ("pypi.org", "10.0.0.0/8", "1.2.3.4")),
        resources=Resources(cpus=1.5, memory_mb=512, storage_mb=1000),
        lifetime=600,
    )

    async def body(backend: ModalBackend) -> None:
        sandbox = await backend.create(spec)
        record = provider.server.running()[0]
        asked = record.definition
        assert asked.timeout_secs == 600
        assert (asked.resources.milli_cpu, asked.resources.milli_cpu_max) == (1500, 1500)
        assert (asked.resources.memory_mb, asked.resources.memory_mb_max) == (512, 512)
        assert list(asked.network_access.allowed_cidrs) == ["10.0.0.0/8", "1.2.3.4/32"]
        assert list(asked.network_access.allowed_domains) == ["pypi.org"]
        assert record.tags["hermes-run"] == "test"
        assert sandbox.id == record.id
        assert sandbox.info.resources == {"cpus": 1.5, "memory_mb": 512.0}
        assert sandbox.info.image == "debian:12"
        assert any("disk" in text for text in sandbox.info.limitations)
        commands = [line for image in provider.server.images for line in image.dockerfile_commands]
        assert "FROM debian:12" in commands
        assert "ENTRYPOINT []" in commands

    provider.run(body)


def test_an_image_from_a_dockerfile(provider: Provider, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:12\nRUN echo made-here > /made\n")

    async def body(backend: ModalBackend) -> None:
        await asyncio.gather(*(backend.create(SandboxSpec(image=str(tmp_path))) for _ in range(2)))
        commands = [line for image in provider.server.images for line in image.dockerfile_commands]
        assert "RUN echo made-here > /made" in commands

    provider.run(body)


def test_a_cut_stream_goes_on_where_it_was(provider: Provider) -> None:
    async def body(backend: ModalBackend) -> None:
        sandbox = await backend.create(SandboxSpec())
        provider.server.faults.cut_streams = 3
        result = await sandbox.exec("seq 1 300000", output_limit=10_000_000)
        assert result.stdout == b"".join(b"%d\n" % number for number in range(1, 300_001))
        assert provider.server.faults.cut_streams == 0

    provider.run(body)


def test_the_lifetime_ends_a_sandbox(provider: Provider) -> None:
    async def body(backend: ModalBackend) -> None:
        sandbox = await backend.create(SandboxSpec(lifetime=2))
        with pytest.raises(SandboxError, match="lifetime"):
            await sandbox.exec("sleep 100")

    provider.run(body)


def test_a_sandbox_whose_first_process_died_was_broken_by_its_agent(provider: Provider) -> None:
    async def body(backend: ModalBackend) -> None:
        sandbox = await backend.create(SandboxSpec())
        running = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await asyncio.sleep(0.3)
        provider.server.end(provider.server.running()[0], "FAILURE", 1)
        with pytest.raises(SandboxBroken):
            await running

    provider.run(body)


@pytest.mark.parametrize("version", ["0", "1"])
def test_both_kinds_of_sandbox(provider: Provider, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_SANDBOX_V2", version)
    forget_clients()

    async def body(backend: ModalBackend) -> None:
        sandbox = await backend.create(SandboxSpec())
        assert (await sandbox.exec("cat", stdin=b"in")).stdout == b"in"
        used = "SandboxCreateV2" if version == "1" else "SandboxCreate"
        assert provider.server.calls[used] == 1

    provider.run(body)


def test_without_the_sdk_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"hermes-environments\[modal\]"):
        Provider("modal", None, "").make()


def test_a_creation_that_modal_lost_for_good_is_done_again(provider: Provider) -> None:
    async def body(backend: ModalBackend) -> None:
        from grpclib import Status

        provider.server.faults.loss = Status.ABORTED  # one that the SDK does not ask again after
        provider.server.faults.lost_creations = 1
        sandbox: Any = await backend.create(SandboxSpec())
        assert (await sandbox.exec("echo up")).text == "up\n"
        assert [record.id for record in provider.server.running()] == [sandbox.id]
        assert len(provider.server.sandboxes) == 2

    provider.run(body)
