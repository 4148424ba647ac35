"""The backend ``daytona``: makes sandboxes on Daytona."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from environments.errors import ConfigError, NotSupported, SandboxError
from environments.records import SandboxInfo
from environments.sandboxes.base import Backend, Capabilities, SandboxEntry, SandboxSpec
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
        self._reaped = False
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
        sandbox_id = f"{ownership.clean(self._run_id)[:40]}-{new_family()}"
        labels = ownership.labels_for(self._run_id, sandbox_id, spec.lifetime)

        async def make() -> RemoteSandbox:
            if self._closed:
                raise SandboxError("the backend is closed")
            sandbox = await self._make(client, spec, labels)
            self._live.add(sandbox)
            return sandbox

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
            await _delete(self._client, ownership.labels_of_process(self._run_id))
            await self._client.close()

    async def survey(self) -> list[SandboxEntry]:
        """Every sandbox of ours in this organization."""
        client = await self._logged_in()
        try:
            entries = [_entry(sandbox) for sandbox in await found(client, {})]
        except Exception as error:  # the SDK's own and aiohttp's
            raise SandboxError(f"Daytona does not list its sandboxes: {text_of(error)}") from error
        return [entry for entry in entries if entry.run]

    async def remove(self, entries: Sequence[SandboxEntry]) -> list[SandboxEntry]:
        """Delete sandboxes of any run; those that are left."""
        client = await self._logged_in()
        ended = await asyncio.gather(*(_end(client, entry) for entry in entries))
        return [entry for entry, gone in zip(entries, ended, strict=True) if not gone]

    async def reap(self) -> list[SandboxEntry]:
        """End what dead runs of this machine left; for those of others nobody here can tell."""
        client = await self._logged_in()
        return await _delete(client, {ownership.WORLD: ownership.this_world()}, abandoned=True)

    async def attach(self, entry: SandboxEntry) -> RemoteSandbox:
        """Join a sandbox that another process made."""
        client = await self._logged_in()
        try:
            made = await client.get(entry.id)
        except Exception as error:  # the SDK's own and aiohttp's
            raise SandboxError(
                f"the Daytona sandbox {entry.id} cannot be joined: {text_of(error)}"
            ) from error
        return await self._enter(made, SandboxSpec(), entry.handle)

    async def _connected(self) -> Any:
        """Log in, and end what dead runs of this machine left. Once."""
        client = await self._logged_in()
        async with self._connecting:
            if not self._reaped:
                await _delete(client, {ownership.WORLD: ownership.this_world()}, abandoned=True)
                self._reaped = True
        return client

    async def _logged_in(self) -> Any:
        async with self._connecting:
            if self._client is None:
                client = client_of(await load())
                try:
                    await log_in(client)
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def _make(self, client: Any, spec: SandboxSpec, labels: dict[str, str]) -> RemoteSandbox:
        asked = await parameters(await load(), spec, self._config, labels)
        try:
            made = await client.create(asked, timeout=_START_PATIENCE)
        except Exception as error:  # the SDK's own, aiohttp's, and those of reading a build's files
            raise creation_error(error, spec.image) from error
        return await self._enter(made, spec, labels)

    async def _enter(self, made: Any, spec: SandboxSpec, labels: Mapping[str, str]) -> RemoteSandbox:
        machine = DaytonaMachine(
            self._client, made, labels, spec.lifetime, lambda: self._live.discard(sandbox)
        )
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


def _entry(sandbox: Any) -> SandboxEntry:
    return ownership.entry_of("daytona", str(sandbox.id), sandbox.labels or {})


async def _end(client: Any, entry: SandboxEntry) -> bool:
    """Delete a sandbox; False where that fails."""
    try:
        await (await client.get(entry.id)).delete()
    except Exception as error:  # noqa: BLE001 - the SDK's own and aiohttp's
        if status_of(error) not in (404, 409):
            logger.warning("the Daytona sandbox %s cannot be ended: %s", entry.id, text_of(error))
            return False
    return True


async def _delete(client: Any, labels: dict[str, str], *, abandoned: bool = False) -> list[SandboxEntry]:
    """Delete the sandboxes that bear these labels; with ``abandoned`` only those that nobody may want,
    else all that were not kept.

    It is called on the way out and at the start, where a failure must not hide or stop anything: what
    it leaves ends with its own lifetime.
    """
    ended: list[SandboxEntry] = []
    try:
        for sandbox in await found(client, labels):
            entry = _entry(sandbox)
            if not entry.abandoned if abandoned else entry.kept:
                continue
            logger.info("ending the Daytona sandbox %s, which nobody holds any more", sandbox.id)
            try:
                await sandbox.delete()
            except Exception as error:  # the SDK's own and aiohttp's
                if status_of(error) not in (404, 409):
                    raise
            ended.append(entry)
    except Exception as error:  # noqa: BLE001 - the SDK's own and aiohttp's
        logger.warning("sandboxes may be left on Daytona until their lifetimes end: %s", text_of(error))
    return ended
