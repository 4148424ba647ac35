"""The backend ``daytona``: makes sandboxes on Daytona."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from environments.records import SandboxInfo
from environments.sandboxes.base import Capabilities, SandboxEntry, SandboxSpec
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
from environments.sandboxes.hosted.backend import HostedBackend
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

_START_PATIENCE = 900.0

ISOLATION = "Daytona sandbox (container)"


class DaytonaBackend(HostedBackend[Any]):
    """One Daytona sandbox per rollout, labelled with its owner."""

    name = "daytona"
    provider = "Daytona"
    capabilities = Capabilities(
        images=True,
        network_modes=frozenset({"none", "public", "allow-list"}),
        resources=frozenset({"cpus", "memory_mb", "storage_mb"}),
    )

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        require_daytona()
        super().__init__(config, run_id)

    async def _log_in(self) -> Any:
        client = client_of(await load())
        try:
            await log_in(client)
        except BaseException:  # cancelled, too: nobody else has the client
            await client.close()
            raise
        return client

    async def _log_out(self, service: Any) -> None:
        await service.close()

    async def _make(self, service: Any, spec: SandboxSpec, labels: dict[str, str]) -> RemoteSandbox:
        asked = await parameters(await load(), spec, self._config, labels)
        try:
            made = await service.create(asked, timeout=_START_PATIENCE)
        except Exception as error:  # the SDK's own, aiohttp's, and those of reading a build's files
            raise creation_error(error, spec.image) from error
        return await self._enter(service, made, spec, labels)

    async def _join(self, service: Any, entry: SandboxEntry) -> RemoteSandbox:
        return await self._enter(service, await service.get(entry.id), SandboxSpec(), entry.handle)

    async def _find(self, service: Any, labels: Mapping[str, str]) -> AsyncIterator[tuple[SandboxEntry, Any]]:
        for sandbox in await found(service, dict(labels)):
            yield ownership.entry_of("daytona", str(sandbox.id), sandbox.labels or {}), sandbox

    async def _end(self, service: Any, entry: SandboxEntry, found: Any) -> None:
        try:
            await (found or await service.get(entry.id)).delete()
        except Exception as error:  # the SDK's own and aiohttp's
            if status_of(error) not in (404, 409):
                raise

    def _text_of(self, error: BaseException) -> str:
        return text_of(error)

    async def _enter(
        self, service: Any, made: Any, spec: SandboxSpec, labels: Mapping[str, str]
    ) -> RemoteSandbox:
        machine = DaytonaMachine(service, made, labels, spec.lifetime, lambda: self._live.discard(sandbox))
        family = ownership.family_of(labels)
        place = await machine.prepare(family, spec.working_directory, dict(spec.environment))
        sandbox = RemoteSandbox(machine, _info(made, spec, self._config), place)
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
