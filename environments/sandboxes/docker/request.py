"""What the engine is asked for: the body of a create request, from a task's wishes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.docker.first_process import init_command
from environments.sandboxes.docker.images import Image
from environments.sandboxes.docker.ownership import DIRECTORY, USER, labels_for
from environments.sandboxes.egress import egress

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

DEFAULT_MEMORY_MB = 4096
DEFAULT_PROCESSES = 512

_OWN_PROCESSES = 4
"""Processes of ours in each container: the first one, its sleep, the guard, a command's start."""


@dataclass(slots=True)
class Limits:
    """Resources of one container, as far as the engine's machine has them."""

    memory_mb: int
    processes: int
    cpus: float | None
    storage_mb: int | None
    gpus: int
    notes: list[str] = field(default_factory=list)

    def in_force(self, *, storage: bool) -> dict[str, float]:
        """Limits that hold, by name."""
        found: dict[str, float] = {"memory_mb": self.memory_mb, "processes": self.processes}
        if self.cpus is not None:
            found["cpus"] = self.cpus
        if self.storage_mb is not None and storage:
            found["storage_mb"] = self.storage_mb
        if self.gpus:
            found["gpus"] = self.gpus
        return found

    def limitations(self, *, storage: bool) -> list[str]:
        """What was asked for and is not in force."""
        if self.storage_mb is None or storage:
            return list(self.notes)
        return [*self.notes, "storage is not limited: the engine's storage driver has no quotas"]


def limits_of(spec: SandboxSpec, config: HermesAgentEnvConfig, host: dict[str, Any]) -> Limits:
    """The task's limits, the configured ones where it has none."""
    wanted = spec.resources
    limits = Limits(
        memory_mb=wanted.memory_mb or config.sandbox_memory_mb or DEFAULT_MEMORY_MB,
        processes=(wanted.processes or config.sandbox_processes or DEFAULT_PROCESSES) + _OWN_PROCESSES,
        cpus=wanted.cpus,
        storage_mb=wanted.storage_mb,
        gpus=wanted.gpus,
    )
    cores = host.get("NCPU") or 0
    if limits.cpus is not None and cores and limits.cpus > cores:
        limits.notes.append(f"{limits.cpus:g} cpus were asked for, the engine's machine has {cores}")
        limits.cpus = float(cores)
    return limits


def container_body(
    spec: SandboxSpec, image: Image, limits: Limits, run_id: str, sandbox_id: str, *, with_storage: bool
) -> dict[str, Any]:
    """Body of ``POST /containers/create``. The image keeps its directory and environment."""
    environment = {**egress.variables(spec.network), **spec.environment}
    host: dict[str, Any] = {
        "NetworkMode": "default" if spec.network.mode == "public" else "none",
        "Memory": limits.memory_mb << 20,
        "MemorySwap": limits.memory_mb << 20,
        "PidsLimit": limits.processes,
        "LogConfig": {"Type": "none"},  # else the agent could fill the host's disk through process 1
    }
    if limits.cpus is not None:
        host["NanoCpus"] = int(limits.cpus * 1e9)
    if limits.storage_mb is not None and with_storage:
        host["StorageOpt"] = {"size": f"{limits.storage_mb}M"}
    if limits.gpus:
        host["DeviceRequests"] = [{"Count": limits.gpus, "Capabilities": [["gpu"]]}]
    return {
        "Image": image.id,
        "Entrypoint": init_command(max(1, int(spec.lifetime))),
        "Cmd": [],
        "User": "0",  # process 1 has power over the agent's processes; commands run as the image's user
        "OpenStdin": True,  # process 1 may wait on it
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": {
            **spec.labels,
            **labels_for(run_id, sandbox_id, spec.lifetime),
            DIRECTORY: spec.working_directory or "",
            USER: image.user,
        },
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }
