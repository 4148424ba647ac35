"""Sandbox backends by name, imported when they are first asked for."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from environments.errors import ConfigError, NotSupported, UnknownName
from environments.sandboxes.base import Backend

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

logger = logging.getLogger(__name__)

_BACKENDS = {
    "local": "environments.sandboxes.local.backend:LocalBackend",
    "docker": "environments.sandboxes.docker.backend:DockerBackend",
    "modal": "environments.sandboxes.modal.backend:ModalBackend",
    "daytona": "environments.sandboxes.daytona.backend:DaytonaBackend",
    "ssh": "environments.sandboxes.ssh.backend:SSHBackend",
    "singularity": "environments.sandboxes.singularity.backend:SingularityBackend",
}

NAMES = tuple(_BACKENDS)
"""The built-in backends."""


def create_backend(name: str, config: HermesAgentEnvConfig, run_id: str) -> Backend:
    """Make the backend ``name`` for one environment and run; called inside a running event loop.

    ``name`` may be the import path ``module:Class`` of a ``Backend`` whose constructor takes
    ``(config, run_id)``. Raises ``UnknownName``, ``ConfigError`` for a path that cannot be
    imported, ``MissingExtra`` for a backend whose SDK is not installed.
    """
    path = _BACKENDS.get(name, name)
    if ":" not in path:
        raise UnknownName("sandbox backend", name, _BACKENDS, "env.terminal_backend")
    made: Backend = _load(path)(config, run_id)
    return made


async def start_backend(config: HermesAgentEnvConfig, run_id: str, *, model_acts: bool) -> Backend:
    """Make the configured backend and see that it can be used.

    ``model_acts`` tells a model from the built-in scripts, which may run without isolation. Raises
    ``NotSupported`` where a model may not, and whatever ``check`` of the backend finds.
    """
    from environments.sandboxes.unused import unused_settings

    for warning in unused_settings(config):
        logger.warning("%s", warning)
    backend = create_backend(config.terminal_backend, config, run_id)
    try:
        await backend.check()
        if getattr(backend, "isolation", None) == "none":
            _allow_no_isolation(config, model_acts)
    except BaseException:  # stopped by hand, too: nobody else knows the backend yet
        await backend.close()
        raise
    return backend


def _allow_no_isolation(config: HermesAgentEnvConfig, model_acts: bool) -> None:
    if model_acts and not config.allow_unisolated:
        raise NotSupported(
            "this machine offers no isolation for the local backend, so a model's commands would run "
            "with your rights on your files; use --env.terminal_backend docker, or accept it with "
            "--env.allow_unisolated true"
        )
    logger.warning("the local backend runs without isolation on this machine")


def _load(path: str) -> Any:
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"env.terminal_backend: the backend {path!r} cannot be imported: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise ConfigError(
            f"env.terminal_backend: {path!r} is not a subclass of environments.sandboxes.base.Backend"
        )
    return found
