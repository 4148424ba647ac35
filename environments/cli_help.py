"""The help pages of an environment's command line."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from environments.config import BaseEnvConfig, HermesAgentEnvConfig
from environments.configuration import Effective, EnvironmentClass, Flag, Subcommand, resolve
from environments.configuration.fields import SECRET, describe, hide_secrets, is_secret
from environments.configuration.validation import CONFIG_INIT, DEFAULT
from environments.errors import ConfigError

WORKFLOWS: dict[Subcommand, str] = {
    "serve": "Roll out for a trainer: register with the trajectory API and send it scored groups.",
    "process": "Roll out and save scored trajectories as JSON lines (data for SFT).",
    "evaluate": "Run all evaluation items, compute the metrics, save one record per sample.",
}
_GENERAL = (
    ("--config FILE", "YAML with the sections env: and openai:. Repeatable, a later file wins. 'default' is "
     "the default.yaml beside the environment."),
    ("--print-config", "Print the effective configuration and where each value comes from; run nothing."),
    ("--log-level LEVEL", "DEBUG, INFO, WARNING or ERROR (default: INFO)."),
    ("-h, --help", "Show this page."),
)  # fmt: skip
_LONGEST_DEFAULT = 60


def usage(cls: EnvironmentClass, program: str) -> str:
    """The page that is shown without a subcommand."""
    width = max(map(len, WORKFLOWS))
    lines = [f"usage: {program} {{{','.join(WORKFLOWS)}}} [options]", ""]
    if summary := summary_of(cls):
        lines += [summary, ""]
    lines += [f"  {name:<{width}}  {text}" for name, text in WORKFLOWS.items()]
    lines += ["", f"'{program} evaluate --help' lists the options of a subcommand with their defaults."]
    return "\n".join(lines) + "\n"


def page(
    cls: EnvironmentClass, subcommand: Subcommand, program: str, configs: Sequence[str], flags: Sequence[Flag]
) -> str:
    """Every option of one subcommand, with the defaults that this environment, the files and flags give."""
    note = ""
    try:
        effective = resolve(cls, subcommand, config=configs, flags=flags)
    except ConfigError as error:
        note = f"The options given are not valid, the defaults without them are shown. {error}\n\n"
        effective = resolve(cls, subcommand)
    width = min(shutil.get_terminal_size((100, 24)).columns, 140)
    lines = [f"usage: {program} {subcommand} [--config FILE] [--env.FIELD VALUE] [--openai.FIELD VALUE]", ""]
    lines += textwrap.wrap(WORKFLOWS[subcommand], width)
    lines += textwrap.wrap(
        "Options win over YAML files, those over the environment's own configuration. Lists are written a,b "
        "or as JSON, mappings as JSON; a boolean without a value means true; none unsets an optional one.",
        width,
    )
    lines += ["", note + "General"]
    for option, text in _GENERAL:
        lines += _entry(option, text, width)
    for title, rows in _groups(cls, effective):
        lines += ["", title]
        for option, text in rows:
            lines += _entry(option, text, width)
    return "\n".join(lines) + "\n"


def summary_of(cls: Any) -> str:
    """First line of the class's own docstring."""
    text = (vars(cls).get("__doc__") or "").strip()
    return text.splitlines()[0] if text else ""


def _groups(cls: EnvironmentClass, effective: Effective) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    model = type(effective.env)
    agent = HermesAgentEnvConfig if issubclass(model, HermesAgentEnvConfig) else BaseEnvConfig
    base_names, agent_names = set(BaseEnvConfig.model_fields), set(agent.model_fields)
    groups: list[tuple[str, list[str]]] = [
        (f"{cls.__name__}", [n for n in model.model_fields if n not in agent_names]),
        ("Agent", [n for n in agent.model_fields if n not in base_names]),
        ("All environments", [n for n in model.model_fields if n in base_names]),
    ]
    for title, names in groups:
        if names:
            yield title, [_row(effective.env, "env", "env", n, effective) for n in names]
    server = effective.servers[0]
    count = len(effective.servers)
    title = "Model server" if count == 1 else f"Model servers (the first of {count}; options count for all)"
    yield title, [_row(server, "openai", "openai[0]", n, effective) for n in type(server).model_fields]


def _row(model: BaseModel, section: str, prefix: str, name: str, effective: Effective) -> tuple[str, str]:
    field = type(model).model_fields[name]
    origin = effective.origins[f"{prefix}.{name}"]
    value = getattr(model, name)
    shown = SECRET if value and is_secret(name, value, field) else _default(value)
    source = "" if origin in (DEFAULT, CONFIG_INIT) else f", from {origin}"
    text = f"{field.description or ''} (default: {shown}{source})".strip()
    return f"--{section}.{name} {describe(field.annotation)}", text


def _default(value: Any) -> str:
    value = hide_secrets(value)
    if value is None or value == "":
        return "none" if value is None else "empty"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_DEFAULT else text[: _LONGEST_DEFAULT - 3] + "..."


def _entry(option: str, text: str, width: int) -> list[str]:
    """An option, its text beside it or, where the option is long, below it."""
    column = 36
    body = textwrap.wrap(text, max(width - column, 24), break_on_hyphens=False) or [""]
    first = f"  {option}"
    if len(first) < column - 1:
        return [f"{first:<{column}}{body[0]}", *(" " * column + line for line in body[1:])]
    return [first, *(" " * column + line for line in body)]
