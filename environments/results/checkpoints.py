"""What an environment wants back when training goes on: one JSON file per step that was saved."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import orjson

from environments.errors import UserCodeError
from environments.results.durable import encode, write_atomically

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d+)\.json")


def save_checkpoint(directory: Path, step: int, data: dict[str, Any]) -> None:
    """Write the data of a step, whole or not at all. Raises ``StoreError`` and ``UserCodeError``."""
    if not isinstance(data, dict):
        raise UserCodeError(f"save_checkpoint got a {type(data).__name__}; a dictionary is needed")
    write_atomically(directory / f"step-{step}.json", encode(data))


def load_checkpoint(directory: Path, step: int) -> dict[str, Any]:
    """The data of the latest step that is not beyond ``step``; empty where there is none."""
    files = directory.glob("step-*.json")
    steps = {int(match[1]): path for path in files if (match := _NAME.fullmatch(path.name))}
    for number in sorted((n for n in steps if n <= step), reverse=True):
        try:
            data = orjson.loads(steps[number].read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            logger.warning("%s cannot be read, an older checkpoint is taken: %s", steps[number], error)
            continue
        if isinstance(data, dict):
            return data
    return {}
