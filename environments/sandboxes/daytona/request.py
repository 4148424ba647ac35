"""What Daytona is asked for."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from environments.errors import NotSupported
from environments.sandboxes.base import Resources, SandboxSpec
from environments.sandboxes.hosted.images import dockerfile_of
from environments.sandboxes.hosted.network import sort_hosts

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig


async def parameters(
    sdk: Any, spec: SandboxSpec, config: HermesAgentEnvConfig, labels: dict[str, str]
) -> Any:
    """The SDK's parameters for one sandbox. ``NotSupported`` for what the SDK cannot express."""
    known = sdk.CreateSandboxFromImageParams.model_fields
    minutes = max(1, math.ceil(spec.lifetime / 60))
    options: dict[str, Any] = {
        "labels": labels,
        "public": False,
        "auto_stop_interval": minutes,
        "auto_delete_interval": 0,  # deleted as soon as it has stopped
        **_network(spec, known),
    }
    if "ttl_minutes" in known:
        options["ttl_minutes"] = minutes
    if spec.image is None:
        return sdk.CreateSandboxFromSnapshotParams(**options)
    size = resources(spec.resources, config)
    if size:
        options["resources"] = sdk.Resources(**size)
    return sdk.CreateSandboxFromImageParams(image=await _image(sdk, spec.image), **options)


def resources(wanted: Resources, config: HermesAgentEnvConfig) -> dict[str, int]:
    """Daytona counts whole processors and whole GiB."""
    memory = wanted.memory_mb or config.sandbox_memory_mb
    amounts = {
        "cpu": wanted.cpus,
        "memory": None if memory is None else memory / 1024,
        "disk": None if wanted.storage_mb is None else wanted.storage_mb / 1024,
    }
    return {name: max(1, math.ceil(amount)) for name, amount in amounts.items() if amount is not None}


def _network(spec: SandboxSpec, known: Any) -> dict[str, Any]:
    if spec.network.mode == "public":
        return {}
    if spec.network.mode == "none" or not spec.network.hosts:
        return {"network_block_all": True}
    blocks, names = sort_hosts(spec.network.hosts)
    options: dict[str, Any] = {}
    if blocks:
        options["network_allow_list"] = ",".join(blocks)
    if names:
        if "domain_allow_list" not in known:
            raise NotSupported("an allow-list of host names needs a newer SDK: pip install -U daytona")
        options["domain_allow_list"] = ",".join(names)
    return options


async def _image(sdk: Any, name: str) -> Any:
    dockerfile = await asyncio.to_thread(dockerfile_of, name)
    if dockerfile is None:
        return name
    return await asyncio.to_thread(sdk.Image.from_dockerfile, dockerfile)
