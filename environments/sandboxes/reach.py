"""What all backends hold that can be reached from here, for ``hermes-env sandboxes``."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from environments.errors import HermesError, SandboxError, UnknownName
from environments.sandboxes.base import Backend, SandboxEntry
from environments.sandboxes.docker.address import find_address
from environments.sandboxes.registry import NAMES, create_backend

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

_PATIENCE = 60.0


@dataclass(slots=True)
class Reached:
    """One backend: what it holds, or why it could not be asked."""

    name: str
    backend: Backend | None = None
    entries: list[SandboxEntry] = field(default_factory=list)
    problem: HermesError | None = None


def likely(config: HermesAgentEnvConfig) -> list[str]:
    """Backends that somebody may use from here, judged without asking anything."""
    address = find_address()
    docker = address.path is None or Path(address.path).exists()
    ssh = bool(config.ssh_host or os.environ.get("TERMINAL_SSH_HOST"))
    found = {
        "local": True,
        "docker": docker,
        "ssh": ssh and importlib.util.find_spec("asyncssh") is not None,
        "singularity": any(map(shutil.which, ("apptainer", "singularity"))),
        "modal": importlib.util.find_spec("modal") is not None,
        "daytona": importlib.util.find_spec("daytona") is not None,
    }
    return [name for name in NAMES if found[name]]


async def reach(names: Sequence[str], config: HermesAgentEnvConfig) -> list[Reached]:
    """Ask these backends side by side. ``UnknownName`` for one that does not exist."""
    for name in names:
        if name not in NAMES and ":" not in name:
            raise UnknownName("sandbox backend", name, NAMES, "--backend")
    return list(await asyncio.gather(*(_ask(name, config) for name in names)))


async def close(reached: Sequence[Reached]) -> None:
    """Let go of the backends; their sandboxes stay."""
    await asyncio.gather(*(one.backend.close() for one in reached if one.backend is not None))


async def _ask(name: str, config: HermesAgentEnvConfig) -> Reached:
    result = Reached(name)
    try:
        result.backend = create_backend(name, config, "sandboxes-command")
        async with asyncio.timeout(_PATIENCE):
            result.entries = await result.backend.survey()
    except TimeoutError:
        result.problem = SandboxError(f"no answer within {_PATIENCE:.0f} s")
    except HermesError as error:
        result.problem = error
    except BaseException:  # stopped by hand, say: nobody else knows of the backend yet
        if result.backend is not None:
            await result.backend.close()
        raise
    return result
