"""The effective configuration as YAML: readable, usable again with ``--config``, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from pydantic import BaseModel

from environments.configuration.fields import hide_secrets, is_secret
from environments.configuration.resolution import Effective

_PLAIN = re.compile(r"[A-Za-z_./][\w./@+-]*")
_ONE_VARIABLE = re.compile(r"\$\{\w+\}")


def render(effective: Effective) -> str:
    """YAML with the origin of each value as a comment; secrets that are set are left out and say so.

    A value that a file spells with ``${VAR}`` is spelled that way again.
    """
    lines = ["env:", *_section(effective.env, "env", "  ", effective)]
    several = len(effective.servers) > 1
    lines.append("openai:")
    for index, server in enumerate(effective.servers):
        entry = list(_section(server, f"openai[{index}]", "    " if several else "  ", effective))
        lines += ["  -", *entry] if several else entry
    return "\n".join(lines) + "\n"


def _section(model: BaseModel, prefix: str, indent: str, effective: Effective) -> Iterator[str]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        origin = effective.origins.get(f"{prefix}.{name}", "")
        written = effective.written.get(f"{prefix}.{name}")
        comment = f"  # {origin}" if origin else ""
        secret = is_secret(name, value, field) or (isinstance(value, str) and hide_secrets(value) != value)
        if secret and not _is_variable(written):
            yield f"{indent}# {name}: {'set, not shown' if value else 'not set'}{comment}"
            continue
        text = _yaml(_publishable(value) if written is None else _publishable(written, as_written=True))
        yield f"{indent}{name}: {text}{comment}"


def _is_variable(written: Any) -> bool:
    """Whether a spelling is only the name of a variable, so that it tells no secret."""
    return isinstance(written, str) and _ONE_VARIABLE.fullmatch(written) is not None


def _publishable(value: Any, *, as_written: bool = False) -> Any:
    """Plain data without the keys that hold secrets.

    ``${VAR}`` that is meant as text is escaped, so that it is not substituted when the file is read again;
    with ``as_written`` it is meant as a variable and stays, under a secret's key as well.
    """
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {
            str(key): _publishable(item, as_written=as_written)
            for key, item in value.items()
            if not is_secret(str(key), item) or (as_written and _is_variable(item))
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_publishable(item, as_written=as_written) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if as_written:
        return str(value)
    return str(hide_secrets(str(value))).replace("${", "$${")


def _yaml(value: Any) -> str:
    """One value on one line."""
    import yaml

    if isinstance(value, dict):
        return "{" + ", ".join(f"{_yaml(str(k))}: {_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    style = '"' if isinstance(value, str) else None
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() != "none":
        resolved = yaml.SafeLoader("").resolve(yaml.ScalarNode, value, (True, False))  # type: ignore[no-untyped-call]
        style = None if resolved.endswith(":str") else '"'
    text: str = yaml.safe_dump(value, default_style=style, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
