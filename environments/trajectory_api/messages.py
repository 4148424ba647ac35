"""What trainers and environments send besides groups. The first fields are those of Atropos."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Registration(BaseModel):
    """A trainer's ``/register``."""

    model_config = ConfigDict(defer_build=True)

    wandb_group: str
    wandb_project: str
    batch_size: int = Field(ge=1)
    max_token_len: int
    checkpoint_dir: str
    save_checkpoint_interval: int
    starting_step: int = Field(ge=0)
    num_steps: int
    max_staleness: int | None = Field(default=None, ge=0)
    """Versions of the policy that a group may lag behind; older groups are not handed out."""
    rollout_ids: bool = False
    """The trainer understands several rows of one rollout."""


class RegisterEnv(BaseModel):
    """An environment's ``/register-env``."""

    model_config = ConfigDict(defer_build=True)

    max_token_length: int
    desired_name: str = "env"
    weight: float = Field(default=1.0, allow_inf_nan=False)
    group_size: int = Field(ge=1)
    min_batch_allocation: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    instance: str | None = Field(default=None, max_length=300)
    """Name of this environment's run: the same one gets its old id and name back after a restart."""

    @field_validator("desired_name", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return "env" if value is None else value  # original environments without a name send null


class EnvIdentifier(BaseModel):
    """Which environment speaks."""

    model_config = ConfigDict(defer_build=True)

    env_id: int
