"""The backend ``modal``: makes sandboxes on Modal."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from environments.errors import ConfigError, NotSupported, SandboxError
from environments.records import SandboxInfo
from environments.sandboxes.base import Backend, Capabilities, SandboxEntry, SandboxSpec
from environments.sandboxes.hosted import ownership
from environments.sandboxes.hosted.creation import Creation
from environments.sandboxes.hosted.network import sort_hosts
from environments.sandboxes.hosted.survey import place_of, survey
from environments.sandboxes.modal.images import Images
from environments.sandboxes.modal.machine import ModalMachine
from environments.sandboxes.modal.sdk import Modal, connect, creation_error, kinds, require_modal, text_of
from environments.sandboxes.remote_shell.program import new_family
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

logger = logging.getLogger(__name__)

_LONGEST_LIFETIME = 86_400
_START_PATIENCE = 900.0

ISOLATION = "Modal sandbox (gVisor)"


class ModalBackend(Backend):
    """One Modal sandbox per rollout, all in one app, tagged with their owner."""

    name = "modal"
    capabilities = Capabilities(
        images=True,
        network_modes=frozenset({"none", "public", "allow-list"}),
        resources=frozenset({"cpus", "memory_mb"}),
    )

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        require_modal()
        self._config = config
        self._run_id = run_id
        self._creation = Creation(config.sandbox_creation_concurrency)
        self._connecting = asyncio.Lock()
        self._modal: Modal | None = None
        self._images: Images | None = None
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
        """Make one sandbox. ``NotSupported`` where ``spec`` asks for what Modal lacks."""
        _refuse_unsupported(spec)
        modal = await self._connected()
        sandbox_id = f"{ownership.clean(self._run_id)[:40]}-{new_family()}"
        labels = ownership.labels_for(self._run_id, sandbox_id, spec.lifetime)

        async def make() -> RemoteSandbox:
            if self._closed:
                raise SandboxError("the backend is closed")
            sandbox = await self._make(modal, spec, labels)
            self._live.add(sandbox)
            return sandbox

        async def discard() -> None:
            await _terminate(modal, {ownership.SANDBOX: sandbox_id})

        return await self._creation.run(make, discard)

    async def close(self) -> None:
        """Release all that the run still holds, whatever became of the requests for it."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        if self._modal is not None:
            await _terminate(self._modal, ownership.labels_of_process(self._run_id))

    async def survey(self) -> list[SandboxEntry]:
        """Every sandbox of our app."""
        modal = await self._logged_in()
        try:
            return [entry async for entry, _ in _found(modal, {})]
        except Exception as error:  # the SDK's own and gRPC's
            raise SandboxError(f"Modal does not list its sandboxes: {text_of(error)}") from error

    async def remove(self, entries: Sequence[SandboxEntry]) -> list[SandboxEntry]:
        """Terminate sandboxes of any run; those that are left."""
        modal = await self._logged_in()
        ended = await asyncio.gather(*(_end(modal, entry) for entry in entries))
        return [entry for entry, gone in zip(entries, ended, strict=True) if not gone]

    async def reap(self) -> list[SandboxEntry]:
        """End what dead runs of this machine left; for those of others nobody here can tell."""
        return await _terminate(
            await self._logged_in(), {ownership.WORLD: ownership.this_world()}, abandoned=True
        )

    async def attach(self, entry: SandboxEntry) -> RemoteSandbox:
        """Join a sandbox that another process made."""
        modal = await self._logged_in()
        try:
            made = await modal.sdk.Sandbox.from_id.aio(entry.id, client=modal.client)
        except Exception as error:  # the SDK's own and gRPC's
            raise SandboxError(f"the Modal sandbox {entry.id} cannot be joined: {text_of(error)}") from error
        return await self._enter(made, SandboxSpec(), {}, entry.handle)

    async def _logged_in(self) -> Modal:
        async with self._connecting:
            if self._modal is None:
                self._modal = await connect()
                self._images = Images(self._modal.sdk)
            return self._modal

    async def _connected(self) -> Modal:
        """Log in, and end what dead runs of this machine left. Once."""
        modal = await self._logged_in()
        async with self._connecting:
            if not self._reaped:
                await _terminate(modal, {ownership.WORLD: ownership.this_world()}, abandoned=True)
                self._reaped = True
        return modal

    async def _make(self, modal: Modal, spec: SandboxSpec, labels: dict[str, str]) -> RemoteSandbox:
        assert self._images is not None
        image = await self._images.get(spec.image)
        options = _options(modal, spec, self._config)
        try:
            made = await modal.sdk.Sandbox.create.aio(
                *("sleep", str(_LONGEST_LIFETIME * 2)),
                **(options | {"app": modal.app, "client": modal.client, "image": image, "tags": labels}),
            )
        except Exception as error:  # the SDK's own, gRPC's, and those of reading a build's files
            raise creation_error(error, spec.image) from error
        return await self._enter(made, spec, options, labels)

    async def _enter(
        self, made: Any, spec: SandboxSpec, options: dict[str, Any], labels: Mapping[str, str]
    ) -> RemoteSandbox:
        family = ownership.family_of(labels)
        machine = ModalMachine(made, labels, lambda: self._live.discard(sandbox))
        ended, answer, message = await machine.run(
            b"{\n%s\n}" % survey(family, spec.working_directory).encode("utf-8", "surrogateescape"),
            patience=_START_PATIENCE,
        )
        if ended.code:
            raise SandboxError(f"a sandbox of Modal cannot be used: {message[-500:]!r}")
        place = place_of(family, answer.decode("utf-8", "surrogateescape"), spec.environment)
        machine.scratch = place.scratch
        sandbox = RemoteSandbox(machine, _info(made, spec, options), place)
        return sandbox


def _options(modal: Modal, spec: SandboxSpec, config: HermesAgentEnvConfig) -> dict[str, Any]:
    """What ``Sandbox.create`` is asked for."""
    options: dict[str, Any] = {"timeout": max(1, min(int(spec.lifetime), _LONGEST_LIFETIME))}
    if spec.resources.cpus is not None:
        options["cpu"] = (spec.resources.cpus, spec.resources.cpus)
    memory = spec.resources.memory_mb or config.sandbox_memory_mb
    if memory is not None:
        options["memory"] = (memory, memory)
    if spec.network.mode == "none" or (spec.network.mode == "allow-list" and not spec.network.hosts):
        options["block_network"] = True
    elif spec.network.mode == "allow-list":
        known = inspect.signature(modal.sdk.Sandbox.create).parameters
        blocks, names = sort_hosts(spec.network.hosts)
        blocks_option = "outbound_cidr_allowlist" if "outbound_cidr_allowlist" in known else "cidr_allowlist"
        if names and "outbound_domain_allowlist" not in known:
            raise NotSupported("an allow-list of host names needs a newer Modal SDK: pip install -U modal")
        if blocks:
            options[blocks_option] = blocks
        if names:
            options["outbound_domain_allowlist"] = names
    return options


def _refuse_unsupported(spec: SandboxSpec) -> None:
    if spec.resources.gpus:
        raise NotSupported("the modal backend gives no GPU to a sandbox")


def _info(made: Any, spec: SandboxSpec, options: dict[str, Any]) -> SandboxInfo:
    limits = {"cpus": "cpu", "memory_mb": "memory"}
    limitations = []
    if spec.resources.storage_mb or spec.resources.processes:
        limitations.append("disk and number of processes are as Modal limits them")
    if spec.lifetime > _LONGEST_LIFETIME:
        limitations.append("Modal ends every sandbox after 24 hours")
    return SandboxInfo(
        backend="modal",
        isolation=ISOLATION,
        network=spec.network.mode,
        id=made.object_id,
        resources={ours: float(options[theirs][1]) for ours, theirs in limits.items() if theirs in options},
        image=spec.image,
        limitations=limitations,
    )


async def _found(modal: Modal, tags: dict[str, str]) -> AsyncIterator[tuple[SandboxEntry, Any]]:
    """The sandboxes that bear these tags, and the SDK's objects for them."""
    found = modal.sdk.Sandbox.list.aio(app_id=modal.app.app_id, tags=tags, client=modal.client)
    async for sandbox in found:
        yield ownership.entry_of("modal", sandbox.object_id, await sandbox.get_tags.aio()), sandbox


async def _end(modal: Modal, entry: SandboxEntry) -> bool:
    """Terminate a sandbox; False where that fails."""
    try:
        sandbox = await modal.sdk.Sandbox.from_id.aio(entry.id, client=modal.client)
        await sandbox.terminate.aio()
    except Exception as error:  # noqa: BLE001 - the SDK's own errors and gRPC's
        if "NotFoundError" not in kinds(error):
            logger.warning("the Modal sandbox %s cannot be ended: %s", entry.id, text_of(error))
            return False
    return True


async def _terminate(modal: Modal, tags: dict[str, str], *, abandoned: bool = False) -> list[SandboxEntry]:
    """Terminate the sandboxes that bear these tags; with ``abandoned`` only those that nobody may want,
    else all that were not kept.

    It is called on the way out and at the start, where a failure must not hide or stop anything: what
    it leaves ends with its own lifetime.
    """
    ended: list[SandboxEntry] = []
    try:
        async for entry, sandbox in _found(modal, tags):
            if entry.abandoned if abandoned else not entry.kept:
                logger.info("ending the Modal sandbox %s, which nobody holds any more", entry.id)
                await sandbox.terminate.aio()
                ended.append(entry)
    except Exception as error:  # noqa: BLE001 - the SDK's own errors and gRPC's
        logger.warning("sandboxes may be left on Modal until their lifetimes end: %s", text_of(error))
    return ended
