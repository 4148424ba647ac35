"""The container engines that the tests use, named by environment variables.

``HERMES_TEST_DOCKER_HOST``, ``HERMES_TEST_PODMAN_HOST``: as ``DOCKER_HOST``, for instance
``unix:///var/run/docker.sock``. ``HERMES_TEST_DOCKER_IMAGE``: an image with bash and python3 that both
hold (default ``sandbox/debian``). ``HERMES_TEST_BUSYBOX_IMAGE``: one with BusyBox only.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from real_backends import RUN_ID, RealWorld

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.docker.address import Address
from environments.sandboxes.docker.backend import DockerBackend
from environments.sandboxes.docker.sandbox import DockerSandbox

IMAGE = os.environ.get("HERMES_TEST_DOCKER_IMAGE", "sandbox/debian")
BUSYBOX = os.environ.get("HERMES_TEST_BUSYBOX_IMAGE", "sandbox/busybox")

VARIABLES = {"docker": "HERMES_TEST_DOCKER_HOST", "podman": "HERMES_TEST_PODMAN_HOST"}


def use_engine(name: str, patch: pytest.MonkeyPatch) -> str:
    """Let ``DOCKER_HOST`` name a real engine; skips where there is none."""
    variable = VARIABLES[name]
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no {name} engine to test on")
    patch.setenv("DOCKER_HOST", os.environ[variable])
    return os.environ[variable]


def wait_for(attempt: Callable[[], object]) -> None:
    """Try until a server answers."""
    for _ in range(600):
        try:
            attempt()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("a server did not start")


def answers(path: str) -> bool:
    """Whether the engine at a socket has started wholly: it listens before that."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(path)
            client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in client.recv(100)
    except OSError:
        return False


def start_engine(directory: Path, sockets: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a Docker engine and wait until it answers. One that gives up (its containerd has 15 s to
    start, which a busy machine may not keep) is started again; the last one's log is shown."""
    log = directory / "dockerd.log"
    places = {"data-root": directory / "data", "exec-root": sockets / "run", "pidfile": directory / "pid"}
    command = ["dockerd", "--iptables=false", f"--host=unix://{sockets / 'd.sock'}"]
    command += [f"--{name}={path}" for name, path in places.items()]
    for _ in range(3):
        with log.open("wb") as output:
            process = subprocess.Popen([*command, *options], stdout=output, stderr=output)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if answers(str(sockets / "d.sock")):
                return process
            time.sleep(0.1)
        process.kill()
        process.wait()
    raise AssertionError("dockerd did not start:\n" + log.read_text(errors="replace")[-3000:])


@contextmanager
def own_engine(directory: Path, *options: str) -> Iterator[Address]:
    """A Docker engine of a test's own, with its data below ``directory``."""
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("an engine of its own needs root and dockerd")
    # The directory of a test may be too long for the path of a socket, of which containerd has some.
    with tempfile.TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as sockets:
        process = start_engine(directory, Path(sockets), *options)
        try:
            yield Address(path=f"{sockets}/d.sock")
        finally:
            process.terminate()
            process.wait(60)


class EngineWorld(RealWorld):
    """Makes sandboxes of one image."""

    def __init__(self, image: str = IMAGE) -> None:
        super().__init__("docker", {"docker_image": image})

    def make(self, run_id: str = RUN_ID, **settings: Any) -> DockerBackend:
        return DockerBackend(HermesAgentEnvConfig(**{**self.settings, **settings}), run_id)

    def spec(self, spec: SandboxSpec | None = None) -> SandboxSpec:
        spec = spec or SandboxSpec()
        return spec if spec.working_directory else replace(spec, working_directory="~/place")

    @asynccontextmanager
    async def docker(self, spec: SandboxSpec | None = None, **settings: Any) -> AsyncIterator[DockerSandbox]:
        """A sandbox on a backend of its own."""
        backend = self.make(**settings)
        try:
            yield await backend.create(spec or SandboxSpec())
        finally:
            await backend.close()
