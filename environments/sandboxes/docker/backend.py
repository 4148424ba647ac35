"""The backend: one engine, its images, and the containers of one run."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from environments.errors import ImageUnusable, NotSupported, SandboxError
from environments.records import SandboxInfo
from environments.sandboxes.base import Backend, Capabilities, SandboxEntry, SandboxSpec
from environments.sandboxes.docker import files, ownership, scripts
from environments.sandboxes.docker.address import find_address
from environments.sandboxes.docker.commands import Commands
from environments.sandboxes.docker.containers import (
    Container,
    find_containers,
    make_container,
    our_containers,
    remove_container,
)
from environments.sandboxes.docker.engine import Engine, EngineError
from environments.sandboxes.docker.execution import NotStarted
from environments.sandboxes.docker.guard import Guard
from environments.sandboxes.docker.images import Image, Images
from environments.sandboxes.docker.request import DEFAULT_PROCESSES, Limits, container_body, limits_of
from environments.sandboxes.docker.sandbox import DockerSandbox, resolve
from environments.sandboxes.docker.way_out import open_way_out
from environments.sandboxes.egress import egress

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

logger = logging.getLogger(__name__)

SCRATCH = "/tmp/.hermes"

_REMOVALS_AT_ONCE = 8


class DockerBackend(Backend):
    """Sandboxes as containers of the engine that ``DOCKER_HOST`` or Docker's settings name."""

    name = "docker"
    capabilities = Capabilities(
        images=True,
        network_modes=frozenset({"none", "public", "allow-list"}),
        resources=frozenset({"cpus", "memory_mb", "processes", "gpus"}),
        gpu=True,
        users=True,
    )

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        self._config = config
        self._run_id = run_id or f"run-{secrets.token_hex(4)}"
        self._default_image = config.docker_image or os.environ.get("TERMINAL_DOCKER_IMAGE")
        self._engine = Engine(find_address())
        self._images = Images(self._engine)
        self._creating = asyncio.Semaphore(config.sandbox_creation_concurrency)
        self._sandboxes: dict[str, DockerSandbox] = {}
        self._engine_has = {"storage"}
        self._has_asked = False
        """Whether the engine was asked for a container, whatever became of it."""
        self._host: dict[str, Any] | None = None

    async def check(self) -> None:
        """Reach the engine, and remove what runs that are dead left on it. Raises ``SandboxError``."""
        try:
            self._host = await self._engine.call("GET", "/info")
        except EngineError as error:
            failure = SandboxError(str(error))
            failure.fatal = True
            raise failure from error
        await self.reap()
        if self._default_image is not None:
            await self._images.get(self._default_image)

    async def survey(self) -> list[SandboxEntry]:
        """Every container of ours on this engine."""
        return [ownership.entry_of(container) for container in await our_containers(self._engine)]

    async def remove(self, entries: Sequence[SandboxEntry]) -> list[SandboxEntry]:
        """Remove containers of any run; those that are left."""
        return await self._remove(entries)

    async def attach(self, entry: SandboxEntry) -> DockerSandbox:
        """Join a container that another process made."""
        lifetime = (entry.deadline or time.time()) - time.time()
        container = Container(self._engine, entry.handle, lifetime)
        described = await container.inspect()
        config = described["Config"]
        spec = SandboxSpec(
            image=config.get("Image"), working_directory=config["Labels"].get(ownership.DIRECTORY) or None
        )
        guard = Guard(self._engine, container.id, DEFAULT_PROCESSES, SCRATCH)
        user = config["Labels"].get(ownership.USER, config.get("User") or "")
        commands = Commands(self._engine, container, guard, user)
        image = Image(described["Image"], None, user, config.get("WorkingDir") or "")
        try:
            home, directory = await self._look_around(container, commands, guard, spec, image)
        except BaseException:  # cancelled, too: what was begun is ended
            await commands.close()
            raise
        network = described["HostConfig"].get("NetworkMode", "")
        info = SandboxInfo(self.name, "container", "none" if network == "none" else "public", entry.id)
        return DockerSandbox(container, commands, info, home, directory, SCRATCH, self._forget)

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """Make a container from the task's image, ready for commands."""
        egress.check(spec.network)
        name = spec.image or self._default_image
        if name is None:
            raise NotSupported(
                "the task names no image for the docker backend: set --env.docker_image, or use "
                "--env.terminal_backend local"
            )
        image = await self._images.get(name)
        async with self._creating:
            return await self._create(replace(spec, image=name), image)

    async def close(self) -> None:
        """Remove what the run still holds, unconfirmed containers included."""
        await self._images.close()
        try:
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes.values())))
            if self._has_asked:
                found = await find_containers(self._engine, f"{ownership.RUN}={self._run_id}")
                entries = map(ownership.entry_of, found)
                await self._remove([entry for entry in entries if not entry.kept])
        except EngineError as error:
            logger.warning("containers of this run may be left; the next run removes them: %s", error)
        finally:
            await self._engine.close()

    # -- making one -----------------------------------------------------------------------------

    async def _create(self, spec: SandboxSpec, image: Image) -> DockerSandbox:
        host = await self._host_description()
        limits = limits_of(spec, self._config, host)
        identity = f"{self._run_id}-{secrets.token_hex(6)}"
        body = container_body(
            spec, image, limits, self._run_id, identity, with_storage="storage" in self._engine_has
        )
        name = f"{ownership.NAME}{identity}"
        self._has_asked = True
        try:
            container = await make_container(
                self._engine, name, body, spec.lifetime, engine_has=self._engine_has
            )
        except EngineError as error:
            raise _creation_error(error, spec) from error
        try:
            return await self._prepare(container, spec, image, limits, name)
        except BaseException:  # cancelled, too: no container is left
            await asyncio.shield(container.remove())
            raise

    async def _prepare(
        self, container: Container, spec: SandboxSpec, image: Image, limits: Limits, name: str
    ) -> DockerSandbox:
        guard = Guard(self._engine, container.id, limits.processes, SCRATCH)
        commands = Commands(self._engine, container, guard, image.user)
        proxy = None
        try:
            proxy = await open_way_out(container, spec.network)
            home, directory = await self._look_around(container, commands, guard, spec, image)
        except BaseException:  # cancelled, too: what was begun is ended
            await commands.close()
            if proxy is not None:
                await proxy.close()
            raise
        info = SandboxInfo(
            backend=self.name,
            isolation="container",
            network=spec.network.mode,
            id=name,
            resources=limits.in_force(storage="storage" in self._engine_has),
            image=spec.image,
            image_digest=image.digest,
            limitations=[
                *limits.limitations(storage="storage" in self._engine_has),
                *egress.limitations(spec.network),
            ],
        )
        sandbox = DockerSandbox(container, commands, info, home, directory, SCRATCH, self._forget, proxy)
        self._sandboxes[name] = sandbox
        return sandbox

    async def _look_around(
        self, container: Container, commands: Commands, guard: Guard, spec: SandboxSpec, image: Image
    ) -> tuple[str, str]:
        """Home and working directory of the default user; both exist afterwards, and so does scratch."""
        try:
            _, probe = await asyncio.gather(guard.start(), commands.program(scripts.PROBE))
        except (NotStarted, TimeoutError) as error:
            raise ImageUnusable(
                f"the image {spec.image} cannot be used as a sandbox, it needs /bin/sh and sleep: {error}"
            ) from error
        files.check(files.Outcome(0 if probe.stdout.count(b"\0") == 2 else 1, b"", probe.stderr), "sandbox")
        home, current, tar = probe.stdout.decode("utf-8", "surrogateescape").split("\0")
        container.has_tar = bool(tar)
        if spec.working_directory is None:
            return home or "/", current
        directory = resolve(spec.working_directory, home or "/", current)
        prepare = scripts.shell_command(scripts.PREPARE, directory, image.user)
        prepared = await commands.run(prepare, user="0")
        if prepared.exit_code != 0:
            text = prepared.stderr.decode("utf-8", "replace").strip()
            raise SandboxError(f"the working directory {directory} cannot be made: {text}")
        return home or "/", directory

    async def _host_description(self) -> dict[str, Any]:
        if self._host is None:
            self._host = await self._engine.call("GET", "/info")
        assert self._host is not None
        return self._host

    def _forget(self, name: str) -> None:
        self._sandboxes.pop(name, None)

    async def _remove(self, entries: Sequence[SandboxEntry]) -> list[SandboxEntry]:
        turns = asyncio.Semaphore(_REMOVALS_AT_ONCE)
        left: list[SandboxEntry] = []

        async def remove(entry: SandboxEntry) -> None:
            async with turns:
                try:
                    await remove_container(self._engine, entry.handle)
                except EngineError as error:
                    logger.warning("the container %s cannot be removed: %s", entry.id, error)
                    left.append(entry)

        await asyncio.gather(*map(remove, entries))
        return left


def _creation_error(error: EngineError, spec: SandboxSpec) -> SandboxError:
    text = str(error)
    if "executable file not found" in text or "no such file or directory" in text:
        return ImageUnusable(f"the image {spec.image} cannot be used as a sandbox, it needs /bin/sh: {text}")
    return SandboxError(f"the sandbox could not be made: {text}")
