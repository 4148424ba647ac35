"""``task.toml``, schemas 1.0 to 1.4, as the values of ``model``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from environments.errors import ConfigError
from environments.tasks.model import DEFAULT_TIMEOUT, Artifact, Healthcheck, Machine, Verifier
from environments.tasks.toml_table import Table

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
"""Versions whose meaning is known. Newer ones are read as well as they can be."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """One entry of ``[[steps]]``; what it leaves open is the task's."""

    name: str
    agent_timeout: float | None
    agent_user: str | None
    verifier: Verifier
    min_reward: float | Mapping[str, float] | None
    healthcheck: Healthcheck | None
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole file."""

    machine: Machine = field(default_factory=Machine)
    verifier: Verifier = field(default_factory=Verifier)
    agent_timeout: float | None = None
    agent_user: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    steps: tuple[StepSettings, ...] = ()
    reward_strategy: Literal["mean", "final"] = "mean"
    schema_version: str = "1.0"
    title: str | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


def parse(text: str, where: str) -> Settings:
    """Read a file's text; ``where`` names it in messages. Raises ``ConfigError``."""
    import tomllib

    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    unknown: dict[str, Any] = {}
    root = Table(values, "", where)
    old_version = root.text("version")
    agent, verifier = _section(root, "agent", where), _section(root, "verifier", where)
    solution, package = _section(root, "solution", where), _section(root, "task", where)
    environment = _section(root, "environment", where)
    metadata = _section(root, "metadata", where).rest
    timeout, user = agent.seconds("timeout_sec"), agent.user("user")
    general = _verifier(verifier, Verifier(), unknown, "verifier")
    artifacts = _artifacts(root, where)
    found = Settings(
        machine=_machine(environment, unknown, "environment"),
        verifier=general,
        agent_timeout=timeout,
        agent_user=user,
        metadata=metadata,
        solution_env=solution.environment(),
        artifacts=artifacts,
        steps=_steps(root, general, artifacts, unknown, where),
        reward_strategy=root.choice("multi_step_reward_strategy", "mean", "final") or "mean",
        schema_version=root.text("schema_version") or old_version or "1.0",
        title=package.text("name"),
        unknown=unknown,
    )
    for place, table in (("agent", agent), ("solution", solution), ("task", package), ("", root)):
        _note_rest(unknown, place, table)
    return found


def _section(root: Table, name: str, where: str) -> Table:
    return root.table(name) or Table({}, name, where)


def _note_rest(unknown: dict[str, Any], place: str, table: Table) -> None:
    for key, value in table.rest.items():
        unknown[f"{place}.{key}" if place else key] = value


def _machine(table: Table, unknown: dict[str, Any], place: str) -> Machine:
    allow_internet = table.boolean("allow_internet")
    network = table.choice("network_mode", "public", "no-network", "allowlist")
    hosts = table.texts("allowed_hosts")
    if network is None and allow_internet is not None:
        network = "public" if allow_internet else "no-network"
    if network is None and hosts:
        network = "allowlist"
    check = table.table("healthcheck")
    machine = Machine(
        docker_image=table.text("docker_image"),
        build_timeout=table.seconds("build_timeout_sec") or DEFAULT_TIMEOUT,
        cpus=table.number("cpus"),
        memory_mb=table.megabytes("memory_mb", "memory"),
        storage_mb=table.megabytes("storage_mb", "storage"),
        gpus=table.whole("gpus") or 0,
        env=table.environment(),
        network=network,
        allowed_hosts=hosts,
        healthcheck=_healthcheck(check, unknown, f"{place}.healthcheck") if check else None,
        workdir=table.text("workdir"),
        os=(table.text("os") or "linux").lower(),
    )
    _note_rest(unknown, place, table)
    return machine


def _healthcheck(table: Table, unknown: dict[str, Any], place: str) -> Healthcheck:
    command = table.text("command")
    default = Healthcheck("")
    retries, interval = table.whole("retries"), table.number("interval_sec")
    period, start = table.number("start_period_sec"), table.number("start_interval_sec")
    found = Healthcheck(
        command=command or "",
        interval=default.interval if interval is None else interval,
        timeout=table.seconds("timeout_sec") or default.timeout,
        start_period=default.start_period if period is None else period,
        start_interval=default.start_interval if start is None else start,
        retries=default.retries if retries is None else retries,
    )
    if not found.command:
        raise ConfigError(f"{table.where}: [{place}] needs a command")
    _note_rest(unknown, place, table)
    return found


def _verifier(table: Table, base: Verifier, unknown: dict[str, Any], place: str) -> Verifier:
    own = table.table("environment")
    machine = _machine(own, unknown, f"{place}.environment") if own else base.machine
    mode = table.choice("environment_mode", "shared", "separate")
    if mode == "shared" and own is not None:
        raise ConfigError(f"{table.where}: [{place}] is shared, so it has no environment of its own")
    env = table.environment()
    found = Verifier(
        timeout=table.seconds("timeout_sec") or base.timeout,
        env={**base.env, **env},
        user=table.user("user") or base.user,
        mode=mode or ("separate" if own is not None else base.mode),
        machine=None if mode == "shared" else machine,
        keep=table.choice("keep", "none", "listeners", "all") or base.keep,
    )
    _note_rest(unknown, place, table)
    return found


def _artifacts(table: Table, where: str) -> tuple[Artifact, ...]:
    found = []
    for entry in table.array("artifacts"):
        if isinstance(entry, str):
            found.append(Artifact(_source(entry, where)))
            continue
        inner = Table(entry, "artifacts", where)
        found.append(Artifact(_source(inner.text("source"), where), inner.texts("exclude")))
    return tuple(found)


def _source(path: str | None, where: str) -> str:
    if not path or ".." in path.split("/"):
        raise ConfigError(f"{where}: artifact source {path!r}; it must be a path without '..'")
    return path


def _steps(
    root: Table, general: Verifier, artifacts: tuple[Artifact, ...], unknown: dict[str, Any], where: str
) -> tuple[StepSettings, ...]:
    found: list[StepSettings] = []
    for number, table in enumerate(root.tables("steps")):
        place = f"steps.{number}"
        name = table.text("name") or ""
        if not name or "/" in name or name in (".", "..") or name in [step.name for step in found]:
            raise ConfigError(f"{where}: {place} has the name {name!r}; each step needs one of its own")
        agent = table.table("agent") or Table({}, f"{place}.agent", where)
        verifier = table.table("verifier") or Table({}, f"{place}.verifier", where)
        check = table.table("healthcheck")
        found.append(
            StepSettings(
                name=name,
                agent_timeout=agent.seconds("timeout_sec"),
                agent_user=agent.user("user"),
                verifier=_verifier(verifier, general, unknown, f"{place}.verifier"),
                min_reward=table.reward("min_reward"),
                healthcheck=_healthcheck(check, unknown, f"{place}.healthcheck") if check else None,
                artifacts=(*artifacts, *_artifacts(table, where)),
            )
        )
        _note_rest(unknown, f"{place}.agent", agent)
        _note_rest(unknown, place, table)
    return tuple(found)
