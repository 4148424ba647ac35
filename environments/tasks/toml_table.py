"""Typed reading of TOML tables that says where a wrong value stands and keeps what it does not know."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from environments.errors import ConfigError

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)I?B?\s*", re.IGNORECASE)
_MEGABYTES = {"": 1 / 1024**2, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}

_MOST = 1e9
"""Thirty years of seconds: more is a mistake, and no clock of an engine takes it."""


class Table:
    """One table of a file. Reading a key takes it out; ``rest`` is what nobody asked for."""

    def __init__(self, values: Any, place: str, where: str) -> None:
        """``place`` is the table's name, ``where`` names the file in messages."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: [{place}] must be a table, not {type(values).__name__}")
        self._values = dict(values)
        self._place = place
        self.where = where

    @property
    def rest(self) -> dict[str, Any]:
        """Keys that were not read."""
        return dict(self._values)

    def table(self, name: str) -> Table | None:
        """A table inside, None where it is missing."""
        value = self._values.pop(name, None)
        return None if value is None else Table(value, self._name(name), self.where)

    def tables(self, name: str) -> list[Table]:
        """An array of tables."""
        return [Table(value, self._name(name), self.where) for value in self.array(name)]

    def array(self, name: str) -> list[Any]:
        """An array of anything; empty where it is missing."""
        value = self._values.pop(name, None)
        if value is not None and not isinstance(value, list):
            raise self._wrong(name, value, "an array")
        return list(value or [])

    def text(self, name: str) -> str | None:
        """A string."""
        value = self._values.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value or None

    def user(self, name: str) -> str | None:
        """A user's name or number."""
        value = self._values.pop(name, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
            raise self._wrong(name, value, "a user name or number")
        return None if value in (None, "") else str(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """An array of strings."""
        values = self.array(name)
        for value in values:
            if not isinstance(value, str):
                raise self._wrong(name, value, "an array of strings")
        return tuple(values)

    def environment(self, name: str = "env") -> dict[str, str]:
        """A table of variables; numbers become text."""
        value = self._values.pop(name, None) or {}
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "a table")
        for item in value.values():
            if not isinstance(item, str | int | float):
                raise self._wrong(name, item, "a table of strings")
        return {str(key): _text(item) for key, item in value.items()}

    def number(self, name: str, *, least: float = 0.0) -> float | None:
        """A finite number of at least ``least``."""
        value = self._values.pop(name, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, value, "a number")
        if value < least:
            raise self._wrong(name, value, f"at least {least:g}")
        return float(value)

    def seconds(self, name: str) -> float | None:
        """A number of seconds above 0, and no more than makes sense."""
        value = self.number(name)
        if value is not None and not 0 < value <= _MOST:
            raise self._wrong(name, value, f"above 0 and at most {_MOST:g}")
        return value

    def whole(self, name: str, *, least: int = 0) -> int | None:
        """A whole number of at least ``least``."""
        value = self.number(name, least=least)
        if value is not None and value != int(value):
            raise self._wrong(name, value, "a whole number")
        return None if value is None else int(value)

    def megabytes(self, name: str, old_name: str) -> int | None:
        """A size: a number of megabytes, or text such as ``2G`` under the key of old files."""
        old = self._values.pop(old_name, None)
        found = self.whole(name, least=1)
        if old is None:
            return found
        size = parse_size(str(old))
        if size is None:
            raise self._wrong(old_name, old, "a size such as 512M or 2G")
        if found is not None and found != size:
            raise ConfigError(
                f"{self.where}: {self._name(name)} is {found} and {self._name(old_name)} is {old!r}: "
                "they contradict each other"
            )
        return size

    def boolean(self, name: str) -> bool | None:
        """True or false."""
        value = self._values.pop(name, None)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def choice(self, name: str, *known: str) -> Any:
        """One of some words."""
        value = self._values.pop(name, None)
        if value is not None and value not in known:
            raise self._wrong(name, value, f"one of {', '.join(known)}")
        return value

    def reward(self, name: str) -> float | dict[str, float] | None:
        """A number, or a table of them."""
        value = self._values.get(name)
        if not isinstance(value, Mapping):
            return self.number(name, least=-math.inf)
        inner = Table(self._values.pop(name), self._name(name), self.where)
        found = {key: inner.number(key, least=-math.inf) for key in value}
        return {key: number for key, number in found.items() if number is not None}

    def _name(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _wrong(self, name: str, value: Any, wanted: str) -> ConfigError:
        return ConfigError(f"{self.where}: {self._name(name)} = {value!r}; it must be {wanted}")


def parse_size(text: str) -> int | None:
    """Megabytes of ``512M``, ``2G``, ``1.5GiB``; None for what is no size.

    >>> parse_size("2G")
    2048
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    size = float(found[1]) * _MEGABYTES[found[2].upper()]
    return math.ceil(size) if size > 0 else None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
