"""Settings that the chosen backend cannot use, so that none is given in vain without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments.sandboxes.registry import NAMES

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

_USED_BY: dict[str, tuple[str, ...]] = {
    "docker_image": ("docker",),
    "singularity_image": ("singularity",),
    "ssh_host": ("ssh",),
    "ssh_user": ("ssh",),
    "ssh_port": ("ssh",),
    "ssh_key": ("ssh",),
    "ssh_known_hosts": ("ssh",),
    "ssh_jump_host": ("ssh",),
    "local_isolation": ("local",),
    "allow_unisolated": ("local",),
    "sandbox_memory_mb": ("local", "docker", "singularity", "modal", "daytona"),
    "sandbox_processes": ("local", "docker", "singularity", "ssh"),
}


def unused_settings(config: HermesAgentEnvConfig) -> list[str]:
    """What to say of each setting that differs from its default and that this backend does not use.

    Of a backend of the user's own nothing is known, so nothing is said.
    """
    backend = config.terminal_backend
    if backend not in NAMES:
        return []
    said = [
        f"the {backend} backend does not use --env.{name}; {_names(users)}"
        for name, users in _USED_BY.items()
        if backend not in users and _is_set(config, name)
    ]
    if config.sandbox_allowed_hosts and config.sandbox_network != "allow-list":
        said.append(
            f"--env.sandbox_network {config.sandbox_network} does not use --env.sandbox_allowed_hosts; "
            "allow-list does"
        )
    return said


def _is_set(config: HermesAgentEnvConfig, name: str) -> bool:
    return bool(getattr(config, name) != type(config).model_fields[name].default)


def _names(users: tuple[str, ...]) -> str:
    *others, last = users
    return f"{', '.join(others)} and {last} do" if others else f"{last} does"
