"""The little that is read from a GGUF file before a server loads it: is it one, how long is its context."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from environments.errors import ConfigError, suggestion

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def find_model(name: str) -> Path:
    """The model file that a config names. Raises ``ConfigError`` with near names if it is not there."""
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    where = path.parent if path.parent.is_dir() else Path.cwd()
    near = suggestion(path.name, [entry.name for entry in where.glob("*.gguf")])
    raise ConfigError(f"openai.model_name: there is no model file {name!r}{near}")


def trained_context(path: Path) -> int | None:
    """Context length that the model was trained for, None where the file does not say.

    Raises ``ConfigError`` for a file that is not GGUF.
    """
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ConfigError(f"openai.model_name: {path.name} is not a GGUF file")
        try:
            return _context_length(file)
        except (struct.error, UnicodeDecodeError, KeyError, OverflowError, MemoryError):
            raise ConfigError(f"openai.model_name: {path.name} is a damaged or truncated GGUF file") from None


def _context_length(file: BinaryIO) -> int | None:
    _version, _tensors, entries = _unpack(file, "IQQ")
    for _ in range(entries):
        key = _read_string(file)
        kind = _unpack(file, "I")[0]
        if key.endswith(".context_length") and kind in _SCALARS:
            return int(_unpack(file, _SCALARS[kind])[0])
        _skip(file, kind)
    return None


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        file.seek(_unpack(file, "Q")[0], 1)
    elif kind == _ARRAY:
        inner, count = _unpack(file, "IQ")
        if inner in _SCALARS:
            file.seek(count * struct.calcsize("<" + _SCALARS[inner]), 1)
        else:
            for _ in range(count):
                _skip(file, inner)
    else:
        file.seek(struct.calcsize("<" + _SCALARS[kind]), 1)


def _read_string(file: BinaryIO) -> str:
    return file.read(_unpack(file, "Q")[0]).decode("utf-8")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))
