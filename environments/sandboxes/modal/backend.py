"""The backend ``modal``: makes sandboxes on Modal."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from environments.errors import NotSupported, SandboxError
from environments.records import SandboxInfo
from environments.sandboxes.base import Capabilities, SandboxEntry, SandboxSpec
from environments.sandboxes.hosted import ownership
from environments.sandboxes.hosted.backend import HostedBackend
from environments.sandboxes.hosted.network import sort_hosts
from environments.sandboxes.hosted.survey import place_of, survey
from environments.sandboxes.modal.images import Images
from environments.sandboxes.modal.machine import ModalMachine
from environments.sandboxes.modal.sdk import Modal, connect, creation_error, kinds, require_modal, text_of
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

_LONGEST_LIFETIME = 86_400
_START_PATIENCE = 900.0

ISOLATION = "Modal sandbox (gVisor)"


class ModalBackend(HostedBackend[Modal]):
    """One Modal sandbox per rollout, all in one app, tagged with their owner."""

    name = "modal"
    provider = "Modal"
    capabilities = Capabilities(
        images=True,
        network_modes=frozenset({"none", "public", "allow-list"}),
        resources=frozenset({"cpus", "memory_mb"}),
    )

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        require_modal()
        super().__init__(config, run_id)
        self._images: Images | None = None

    async def _log_in(self) -> Modal:
        modal = await connect()
        self._images = Images(modal.sdk)
        return modal

    async def _make(self, service: Modal, spec: SandboxSpec, labels: dict[str, str]) -> RemoteSandbox:
        assert self._images is not None
        image = await self._images.get(spec.image)
        options = _options(service, spec, self._config)
        try:
            made = await service.sdk.Sandbox.create.aio(
                *("sleep", str(_LONGEST_LIFETIME * 2)),
                **(options | {"app": service.app, "client": service.client, "image": image, "tags": labels}),
            )
        except Exception as error:  # the SDK's own, gRPC's, and those of reading a build's files
            raise creation_error(error, spec.image) from error
        return await self._enter(made, spec, options, labels)

    async def _join(self, service: Modal, entry: SandboxEntry) -> RemoteSandbox:
        made = await service.sdk.Sandbox.from_id.aio(entry.id, client=service.client)
        return await self._enter(made, SandboxSpec(), {}, entry.handle)

    async def _find(
        self, service: Modal, labels: Mapping[str, str]
    ) -> AsyncIterator[tuple[SandboxEntry, Any]]:
        list_sandboxes = service.sdk.Sandbox.list.aio
        async for made in list_sandboxes(app_id=service.app.app_id, tags=dict(labels), client=service.client):
            yield ownership.entry_of("modal", made.object_id, await made.get_tags.aio()), made

    async def _end(self, service: Modal, entry: SandboxEntry, found: Any) -> None:
        try:
            made = found or await service.sdk.Sandbox.from_id.aio(entry.id, client=service.client)
            await made.terminate.aio()
        except Exception as error:  # the SDK's own and gRPC's
            if "NotFoundError" not in kinds(error):
                raise

    def _text_of(self, error: BaseException) -> str:
        return text_of(error)

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
