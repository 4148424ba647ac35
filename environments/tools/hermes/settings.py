"""Where Hermes Agent is installed and what of it a run uses, as the configuration says."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from environments.errors import ConfigError

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class HermesSettings:
    """An installed Hermes Agent. Times are seconds."""

    python: str
    """The Python program of the virtual environment that it is installed in."""
    tools: tuple[str, ...] = ()
    """Tools and toolsets of it that the model gets."""
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables that it gets beside PATH and the like."""
    home: str | None = None
    """Its home directory (``HERMES_HOME``) for all rollouts; None: an empty one for each."""
    timeout: float = 300.0
    """Of one call."""
    start_timeout: float = 120.0
    """Until a process has loaded it, and has told its tools."""


def hermes_settings(config: HermesAgentEnvConfig) -> HermesSettings | None:
    """What a configuration says of it; None where it is not used. ``ConfigError`` for what cannot work."""
    if config.hermes_python is None:
        if config.hermes_tools:
            raise ConfigError(
                "hermes_tools needs --env.hermes_python PROGRAM: the Python of the virtual environment that "
                "Hermes Agent is installed in"
            )
        return None
    return HermesSettings(
        python=find_python(config.hermes_python),
        tools=tuple(dict.fromkeys(config.hermes_tools or ())),
        variables=_variables(config.hermes_variables or []),
        home=_home(config.hermes_home),
        timeout=config.hermes_timeout,
    )


def find_python(path: str) -> str:
    """The program that ``hermes_python`` names; the directory of a virtual environment will do."""
    where = Path(path).expanduser().absolute()  # not resolved: the link is what makes it that environment's
    if where.is_dir():
        where = where / "bin" / "python"
    if not where.is_file():
        raise ConfigError(f"--env.hermes_python {path!r}: there is no program {str(where)!r}")
    if not os.access(where, os.X_OK):
        raise ConfigError(f"--env.hermes_python {path!r}: {str(where)!r} cannot be run")
    return str(where)


def _variables(names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        if not _VARIABLE.match(name):
            raise ConfigError(
                f"hermes_variables are names such as XAI_API_KEY, not {name.partition('=')[0]!r}"
            )
        if name not in os.environ:
            raise ConfigError(f"hermes_variables names {name}, which is not set")
        found[name] = os.environ[name]
    return found


def _home(path: str | None) -> str | None:
    if path is None:
        return None
    where = Path(path).expanduser().absolute()
    if not where.is_dir():
        raise ConfigError(f"--env.hermes_home {path!r}: there is no directory {str(where)!r}")
    return str(where)
