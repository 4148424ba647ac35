"""The effective configuration of a run: what wins, and where each value came from.

Precedence, highest first: command line (or the arguments of ``resolve``), YAML files (a later one over an
earlier one), what the workflow changes, ``config_init()``, the defaults of the class.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from environments.config import APIServerConfig, BaseEnvConfig
from environments.configuration.fields import read_native, read_text
from environments.configuration.initial import EnvironmentClass, Source, initial
from environments.configuration.validation import (
    CONFIG_INIT,
    DEFAULT,
    Problems,
    Setting,
    Settings,
    near_names,
    validate,
)
from environments.configuration.yaml_file import find_config, read_config
from environments.errors import ConfigError

Subcommand = Literal["serve", "process", "evaluate"]
ConfigFiles = str | Path | Sequence[str | Path] | None


class Flag(NamedTuple):
    """One ``--section.name text`` of the command line."""

    section: Literal["env", "openai"]
    name: str
    text: str


@dataclass(frozen=True)
class Effective:
    """The configuration that a run uses.

    ``origins`` maps ``env.<field>`` and ``openai[<index>].<field>`` to where the value came from: a flag,
    ``file:line``, ``argument``, the name of the workflow, ``config_init`` or ``default``. ``written`` has
    the values that a file spells with ``${VAR}``, as they are spelled there.
    """

    env: BaseEnvConfig
    servers: list[APIServerConfig]
    origins: dict[str, str]
    written: dict[str, Any] = field(default_factory=dict)


def resolve(
    cls: EnvironmentClass,
    subcommand: Subcommand,
    *,
    env: Mapping[str, Any] | None = None,
    openai: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    config: ConfigFiles = None,
    flags: Sequence[Flag] = (),
) -> Effective:
    """The effective configuration of ``cls`` for one workflow.

    ``env`` and ``openai`` override like flags do, with Python values: one mapping for ``openai`` counts
    for every server, a list describes the servers like a list in YAML. ``config`` names YAML files.
    ``flags`` is for the command line.

    Raises:
        ConfigError: with one line for each thing that is wrong.
    """
    problems = Problems()
    _check_arguments(env, openai)
    env_source, servers = initial(cls)
    settings = {**env_source.settings, **_workflow_settings(cls, subcommand, env_source.settings)}
    for path in [config] if isinstance(config, str | Path) else config or []:
        module_file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        found = read_config(find_config(path, module_file), env_source.model, servers[0].model, problems)
        settings |= found.env
        servers = _merge_servers(servers, found.servers)
    settings |= _arguments(env_source.model, "env", env or {}, problems)
    if isinstance(openai, Mapping):
        every = _arguments(servers[0].model, "openai", openai, problems)
        servers = [Source(s.model, s.settings | every) for s in servers]
    elif openai is not None:
        model = servers[0].model
        entries = [_arguments(model, f"openai[{i}]", o, problems) for i, o in enumerate(openai)]
        servers = _merge_servers(servers, entries)
    settings |= _read_flags(env_source.model, "env", flags, problems)
    for_servers = _read_flags(servers[0].model, "openai", flags, problems)
    servers = [Source(s.model, s.settings | for_servers) for s in servers]
    if subcommand == "evaluate":
        settings |= _evaluation_directory(cls, settings)
    return _build(Source(env_source.model, settings), servers, problems)


def _check_arguments(env: object, openai: object) -> None:
    """Raise ``ConfigError`` for arguments of a kind that no setting can be read from."""
    if env is not None and not isinstance(env, Mapping):
        raise ConfigError(f'env must be a mapping like {{"limit": 3}}, not {type(env).__name__}: {env!r:.80}')
    several = openai if isinstance(openai, Sequence) and not isinstance(openai, str | bytes) else [openai]
    for one in several:
        if one is not None and not isinstance(one, Mapping):
            raise ConfigError(
                'openai must be a mapping like {"model_name": "m"}, or a list of those, '
                f"not {type(one).__name__}: {one!r:.80}"
            )


def _build(env_source: Source, servers: list[Source], problems: Problems) -> Effective:
    env = validate(env_source.model, env_source.settings, "env", problems)
    sections = [f"openai[{i}]" if len(servers) > 1 else "openai" for i in range(len(servers))]
    built = [validate(s.model, s.settings, name, problems) for s, name in zip(servers, sections, strict=True)]
    problems.raise_if_any()
    origins: dict[str, str] = {}
    written: dict[str, Any] = {}
    for prefix, source in [("env", env_source), *((f"openai[{i}]", s) for i, s in enumerate(servers))]:
        for name in [*source.model.model_fields, *source.settings]:
            setting = source.settings.get(name)
            origins[f"{prefix}.{name}"] = setting.origin if setting else DEFAULT
            if setting and setting.written is not None:
                written[f"{prefix}.{name}"] = setting.written
    assert isinstance(env, BaseEnvConfig)
    return Effective(env, [s for s in built if isinstance(s, APIServerConfig)], origins, written)


def _workflow_settings(cls: EnvironmentClass, subcommand: str, initial_settings: Settings) -> Settings:
    """What ``process`` changes below YAML and the command line."""
    if subcommand != "process":
        return {}
    changed: dict[str, Any] = {"ensure_scores_are_not_same": False, "include_messages": True}
    path = initial_settings.get("data_path_to_save_groups")
    if path is None or path.value is None:
        changed["data_path_to_save_groups"] = f"data/{cls.name or cls.__name__}.jsonl"
    return {name: Setting(value, "process") for name, value in changed.items()}


def _evaluation_directory(cls: EnvironmentClass, settings: Settings) -> Settings:
    """Where ``evaluate`` saves unless someone said otherwise; an explicit none means nowhere."""
    given = settings.get("data_dir_to_save_evals")
    if given is not None and (given.value is not None or given.origin != CONFIG_INIT):
        return {}
    run = settings.get("wandb_name")
    name = run.value if run is not None and run.value else cls.name or cls.__name__
    return {"data_dir_to_save_evals": Setting(f"evals/{name}", "evaluate")}


def _merge_servers(below: list[Source], entries: list[Settings] | None) -> list[Source]:
    """Each entry over the server of the same index, else over the first; no section keeps all."""
    if not entries:
        return below
    bases = [below[i] if i < len(below) else below[0] for i in range(len(entries))]
    return [Source(b.model, b.settings | entry) for b, entry in zip(bases, entries, strict=True)]


def _arguments(
    model: type[BaseModel], section: str, values: Mapping[str, Any], problems: Problems
) -> Settings:
    """Python values; a string for a field that is no string is read like a flag's text."""
    found: Settings = {}
    for name, value in values.items():
        known = model.model_fields.get(name)
        if known is None and model.model_config.get("extra") != "allow":
            problems.add(f"unknown key {name!r} in {section}{near_names(name, model.model_fields)}")
            continue
        setting = Setting(value, "argument")
        try:
            read = read_native(known.annotation, value, quoted=True) if known else value
            found[name] = Setting(read, "argument")
        except ValueError as error:
            problems.bad_value(model, name, section, setting, str(error))
    return found


def _read_flags(model: type[BaseModel], section: str, flags: Sequence[Flag], problems: Problems) -> Settings:
    """The flags of one section; the last of a repeated flag counts."""
    found: Settings = {}
    last = {flag.name: flag for flag in flags if flag.section == section}
    for name, flag in last.items():
        origin = f"--{section}.{name}"
        if name not in model.model_fields:
            problems.add(f"unknown option {origin}{near_names(name, model.model_fields)}")
            continue
        try:
            found[name] = Setting(read_text(model.model_fields[name].annotation, flag.text), origin)
        except ValueError as error:
            problems.bad_value(model, name, section, Setting(flag.text, origin), str(error))
    return found
