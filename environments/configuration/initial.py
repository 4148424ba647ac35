"""What an environment class starts from: the result of its ``config_init()``, whatever form it has.

The original's environments return a list of servers, a single server, or objects of the ``atroposlib``
package where that is installed. All of them become settings for our own models here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from environments.config import APIServerConfig, BaseEnvConfig, ServerBaseline
from environments.configuration.validation import CONFIG_INIT, Setting, Settings
from environments.errors import ConfigError


class EnvironmentClass(Protocol):
    """What configuration needs to know of an environment class."""

    __name__: str
    __module__: str
    name: str | None
    env_config_cls: type[BaseEnvConfig]

    def config_init(self) -> tuple[Any, Any]:
        """A class method: the configuration and the servers that the environment comes with."""
        ...


@dataclass(frozen=True)
class Source:
    """A model class and the settings that stand for it so far."""

    model: type[BaseModel]
    settings: Settings


def initial(cls: EnvironmentClass) -> tuple[Source, list[Source]]:
    """Call ``config_init()`` and take what it set.

    Raises ConfigError where it returns something else than a configuration and servers.
    """
    try:
        returned = cls.config_init()
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        lines = [f"{'.'.join(str(part) for part in d['loc'])}: {d['msg']}" for d in details]
        text = "\n".join(f"{cls.__name__}.config_init(): {error.title} {line}" for line in lines)
        raise ConfigError(text) from error
    if not (isinstance(returned, tuple | list) and len(returned) == 2):
        raise ConfigError(f"{cls.__name__}.config_init() must return (env_config, server_configs)")
    env, servers = returned
    entries = list(servers) if isinstance(servers, list | tuple) else [] if servers is None else [servers]
    env_model = cls.env_config_cls
    return (
        _source(env, env_model, BaseEnvConfig, f"{cls.__name__}.config_init()"),
        [_source(s, APIServerConfig, ServerBaseline, f"{cls.__name__}.config_init()") for s in entries]
        or [Source(APIServerConfig, {})],
    )


def _source(given: Any, model: type[BaseModel], ours: type[BaseModel], who: str) -> Source:
    if isinstance(given, model):
        return Source(type(given), _settings(given, given.model_fields_set))
    if isinstance(given, ours):
        lacking = set(given.model_fields_set) - set(model.model_fields)
        if lacking:
            names = ", ".join(sorted(lacking))
            raise ConfigError(
                f"{who} returns a {type(given).__name__}, but env_config_cls is {model.__name__}, "
                f"which has no {names}"
            )
        return Source(model, _settings(given, given.model_fields_set))
    if hasattr(given, "model_dump"):
        return Source(model, _settings(given, set(_meant(given)) & set(model.model_fields), foreign=True))
    raise ConfigError(f"{who} returns {type(given).__name__} where a {model.__name__} belongs")


def _settings(given: Any, names: Iterable[str], *, foreign: bool = False) -> Settings:
    """The named attributes; enums of another package travel as their values."""
    known = list(type(given).model_fields)
    values = {name: getattr(given, name) for name in sorted(names, key=known.index)}
    if foreign:
        values = {name: v.value if isinstance(v, Enum) else v for name, v in values.items()}
    return {name: Setting(value, CONFIG_INIT) for name, value in values.items()}


def _meant(given: Any) -> list[str]:
    """The fields of a foreign model that were set, or that differ from its own defaults."""
    return [
        name
        for name, field in type(given).model_fields.items()
        if name in given.model_fields_set
        or getattr(given, name) != field.get_default(call_default_factory=True)
    ]
