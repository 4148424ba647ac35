"""An environment class as the configuration sees it: four attributes, no base class."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.configuration import Effective


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark-blue"


class FakeConfig(HermesAgentEnvConfig):
    """A field of each kind."""

    presets: list[str] = Field(["fast_test", "medium"], description="Presets to play.")
    seeds: list[int] = Field([1, 2], description="Seeds to play.")
    weights: list[float] | None = None
    colour: Colour = Colour.RED
    colours: list[Colour] = []
    mode: Literal["fast", "slow"] | None = None
    level: Literal[1, 2, 3] = 1
    ratio: float = Field(0.5, ge=0, le=1)
    offset: int = 0
    scale: float = 1.0
    note: str = ""
    title: str | None = None
    flag: bool = False
    maybe: bool | None = None
    table: dict[str, int] | None = None
    anything: dict[str, Any] | None = None
    folder: Path | None = None


class FakeEnv:
    """Plays a game.

    More words.
    """

    name: str | None = "fake"
    env_config_cls = FakeConfig
    initial_env: dict[str, Any] = {"group_size": 3, "wandb_name": "fake-run"}
    initial_servers: Any = [APIServerConfig(model_name="m", base_url="http://x/v1", api_key="sk-secret")]
    ran: list[tuple[str, Effective]] = []

    @classmethod
    def config_init(cls) -> tuple[Any, Any]:
        return cls.env_config_cls(**cls.initial_env), cls.initial_servers

    @classmethod
    def run_command(cls, subcommand: str, effective: Effective) -> Any:
        cls.ran.append((subcommand, effective))
        return 0


def fake(
    env: dict[str, Any] | None = None, servers: Any = None, *, name: str | None = "fake", **attributes: Any
) -> Any:
    """A new environment class whose config_init returns these."""
    given = {"initial_env": env or {}, "name": name, "ran": [], "__module__": __name__, **attributes}
    given["initial_servers"] = [APIServerConfig()] if servers is None else servers
    return type("OtherEnv", (FakeEnv,), given)


def run(cls: Any, argv: Sequence[str]) -> tuple[int, Effective | None]:
    """The exit code of a command line and the configuration that the run got."""
    from environments.cli import main

    cls.ran.clear()
    code = main(cls, argv, program="fake.py")
    return code, cls.ran[-1][1] if cls.ran else None
