"""Turn any value into plain JSON data, the same way every time.

The result is used for hashing, for comparing configurations, and for writing records that hold
something JSON has no word for. Nothing in it depends on memory addresses or hash seeds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

MAX_DEPTH = 120
"""Deeper nesting is cut: JSON readers give up at about 200 levels."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain(value: Any) -> Any:
    """JSON data for any value; what is no data becomes its type and attributes, or its repr."""
    return _plain(value, 0, frozenset())


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no blanks, ASCII only."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of a value's canonical JSON.

    >>> content_hash({"b": 1, "a": 2}) == content_hash({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()[:16]


def _plain(value: Any, depth: int, parents: frozenset[int]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, depth, parents)
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, PurePath):
        return valid_text(str(value))
    if depth >= MAX_DEPTH:
        return "(nested too deeply)"
    if id(value) in parents:
        return "(refers to itself)"
    return _container(value, depth + 1, parents | {id(value)})


def _container(value: Any, depth: int, parents: frozenset[int]) -> Any:
    if isinstance(value, Mapping):
        return {valid_text(str(key)): _plain(item, depth, parents) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth, parents) for item in value]
    if isinstance(value, set | frozenset):
        items = [_plain(item, depth, parents) for item in value]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), depth, parents) for f in dataclasses.fields(value)}
    for method in ("model_dump", "tolist", "isoformat"):  # pydantic, numpy, datetime
        convert = getattr(value, method, None)
        if callable(convert) and not isinstance(value, type):
            return _plain(convert(), depth, parents)
    return _opaque(value, depth, parents)


def _opaque(value: Any, depth: int, parents: frozenset[int]) -> Any:
    """An object that is no data: its bytes, its attributes, or its repr without addresses."""
    to_bytes = getattr(value, "tobytes", None)
    if callable(to_bytes) and not isinstance(value, type):
        return {"type": type(value).__qualname__, "sha256": hashlib.sha256(to_bytes()).hexdigest()}
    has_own_repr = any("__repr__" in vars(base) for base in type(value).__mro__[:-1])
    if not has_own_repr and hasattr(value, "__dict__"):
        attributes = {key: _plain(item, depth, parents) for key, item in sorted(vars(value).items())}
        return {"type": type(value).__qualname__, **attributes}
    return valid_text(_ADDRESS.sub("", repr(value)))


def valid_text(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
