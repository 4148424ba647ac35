"""What machine a task gets from a backend, and what a backend cannot give it."""

from __future__ import annotations

import os
from typing import Any

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import Capabilities, NetworkPolicy, Resources, SandboxSpec
from environments.tasks.dockerfile import read_dockerfile
from environments.tasks.lint import unsupported
from environments.tasks.model import Machine, Step, Task
from environments.tasks.variables import missing_variables, resolve_variables
from environments.verification.bundle import fetches, missing_parts

_MODES = {"public": "public", "no-network": "none", "allowlist": "allow-list"}
_MARGIN = 900.0
"""Seconds of a sandbox's life beyond work and tests: starting, uploads, a second grading's set-up."""
_ROOT = (None, "root", "0")
_BUILDERS = ("docker", "modal", "daytona")
"""Backends that build an image from a directory with a Dockerfile."""


def agent_timeout(step: Step, config: Any) -> float:
    """Seconds the agent may work on a step."""
    seconds = (step.agent_timeout or config.task_timeout) * config.agent_timeout_multiplier
    return float(seconds if config.rollout_timeout is None else min(seconds, config.rollout_timeout))


def verifier_timeout(step: Step, config: Any) -> float:
    """Seconds the tests of a step may take."""
    return float((step.verifier.timeout or config.test_timeout) * config.verifier_timeout_multiplier)


def network_mode(machine: Machine, config: HermesAgentEnvConfig) -> str:
    """Name of a machine's network as backends know it."""
    return _MODES[machine.network] if machine.network else config.sandbox_network


def spec_of(task: Task, config: Any, machine: Machine | None = None) -> SandboxSpec:
    """The sandbox of a task, or of its separate verifier's ``machine``."""
    own = machine or task.machine
    mode: Any = network_mode(own, config)
    memory = own.memory_mb and max(1, round(own.memory_mb * config.memory_multiplier))
    work = sum(agent_timeout(s, config) + 2 * verifier_timeout(s, config) for s in task.steps)
    return SandboxSpec(
        image=image_of(task, config, own),
        network=NetworkPolicy(mode, own.allowed_hosts),
        resources=Resources(
            cpus=own.cpus and own.cpus * config.cpus_multiplier,
            memory_mb=memory or config.sandbox_memory_mb,
            storage_mb=own.storage_mb,
            gpus=own.gpus,
            processes=config.sandbox_processes,
        ),
        environment=_environment(task, config, own),
        working_directory=own.workdir or _replayed_directory(task, config),
        lifetime=max(float(config.terminal_lifetime), work + _MARGIN),
    )


def image_of(task: Task, config: Any, machine: Machine) -> str | None:
    """A reference, a directory with a Dockerfile, or None for the backend's default."""
    if config.task_images == "replay":
        return None
    builds = task.dockerfile is not None and config.terminal_backend in _BUILDERS
    if machine.docker_image and not (config.force_build and builds):
        return machine.docker_image
    return str(task.environment_directory) if builds else None


def _environment(task: Task, config: Any, machine: Machine) -> dict[str, str]:
    environment: dict[str, str] = {}
    if config.task_images == "replay" and task.dockerfile is not None:
        environment |= {k: v for k, v in read_dockerfile(task.dockerfile).environment.items() if k != "PATH"}
    return environment | resolve_variables(machine.env, f"{task.name}: environment.env")


def _replayed_directory(task: Task, config: Any) -> str | None:
    if config.task_images != "replay" or task.dockerfile is None:
        return None
    return read_dockerfile(task.dockerfile).working_directory


def user_of(task: Task, config: Any, named: str | None) -> str | None:
    """The user ``named`` for an agent or a verifier, else the one that a replayed Dockerfile leaves."""
    if named is not None or config.task_images != "replay" or task.dockerfile is None:
        return named
    return read_dockerfile(task.dockerfile).user


def misfits(task: Task, config: Any, capabilities: Capabilities) -> list[str]:
    """Why a task without faults cannot be run here; empty where it can. Faults: ``tasks.lint.faults``."""
    found = unsupported(task)
    backend = config.terminal_backend
    machines = [task.machine, *(s.verifier.machine for s in task.steps if s.verifier.machine is not None)]
    found += _image_misfits(task, config, capabilities)
    for machine in machines:
        mode = network_mode(machine, config)
        if mode not in capabilities.network_modes:
            found.append(f"it needs the network {mode}, which the {backend} backend does not offer")
        if machine.gpus and not capabilities.gpu:
            found.append(f"it needs a GPU, which the {backend} backend does not give")
        for name in missing_variables(machine.env):
            found.append(f"it needs the variable {name}, which is not set here")
        if backend == "local" and machine.memory_mb and machine.memory_mb > _memory_mb():
            found.append(f"it needs {machine.memory_mb} MB of memory; this machine has {_memory_mb()}")
    found += _user_misfits(task, backend, capabilities)
    found += _bundle_misfits(task, config)
    for step in task.steps:
        for name in missing_variables(step.verifier.env):
            found.append(f"its tests need the variable {name}, which is not set here")
    return list(dict.fromkeys(found))


def _bundle_misfits(task: Task, config: Any) -> list[str]:
    """Tests that would fetch and have no network use what is installed beside this package."""
    for step in task.steps:
        machine = step.verifier.machine or task.machine
        if network_mode(machine, config) != "none" or not step.test_script.is_file():
            continue
        if fetches(step.test_script.read_text("utf-8", "replace")) and (missing := missing_parts()):
            names = ", ".join(missing)
            return [
                f"its tests have no network and need {names} on this machine: pip install "
                "'hermes-environments[verifier]'"
            ]
    return []


def _user_misfits(task: Task, backend: str, capabilities: Capabilities) -> list[str]:
    """A backend without users runs everything as one, which is root in most images."""
    found = []
    if len({step.agent_user for step in task.steps}) > 1:
        found.append("its steps have agents of different users, which is not supported")
    if not capabilities.users:
        named = [(s.agent_user, "agent is") for s in task.steps]
        named += [(s.verifier.user, "tests run as") for s in task.steps]
        found += [
            f"its {who} the user {user!r}, which the {backend} backend cannot do"
            for user, who in named
            if user not in _ROOT
        ]
    return found


def _image_misfits(task: Task, config: Any, capabilities: Capabilities) -> list[str]:
    backend = config.terminal_backend
    if config.task_images == "replay":
        if task.dockerfile is None:
            return []
        replay = read_dockerfile(task.dockerfile)
        found = (
            [f"its Dockerfile cannot be replayed: {', '.join(replay.problems)}"] if replay.problems else []
        )
        if replay.users and not capabilities.users:
            users = ", ".join(map(repr, replay.users))
            found.append(
                f"its Dockerfile switches to the user {users}, which the {backend} backend cannot do"
            )
        return found
    if not capabilities.images:
        return [f"the {backend} backend runs no images; --env.task_images replay does without"]
    if image_of(task, config, task.machine) is None:
        return [f"the {backend} backend builds no Dockerfile; --env.task_images replay carries it out"]
    return []


def _memory_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
