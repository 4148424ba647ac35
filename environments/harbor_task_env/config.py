"""Settings of environments over task directories."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, FiniteFloat, model_validator

from environments.config import HermesAgentEnvConfig

SYSTEM_PROMPT = (
    "You work in a Linux machine through a terminal. Do what the task asks for, completely and by yourself: "
    "nobody answers questions. Look at what is there before you change it, check what you have done, and "
    "stop when it is finished."
)
TERMINAL_AGENT: dict[str, Any] = {
    "enabled_toolsets": ["terminal", "file"],
    "max_agent_turns": 60,
    "max_token_length": 32000,
    "system_prompt": SYSTEM_PROMPT,
    "terminal_timeout": 300,
}
"""Initial settings of every environment over such tasks."""

MOST_SECONDS = 1e7
"""Largest time-out where a task names none: four months."""
MOST_TIMES = 1000.0
"""Largest multiplier: more is a mistake."""


def _times(description: str) -> Any:
    return Field(default=1.0, gt=0, le=MOST_TIMES, description=description)


_WITHOUT_EFFECT: dict[str, Any] = {"result_affecting": False}


class HarborTaskEnvConfig(HermesAgentEnvConfig):
    """What tasks there are, and how much of what they ask for they get."""

    dataset_name: str | None = Field(
        default=None,
        description="Tasks: a directory, a .jsonl or .parquet file, a git URL (#subdirectory), or a dataset "
        "of the Hub.",
    )
    dataset_revision: str | None = Field(
        default=None, description="Commit, tag or branch of a repository or Hub dataset; unset: the newest."
    )
    task_filter: list[str] | None = Field(
        default=None, description="Only tasks that match one of these globs."
    )
    skip_tasks: list[str] | None = Field(default=None, description="No tasks that match one of these globs.")
    task_images: Literal["own", "replay"] = Field(
        default="own",
        description="own: each task's image. replay: carry out its Dockerfile (COPY, ENV, WORKDIR, RUN) in a "
        "sandbox of the backend's default image, or of this machine.",
    )
    force_build: bool = Field(
        default=False, description="Build a task's Dockerfile although the task names a ready image."
    )
    task_cache: str | None = Field(
        default=None,
        description="Where tasks of tables and repositories are kept; unset: in the user's cache directory.",
        json_schema_extra=_WITHOUT_EFFECT,
    )
    task_timeout: float = Field(
        default=1800, gt=0, le=MOST_SECONDS, description="Seconds for the agent where the task does not say."
    )
    test_timeout: float = Field(
        default=600, gt=0, le=MOST_SECONDS, description="Seconds for the tests where the task does not say."
    )
    agent_timeout_multiplier: float = _times("Times the agent's seconds.")
    verifier_timeout_multiplier: float = _times("Times the tests' seconds.")
    cpus_multiplier: float = _times("Times the CPUs a task asks for.")
    memory_multiplier: float = _times("Times the memory a task asks for.")
    max_concurrent_tasks: int = Field(
        default=8, ge=1, description="Sandboxes created at the same time; bounds no rollouts."
    )
    eval_concurrency: int = Field(
        default=0, ge=0, description="Rollouts in flight during evaluate; 0: all at once."
    )
    sandbox_network: Literal["none", "public"] = Field(
        default="public", description="Network of the sandbox where the task does not say."
    )
    reward_timeout: FiniteFloat | None = Field(
        default=None, gt=0, description="Seconds for a whole grading; unset: the tests' own time alone."
    )
    verifier_error_retries: int = Field(
        default=1, ge=0, description="New gradings after a failure of the verifier."
    )

    @model_validator(mode="after")
    def _bound_creation(self) -> HarborTaskEnvConfig:
        if "sandbox_creation_concurrency" not in self.model_fields_set:
            self.__dict__["sandbox_creation_concurrency"] = self.max_concurrent_tasks
        return self
