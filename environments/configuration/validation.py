"""From settings with their origins to a validated model, with every problem told in one clear line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from environments.configuration.fields import SECRET, expectation, hide_secrets, is_secret
from environments.errors import ConfigError, suggestion

DEFAULT = "default"
CONFIG_INIT = "config_init"
_SHOWN_LENGTH = 80
_FEW = 8

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Setting:
    """One value and where it came from.

    ``written`` is how a configuration file spells it where it uses ``${VAR}``: shown instead of the
    value, which may be a secret.
    """

    value: Any
    origin: str
    written: Any = None


Settings = dict[str, Setting]
"""Field name to setting, one section of the configuration."""


@dataclass
class Problems:
    """Collects what is wrong, so that a user hears of everything at once."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Note one problem; the same one twice counts once."""
        if line not in self.lines:
            self.lines.append(line)

    def bad_value(self, model: type[BaseModel], name: str, section: str, setting: Setting, hint: str) -> None:
        """Note a value that its field does not accept; ``hint`` adds what the type alone does not say."""
        known = model.model_fields.get(name)
        secret = is_secret(name, setting.value, known)
        given = SECRET if secret else _shorten(hide_secrets(_spelled(setting)))
        label, place = f"{section}.{name}", f" ({setting.origin})"
        if setting.origin.startswith("--"):
            label, place = setting.origin, " (command line)"
        expected = f"expected {expectation(known)}, " if known else ""
        tail = f": {hint}" if hint and not secret else ""
        self.add(f"{label}: {expected}got {given}{tail}{place}")

    def raise_if_any(self) -> None:
        """Raises ConfigError with one line per problem."""
        if self.lines:
            raise ConfigError("\n".join(self.lines))


def near_names(name: str, known: Iterable[str]) -> str:
    """Like ``suggestion``, but a whole page of names is left to ``--help``."""
    names = list(known)
    text = suggestion(name, names)
    return "; --help lists them all" if len(names) > _FEW and "did you mean" not in text else text


def validate(
    model: type[Model], settings: Mapping[str, Setting], section: str, problems: Problems
) -> Model | None:
    """Build the model. Returns None, with the problems noted, where pydantic refuses."""
    try:
        return model.model_validate({name: setting.value for name, setting in settings.items()})
    except ValidationError as error:
        told: set[Any] = set()
        for detail in error.errors(include_url=False):
            name = str(detail["loc"][0]) if detail["loc"] else None
            if name in told:  # a union reports once for each of its arms
                continue
            told.add(name)
            _tell(model, settings, section, problems, name, dict(detail))
        return None


def _tell(
    model: type[BaseModel],
    settings: Mapping[str, Setting],
    section: str,
    problems: Problems,
    name: str | None,
    detail: dict[str, Any],
) -> None:
    reason = str(detail.get("ctx", {}).get("error", detail["msg"]))
    if name is None:
        problems.add(f"{section}: {reason}")
    elif name not in settings:
        required = detail["type"] == "missing"
        problems.add(f"--{section}.{name}: {'a value is required' if required else reason}")
    else:
        own_check = detail["type"] in ("value_error", "assertion_error")
        path = "".join(f"[{part!r}]" for part in detail["loc"][1:] if not _names_type(part))
        hint = f"{path}: {reason}" if path else reason if own_check else _quote_hint(detail)
        problems.bad_value(model, name, section, settings[name], hint.lstrip(": "))


def _names_type(part: Any) -> bool:
    """Whether a part of pydantic's location is an arm of a union, not an index or a key."""
    return isinstance(part, str) and ("[" in part or part in ("int", "str", "float", "bool", "none"))


def _quote_hint(detail: dict[str, Any]) -> str:
    if detail["type"] == "string_type" and isinstance(detail.get("input"), int | float):
        return "put it in quotes"
    return ""


def _spelled(setting: Setting) -> Any:
    return setting.value if setting.written is None else setting.written


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."
