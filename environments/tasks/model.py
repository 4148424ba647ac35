"""What a task in the Harbor format says, as plain values.

A task has one or several *steps*; a task without ``[[steps]]`` has a single one whose directory is the
task's own. Times are seconds, sizes megabytes. What a file says beyond the known keys is kept in
``unknown``, by section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Network = Literal["public", "no-network", "allowlist"]
VerifierMode = Literal["shared", "separate"]
Keep = Literal["none", "listeners", "all"]

DEFAULT_TIMEOUT = 600.0
"""Seconds of a build and of a verifier where the task does not say."""

ARTIFACTS_DIRECTORY = "/logs/artifacts"
"""What an agent puts there is an artifact without being declared."""


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """A command that tells whether a machine is ready, as Docker's ``HEALTHCHECK``."""

    command: str
    interval: float = 5.0
    timeout: float = 30.0
    start_period: float = 0.0
    start_interval: float = 5.0
    retries: int = 3


@dataclass(frozen=True, slots=True)
class Machine:
    """What an ``[environment]`` table asks for. None means that it does not say."""

    docker_image: str | None = None
    build_timeout: float = DEFAULT_TIMEOUT
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    network: Network | None = None
    allowed_hosts: tuple[str, ...] = ()
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    os: str = "linux"


@dataclass(frozen=True, slots=True)
class Verifier:
    """How a step is graded. ``machine`` is the separate verifier's own, None for a copy of the task's.
    ``timeout`` is None where the task does not say."""

    timeout: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    mode: VerifierMode = "shared"
    machine: Machine | None = None
    keep: Keep | None = None
    """What of the agent's processes may live on while it runs; a key of ours, ``listeners`` if unset."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or directory that is carried to a separate verifier."""

    source: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of work with its own instruction and tests. ``name`` is empty where it is the only one."""

    name: str
    directory: Path
    instruction: str
    agent_timeout: float | None = None
    agent_user: str | None = None
    verifier: Verifier = field(default_factory=Verifier)
    min_reward: float | Mapping[str, float] | None = None
    """Rewards below which the steps after it are not begun."""
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()
    shared_tests: Path | None = None
    """The task's own ``tests`` directory, which a step without tests of its own is graded with."""

    @property
    def tests(self) -> Path:
        """Directory that becomes ``/tests``."""
        own = self.directory / "tests"
        return own if self.shared_tests is None or own.is_dir() else self.shared_tests

    @property
    def test_script(self) -> Path:
        """The script that grades."""
        return self.tests / "test.sh"

    @property
    def solution(self) -> Path:
        """Directory that becomes ``/solution`` for the oracle."""
        return self.directory / "solution"

    @property
    def solve_script(self) -> Path:
        """What the oracle runs."""
        return self.solution / "solve.sh"

    @property
    def workdir_files(self) -> Path:
        """Files that are put into the working directory before the step begins."""
        return self.directory / "workdir"


@dataclass(frozen=True, slots=True)
class Task:
    """One task. ``digest`` is a hash of everything in its directory."""

    name: str
    directory: Path
    steps: tuple[Step, ...]
    machine: Machine = field(default_factory=Machine)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)
    reward_strategy: Literal["mean", "final"] = "mean"
    """How the rewards of several steps become one."""
    schema_version: str = "1.0"
    unknown: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    @property
    def multi_step(self) -> bool:
        """Whether its steps have names."""
        return bool(self.steps[0].name)

    @property
    def environment_directory(self) -> Path:
        """Where its ``Dockerfile`` is."""
        return self.directory / "environment"

    @property
    def dockerfile(self) -> Path | None:
        """Its ``Dockerfile``, None where there is none."""
        path = self.environment_directory / "Dockerfile"
        return path if path.is_file() else None

    @property
    def compose_file(self) -> Path | None:
        """Its description of several containers, None where there is none."""
        names = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
        return next((path for name in names if (path := self.environment_directory / name).is_file()), None)

    @property
    def category(self) -> str | None:
        """Category of its metadata."""
        found = self.metadata.get("category")
        return str(found) if found else None

    @property
    def difficulty(self) -> str | None:
        """Difficulty of its metadata."""
        found = self.metadata.get("difficulty")
        return str(found) if found else None
