"""Pulling images from a real registry: credentials, a registry that is busy, a mirror."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_engines import BUSYBOX, own_engine, use_engine, wait_for

from environments.config import HermesAgentEnvConfig
from environments.errors import NotSupported, SandboxError
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.docker import images
from environments.sandboxes.docker.address import Address
from environments.sandboxes.docker.backend import DockerBackend
from environments.sandboxes.docker.credentials import encode
from environments.sandboxes.docker.engine import Engine, EngineError

pytestmark = pytest.mark.integration

USER, PASSWORD = "tester", "let-me-in"
HASHED = "$2b$05$ZspBl5NIEpFeNvpqs/BFgeLj.wvy71hSePZztrT9S3Un/fmD6psoC"
"""The password as a registry keeps it."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def registry(directory: Path, *, password: bool) -> Iterator[int]:
    """A registry over the images in ``directory``; yields its port."""
    program = shutil.which("docker-registry") or pytest.skip("docker-registry is not installed")
    directory.mkdir(exist_ok=True)
    port = free_port()
    settings: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(directory / "images")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    if password:
        (directory / "users").write_text(f"{USER}:{HASHED}\n")
        settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(directory / "users")}}
    file = directory / f"registry-{port}.yml"
    file.write_text(json.dumps(settings))
    process = subprocess.Popen(
        [program, "serve", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: socket.create_connection(("127.0.0.1", port), 1).close())
        yield port
    finally:
        process.kill()
        process.wait()


class BusyFront:
    """Stands before a registry and turns away the first requests for an image."""

    def __init__(self, registry_port: int, turned_away: int) -> None:
        self.port = 0
        self.turned_away = turned_away
        self.refused = 0
        self._registry = f"http://127.0.0.1:{registry_port}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[BusyFront]:
        from aiohttp import ClientSession, web

        async with ClientSession(auto_decompress=False) as session:

            async def answer(request: web.Request) -> web.StreamResponse:
                if "/manifests/" in request.path and self.refused < self.turned_away:
                    self.refused += 1
                    error = {"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}
                    return web.json_response(error, status=429)
                async with session.request(
                    request.method, f"{self._registry}{request.path_qs}", headers=request.headers
                ) as found:
                    kept = {k: v for k, v in found.headers.items() if k.lower() != "transfer-encoding"}
                    return web.Response(status=found.status, headers=kept, body=await found.read())

            application = web.Application()
            application.router.add_route("*", "/{path:.*}", answer)
            runner = web.AppRunner(application)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            try:
                yield self
            finally:
                await runner.cleanup()


async def push(engine: Engine, image: str, repository: str) -> None:
    """Give an image another name and send it to the registry that the name says."""
    await engine.call("POST", f"/images/{image}/tag", query={"repo": repository, "tag": "1"})
    account = {"username": USER, "password": PASSWORD}
    async with engine.stream(
        "POST",
        f"/images/{repository}/push",
        query={"tag": "1"},
        headers={"X-Registry-Auth": encode(account)},
    ) as response:
        assert b'"error"' not in await response.read()
    await engine.call("DELETE", f"/images/{repository}:1")


def log_in(directory: Path, patch: pytest.MonkeyPatch, *registries: str) -> None:
    """Settings as `docker login` leaves them."""
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    content = {"auths": {name: {"auth": secret} for name in registries}}
    (directory / "config.json").write_text(json.dumps(content))
    patch.setenv("DOCKER_CONFIG", str(directory))


@contextlib.asynccontextmanager
async def a_backend(**settings: Any) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(HermesAgentEnvConfig(**settings), "registry")
    try:
        yield backend
    finally:
        await backend.close()


def test_a_private_image_is_pulled_with_the_users_credentials_when_the_registry_has_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    use_engine("docker", monkeypatch)
    monkeypatch.setattr(images, "_FIRST_PAUSE", 0.2)

    async def main(port: int) -> None:
        async with a_backend() as backend, BusyFront(port, turned_away=3).running() as front:
            await push(backend._engine, BUSYBOX, f"127.0.0.1:{port}/private/tool")
            name = f"127.0.0.1:{front.port}/private/tool:1"
            log_in(tmp_path, monkeypatch, f"127.0.0.1:{front.port}")
            sandboxes = await asyncio.gather(*(backend.create(SandboxSpec(image=name)) for _ in range(3)))
            assert front.refused == 3
            assert {(await sandbox.exec("echo up")).text for sandbox in sandboxes} == {"up\n"}
            assert sandboxes[0].info.image_digest.startswith("sha256:")
            assert "trying again" in caplog.text
            assert PASSWORD not in caplog.text
            for sandbox in sandboxes:
                await sandbox.close()
            await backend._engine.call("DELETE", f"/images/{name}")

    with registry(tmp_path / "registry", password=True) as port:
        asyncio.run(asyncio.wait_for(main(port), 110))


def test_without_credentials_or_for_a_registry_that_stays_busy_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_engine("docker", monkeypatch)
    monkeypatch.setattr(images, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(images, "_PULL_TRIES", 3)

    async def main(port: int) -> None:
        async with a_backend() as backend, BusyFront(port, turned_away=1000).running() as front:
            await push(backend._engine, BUSYBOX, f"127.0.0.1:{port}/private/tool")
            log_in(tmp_path, monkeypatch)
            with pytest.raises(NotSupported, match="docker login"):
                await backend.create(SandboxSpec(image=f"127.0.0.1:{port}/private/tool:1"))
            log_in(tmp_path, monkeypatch, f"127.0.0.1:{front.port}")
            with pytest.raises(SandboxError, match="private/tool") as caught:
                await backend.create(SandboxSpec(image=f"127.0.0.1:{front.port}/private/tool:1"))
            assert not caught.value.fatal
            assert front.refused >= 3

    with registry(tmp_path / "registry", password=True) as port:
        asyncio.run(asyncio.wait_for(main(port), 110))


def mirrored(port: int) -> tuple[str, str]:
    """Options of an engine whose mirror of Docker Hub is a registry of ours."""
    return f"--registry-mirror=http://127.0.0.1:{port}", "--storage-driver=vfs"


def test_an_engine_that_has_a_mirror_pulls_from_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_engine("docker", monkeypatch)

    async def main(port: int, address: Address) -> None:
        async with a_backend() as backend:
            await push(backend._engine, BUSYBOX, f"127.0.0.1:{port}/library/hermes-mirrored")
        engine = Engine(address)
        try:
            with pytest.raises(EngineError):
                await engine.call("GET", "/images/hermes-mirrored:1/json")
            found = await images.Images(engine).get("hermes-mirrored:1")
            assert found.digest.startswith("sha256:")
        finally:
            await engine.close()

    with (
        registry(tmp_path / "registry", password=False) as port,
        own_engine(tmp_path, *mirrored(port)) as address,
    ):
        asyncio.run(asyncio.wait_for(main(port, address), 100))
