"""The backend ``daytona``: makes sandboxes on Daytona."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from environments.errors import ConfigError, NotSupported, SandboxError
from environments.records import SandboxInfo
from environments.sandboxes.base import Backend, Capabilities, SandboxSpec
from environments.sandboxes.daytona.machine import DaytonaMachine
from environments.sandboxes.daytona.request import parameters, resources
from environments.sandboxes.daytona.sdk import (
    client_of,
    creation_error,
    found,
    load,
    log_in,
    require_daytona,
    status_of,
    text_of,
)
from environments.sandboxes.hosted import ownership
from environments.sandboxes.hosted.creation import Creation
from environments.sandboxes.remote_shell.program import new_family
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

logger = logging.getLogger(__name__)

_START_PATIENCE = 900.0

ISOLATION = "Daytona sandbox (container)"


class DaytonaBackend(Backend):
    """One Daytona sandbox per rollout, labelled with its owner."""

    name = "daytona"
    capabilities = Capabilities(
        images=True,
        network_modes=frozenset({"none", "public", "allow-list"}),
        resources=frozenset({"cpus", "memory_mb", "storage_mb"}),
    )

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        require_daytona()
        self._config = config
        self._run_id = run_id
        self._creation = Creation(config.sandbox_creation_concurrency)
        self._connecting = asyncio.Lock()
        self._client: Any = None
        self._live: set[RemoteSandbox] = set()
        self._closed = False

    async def check(self) -> None:
        """Log in. ``ConfigError`` with the cure where that cannot work."""
        try:
            await self._connected()
        except SandboxError as error:
            raise ConfigError(str(error)) from error

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Make one sandbox. ``NotSupported`` where ``spec`` asks for what Daytona lacks."""
        if spec.resources.gpus:
            raise NotSupported("the daytona backend gives no GPU to a sandbox")
        client = await self._connected()
        family = new_family()
        sandbox_id = f"{ownership.clean(self._run_id)[:40]}-{family}"
        labels = ownership.labels_for(self._run_id, sandbox_id, spec.lifetime)

        async def make() -> RemoteSandbox:
            if self._closed:
                raise SandboxError("the backend is closed")
            return await self._make(client, spec, family, labels)

        async def discard() -> None:
            await _delete(client, {ownership.SANDBOX: sandbox_id})

        return await self._creation.run(make, discard)

    async def close(self) -> None:
        """Release all that the run still holds, whatever became of the requests for it."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        if self._client is not None:
            labels = ownership.labels_for(self._run_id, "", 0)
            wanted = (ownership.RUN, ownership.WORLD, ownership.PROCESS)
            await _delete(self._client, {name: labels[name] for name in wanted})
            await self._client.close()

    async def _connected(self) -> Any:
        """Log in, and end what dead runs of this machine left. Once."""
        async with self._connecting:
            if self._client is None:
                client = client_of(await load())
                try:
                    await log_in(client)
                except BaseException:
                    await client.close()
                    raise
                await _delete(client, {ownership.WORLD: ownership.this_world()}, abandoned=True)
                self._client = client
            return self._client

    async def _make(
        self, client: Any, spec: SandboxSpec, family: str, labels: dict[str, str]
    ) -> RemoteSandbox:
        asked = await parameters(await load(), spec, self._config, labels)
        try:
            made = await client.create(asked, timeout=_START_PATIENCE)
        except Exception as error:  # the SDK's own, aiohttp's, and those of reading a build's files
            raise creation_error(error, spec.image) from error
        machine = DaytonaMachine(client, made, spec.lifetime, lambda: self._live.discard(sandbox))
        place = await machine.prepare(family, spec.working_directory, dict(spec.environment))
        sandbox = RemoteSandbox(machine, _info(made, spec, self._config), place)
        self._live.add(sandbox)
        return sandbox


def _info(made: Any, spec: SandboxSpec, config: HermesAgentEnvConfig) -> SandboxInfo:
    limitations = []
    if spec.resources.processes:
        limitations.append("the number of processes is as Daytona limits it")
    if spec.image is None and resources(spec.resources, config):
        limitations.append("Daytona's default snapshot has its own size; resources need an image")
    return SandboxInfo(
        backend="daytona",
        isolation=ISOLATION,
        network=spec.network.mode,
        id=str(made.id),
        resources={
            "cpus": float(made.cpu),
            "memory_mb": float(made.memory) * 1024,
            "storage_mb": float(made.disk) * 1024,
        },
        image=spec.image,
        limitations=limitations,
    )


async def _delete(client: Any, labels: dict[str, str], *, abandoned: bool = False) -> None:
    """Delete the sandboxes that bear these labels; with ``abandoned`` only those of dead runs.

    It is called on the way out and at the start, where a failure must not hide or stop anything: what
    it leaves ends with its own lifetime.
    """
    try:
        for sandbox in await found(client, labels):
            if abandoned and not ownership.is_abandoned(sandbox.labels):
                continue
            logger.info("ending the Daytona sandbox %s, which nobody holds any more", sandbox.id)
            try:
                await sandbox.delete()
            except Exception as error:  # the SDK's own and aiohttp's
                if status_of(error) not in (404, 409):
                    raise
    except Exception as error:  # noqa: BLE001 - the SDK's own and aiohttp's
        logger.warning("sandboxes may be left on Daytona until their lifetimes end: %s", text_of(error))
