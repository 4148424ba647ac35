"""The reward as the tests wrote it: read once, from a real file, and refused where it is none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.errors import VerifierError
from environments.real_numbers import LARGEST_NUMBER, is_finite_number, plain_number
from environments.sandboxes.base import Sandbox

LOGS = "/logs/verifier"
JSON_FILE = f"{LOGS}/reward.json"
TEXT_FILE = f"{LOGS}/reward.txt"

LARGEST = 64 << 10
"""Bytes of a reward file. A number and some sub-scores are far less."""

REWARD_KEY = "reward"
MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Score:
    """A reward, the key of ``reward.json`` that it is (``mean`` for the mean of all), and the others."""

    value: float
    key: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    file: str = TEXT_FILE


async def read_score(sandbox: Sandbox) -> Score:
    """The score that is written down: ``reward.json`` before ``reward.txt``. Raises ``VerifierError``."""
    for directory in ("/logs", LOGS):
        if await _kind(sandbox, directory) != "directory":
            raise VerifierError(f"{directory} is no directory any more")
    data = await _read(sandbox, JSON_FILE)
    if data is not None:
        return parse_json(data)
    data = await _read(sandbox, TEXT_FILE)
    if data is not None:
        return parse_text(data)
    raise VerifierError(f"the tests wrote neither {JSON_FILE} nor {TEXT_FILE}")


def parse_json(data: bytes) -> Score:
    """An object of finite numbers. The reward is ``reward``, else the only one, else their mean."""
    try:
        found = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise VerifierError(f"{JSON_FILE} is no JSON: {error}") from error
    if not isinstance(found, dict) or not found:
        raise VerifierError(f"{JSON_FILE} holds {_shown(data)}; it must be an object of numbers")
    numbers = {key: _finite(value, f"{JSON_FILE}: {key}") for key, value in found.items()}
    if REWARD_KEY in numbers:
        key, value = REWARD_KEY, numbers[REWARD_KEY]
    elif len(numbers) == 1:
        ((key, value),) = numbers.items()
    else:
        key, value = MEAN, math.fsum(numbers.values()) / len(numbers)
    return Score(value, key, {name: number for name, number in numbers.items() if name != key}, JSON_FILE)


def parse_text(data: bytes) -> Score:
    """One finite number."""
    text = data.decode("utf-8", "replace").strip()
    try:
        value = plain_number(text)
    except ValueError:
        raise VerifierError(f"{TEXT_FILE} holds {_shown(data)}; it must be a number") from None
    return Score(_finite(value, TEXT_FILE), REWARD_KEY)


async def _read(sandbox: Sandbox, path: str) -> bytes | None:
    kind = await _kind(sandbox, path)
    if kind is None:
        return None
    if kind != "file":
        raise VerifierError(f"{path} is no regular file but a {kind}")
    data = await sandbox.read_bytes(path, length=LARGEST + 1)
    if len(data) > LARGEST:
        raise VerifierError(f"{path} is larger than {LARGEST} bytes")
    return data


async def _kind(sandbox: Sandbox, path: str) -> str | None:
    """What a path is, itself and not what it leads to; None where there is nothing."""
    try:
        return (await sandbox.stat(path)).kind
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise VerifierError(f"{path} cannot be looked at: {error}") from error


def _finite(value: Any, where: str) -> float:
    if is_finite_number(value):
        return float(value)
    raise VerifierError(f"{where} is {_shown(value)}; it must be a finite number, {LARGEST_NUMBER:g} at most")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no finite number")


def _shown(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return f"{text!r:.80}"
