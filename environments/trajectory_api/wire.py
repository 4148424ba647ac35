"""The wire form of a scored group: checked once, then forwarded as it came.

``read_group`` and ``read_groups`` turn a body into ``WireGroup`` values whose payload is JSON text as
the client wrote it, with the fields that it left out added as null: old trainers index every one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import orjson

from environments.trajectory_api.refusals import Refused

FIELDS = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "messages",
    "generation_params",
    "inference_logprobs",
    "overrides",
    "group_overrides",
    "images",
    "env_id",
    "distill_token_ids",
    "distill_logprobs",
)
"""Fields that every group of a batch has, null where it was not sent."""

MAX_KEY_LENGTH = 300

LARGEST = 2**63 - 1
"""Largest number that is stored."""

_INTEGERS = frozenset({int})
_NUMBERS = frozenset({int, float})


@dataclass(slots=True)
class WireGroup:
    """One checked group. ``rows`` are token sequences, ``members`` rollouts (several rows can be one)."""

    payload: bytes
    rows: int
    members: int
    tokens: int
    env_id: int | None = None
    key: str | None = None
    policy_version: int | None = None


def read_group(body: bytes, key: str | None = None) -> WireGroup:
    """Check the body of ``/scored_data``. ``key`` comes from the header and wins over the field."""
    value = parse(body)
    if not isinstance(value, dict):
        raise Refused("body", "a JSON object is needed")
    return _group(value, body, key)


def read_groups(body: bytes, key: str | None = None) -> list[WireGroup]:
    """Check the body of ``/scored_data_list``: all of its groups, or none is taken.

    ``key`` comes from the header and stands for the whole list: it makes a key of each group's position.
    """
    values = parse(body)
    if not isinstance(values, list):
        raise Refused("body", "a list of groups is needed")
    groups = []
    for index, value in enumerate(values):
        try:
            if not isinstance(value, dict):
                raise Refused((), "a JSON object is needed")
            own = f"{key}/{index}" if key else key
            groups.append(_group(value, orjson.dumps(value), own))
        except Refused as refusal:
            raise refusal.inside(index) from None
    return groups


def parse(body: bytes) -> Any:
    """JSON as JSON is: NaN and infinity are refused, and the field that holds them is named."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _why_not(body, error) from None


def _why_not(body: bytes, error: orjson.JSONDecodeError) -> Refused:
    if b"NaN" not in body and b"Infinity" not in body:
        return Refused("body", f"no JSON: {error}")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return Refused("body", f"no JSON: {error}")
    path = _not_finite(value, ())
    if path is None:
        return Refused("body", f"no JSON: {error}")
    return Refused(path or ("body",), "NaN and infinity are not allowed")


def _not_finite(value: Any, path: tuple[str | int, ...]) -> tuple[str | int, ...] | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, entry in entries:
        found = _not_finite(entry, (*path, name))
        if found is not None:
            return found
    return None


def _group(value: dict[str, Any], text: bytes, key: str | None) -> WireGroup:
    tokens = _matrix(value, "tokens", _INTEGERS, None)
    lengths = [len(row) for row in tokens]
    if not tokens:
        raise Refused("tokens", "a group needs at least one sequence")
    if not all(lengths):
        raise Refused(("tokens", lengths.index(0)), "a sequence needs at least one token")
    _matrix(value, "masks", _INTEGERS, lengths)
    _row(value.get("scores"), ("scores",), _NUMBERS, len(tokens))
    for name in ("inference_logprobs", "ref_logprobs"):
        if value.get(name):
            _matrix(value, name, _NUMBERS, lengths)
    _advantages(value, lengths)
    for name in ("distill_token_ids", "distill_logprobs"):
        _cube(value, name, lengths)
    _messages(value.get("messages"), len(tokens))
    _objects(value, len(tokens))
    own_key = key if key is not None else _optional(value, "idempotency_key", str)
    if own_key is not None and not 0 < len(own_key) <= MAX_KEY_LENGTH:
        raise Refused("idempotency_key", f"1 to {MAX_KEY_LENGTH} characters are needed")
    return WireGroup(
        payload=_filled(value, text),
        rows=len(tokens),
        members=_members(value.get("rollout_ids"), len(tokens)),
        tokens=sum(lengths),
        env_id=_optional(value, "env_id", int),
        key=own_key,
        policy_version=_optional(value, "policy_version", int),
    )


def _filled(value: dict[str, Any], text: bytes) -> bytes:
    """The text as it came, with null for each field that is not there."""
    missing = [name for name in FIELDS if name not in value]
    text = text.strip()
    if not missing:
        return text
    return text[:-1] + b"," + ",".join(f'"{name}":null' for name in missing).encode() + b"}"


def _matrix(
    value: dict[str, Any], name: str, types: frozenset[type], lengths: list[int] | None
) -> list[list[Any]]:
    rows = value.get(name)
    if rows is None:
        raise Refused(name, "Field required")
    if not isinstance(rows, list):
        raise Refused(name, "a list of lists is needed")
    if lengths is not None and len(rows) != len(lengths):
        raise Refused(name, f"{len(rows)} rows, but tokens has {len(lengths)}")
    for index, row in enumerate(rows):
        _row(row, (name, index), types, lengths[index] if lengths is not None else None)
    return rows


def _row(row: Any, path: tuple[str | int, ...], types: frozenset[type], length: int | None) -> None:
    if row is None:
        raise Refused(path, "Field required")
    if not isinstance(row, list):
        raise Refused(path, "a list is needed")
    if length is not None and len(row) != length:
        raise Refused(path, f"{len(row)} entries, but tokens has {length}")
    if not types.issuperset(map(type, row)):
        index = next(i for i, entry in enumerate(row) if type(entry) not in types)
        needed = "an integer" if types is _INTEGERS else "a finite number"
        raise Refused((*path, index), f"{needed} is needed, not {row[index]!r:.40}")


def _advantages(value: dict[str, Any], lengths: list[int]) -> None:
    """Advantages are one per token, or one per sequence in a list of its own."""
    rows = value.get("advantages")
    if not rows:
        return
    if not isinstance(rows, list) or len(rows) != len(lengths):
        raise Refused("advantages", f"a list of {len(lengths)} lists is needed")
    for index, row in enumerate(rows):
        one = isinstance(row, list) and len(row) == 1
        _row(row, ("advantages", index), _NUMBERS, 1 if one else lengths[index])


def _cube(value: dict[str, Any], name: str, lengths: list[int]) -> None:
    rows = value.get(name)
    if not rows:
        return
    types = _INTEGERS if name == "distill_token_ids" else _NUMBERS
    if not isinstance(rows, list) or len(rows) != len(lengths):
        raise Refused(name, f"a list of {len(lengths)} lists of lists is needed")
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != lengths[index]:
            raise Refused((name, index), f"{lengths[index]} positions are needed, as tokens has")
        for position, entries in enumerate(row):
            _row(entries, (name, index, position), types, None)


def _messages(value: Any, rows: int) -> None:
    if not value:
        return
    if not isinstance(value, list) or len(value) != rows:
        raise Refused("messages", f"{rows} conversations are needed, one per sequence")
    for index, conversation in enumerate(value):
        if not isinstance(conversation, list):
            raise Refused(("messages", index), "a list of messages is needed")
        for number, message in enumerate(conversation):
            if not isinstance(message, dict) or "role" not in message or "content" not in message:
                raise Refused(("messages", index, number), "Message must have 'role' and 'content' fields")


def _objects(value: dict[str, Any], rows: int) -> None:
    for name in ("generation_params", "group_overrides"):
        if value.get(name) is not None and not isinstance(value[name], dict):
            raise Refused(name, "an object is needed")
    overrides = value.get("overrides")
    if not overrides:
        return
    if not isinstance(overrides, list) or len(overrides) != rows:
        raise Refused("overrides", f"a list of {rows} objects is needed, one per sequence")
    for index, entry in enumerate(overrides):
        if not isinstance(entry, dict):
            raise Refused(("overrides", index), "an object is needed")


def _members(value: Any, rows: int) -> int:
    if value is None:
        return rows
    if not isinstance(value, list) or len(value) != rows or not all(isinstance(v, str) for v in value):
        raise Refused("rollout_ids", f"a list of {rows} texts is needed, one per sequence")
    return len(set(value))


def _optional(value: dict[str, Any], name: str, kind: type) -> Any:
    entry = value.get(name)
    if entry is not None and type(entry) is not kind:
        raise Refused(name, f"{'an integer' if kind is int else 'text'} is needed, not {entry!r:.40}")
    if type(entry) is int and abs(entry) > LARGEST:
        raise Refused(name, f"an integer of at most {LARGEST} is needed")
    return entry
