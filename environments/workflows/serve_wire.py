"""From a scored group to the body that is posted: what trainers get to see of it.

Two forms. Trainers of the original count every row as a member of the group, so of a rollout that
forked into several sequences they get one row: the branch with the most trained tokens. Trainers that
registered with ``rollout_ids`` get all branches, and with ``rollout_ids`` the rollout of each row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from environments.errors import UserCodeError
from environments.records import MASKED, ScoredDataGroup

_PER_ROW = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "messages",
    "inference_logprobs",
    "overrides",
    "distill_token_ids",
    "distill_logprobs",
)
_METADATA = ("item_id", "attempt", "branch", "ending", "outcome", "model", "turns")
"""What goes with the messages of a row, for those who make data of them."""

_PER_TOKEN = (
    "tokens",
    "masks",
    "inference_logprobs",
    "advantages",
    "ref_logprobs",
    "distill_token_ids",
    "distill_logprobs",
)
_PER_GROUP = ("generation_params", "group_overrides", "images")

CUT_ROWS = {
    "row_too_long": "left out as too long for the trainer",
    "row_truncated": "truncated to what the trainer takes",
    "row_without_tokens": "left out without a reply",
}
"""Notes on rows that the trainer does not get, or not whole, in words."""


@dataclass(slots=True)
class Outgoing:
    """A group as it is sent. ``members`` is what it counts in a batch; ``notes`` what was left out."""

    body: dict[str, Any]
    members: int
    trained_tokens: list[int]
    notes: dict[str, int] = field(default_factory=dict)


def outgoing(
    group: ScoredDataGroup,
    *,
    rollout_ids: bool,
    max_token_length: int,
    generation_params: dict[str, Any] | None = None,
    policy_version: int | None = None,
    tools: list[dict[str, Any]] | None = None,
    truncate: bool = False,
) -> Outgoing | None:
    """The group as it is sent; None where no row is left.

    Rows longer than ``max_token_length`` (where it is positive) are left out; with ``truncate`` they end
    with the last reply that fits, and ``overrides`` says how long they were. ``policy_version`` is the
    fallback where the sequences do not say which version sampled them. Messages, where they are sent, go
    with the ``tools`` that the model was given and a word about each row. Raises ``UserCodeError`` where
    the lengths of the group's own columns contradict each other.
    """
    check_lengths(group)
    notes: dict[str, int] = {}
    rows = list(range(len(group["tokens"])))
    if max_token_length > 0:
        if truncate:
            group, notes["row_truncated"] = _truncated(group, max_token_length)
        short = [i for i in rows if len(group["tokens"][i]) <= max_token_length]
        notes["row_too_long"] = len(rows) - len(short)
        rows = short
    names = _rollouts(group)
    if names is not None and not rollout_ids:
        kept = _main_branches(group, rows, names)
        notes["branch_not_sent"] = len(rows) - len(kept)
        rows = kept
    if not rows:
        return None
    body: dict[str, Any] = {}
    for name in _PER_ROW:
        column: Any = group.get(name)
        body[name] = [column[i] for i in rows] if column else None
    for name in _PER_GROUP:
        body[name] = group.get(name)
    body["generation_params"] = body["generation_params"] or generation_params
    if body["messages"]:
        body["tools"] = tools
        body["metadata"] = [_row_metadata(group, i) for i in rows]
    members = len(rows)
    if names is not None and rollout_ids:
        body["rollout_ids"] = [names[i] for i in rows]
        members = len(set(body["rollout_ids"]))
    version = _policy_version(group, rows)
    body["policy_version"] = policy_version if version is None else version
    trained = [sum(token != MASKED for token in mask) for mask in body["masks"]]
    return Outgoing(body, members, trained, {name: count for name, count in notes.items() if count})


def _truncated(group: ScoredDataGroup, limit: int) -> tuple[ScoredDataGroup, int]:
    """The group with its long rows cut after the last reply that fits, and how many those were.

    Rows of which no reply fits stay as they are.
    """
    ends = {
        i: end
        for i, mask in enumerate(group["masks"])
        if len(mask) > limit and (end := _end_of_reply(mask, limit))
    }
    if not ends:
        return group, 0
    cut: Any = dict(group)
    for name in _PER_TOKEN:
        if column := cut.get(name):
            cut[name] = [
                row[: ends[i]] if i in ends and row and len(row) == len(group["tokens"][i]) else row
                for i, row in enumerate(column)
            ]
    overrides = cut.get("overrides") or [None] * len(group["tokens"])
    cut["overrides"] = [
        {**(entry or {}), "truncated_from": len(group["tokens"][i])} if i in ends else entry or {}
        for i, entry in enumerate(overrides)
    ]
    return cut, len(ends)


def _end_of_reply(mask: list[int], limit: int) -> int:
    """Where the last trained reply of at most ``limit`` tokens from the start ends; 0 for none."""
    for end in range(limit, 0, -1):
        if mask[end - 1] != MASKED and mask[end] == MASKED:
            return end
    return 0


def check_lengths(group: ScoredDataGroup) -> None:
    """Raise ``UserCodeError`` where columns of a group do not fit each other."""
    tokens = group.get("tokens") or []
    for name in _PER_ROW:
        column: Any = group.get(name)
        if column and len(column) != len(tokens):
            raise UserCodeError(f"the group has {len(tokens)} rows of tokens, but {len(column)} of {name}")
    for name in ("masks", "inference_logprobs"):
        rows: Any = group.get(name) or []
        for i, row in enumerate(rows):
            if len(row) != len(tokens[i]):
                raise UserCodeError(f"row {i} has {len(tokens[i])} tokens, but {len(row)} {name}")


def has_placeholders(group: ScoredDataGroup) -> bool:
    """Whether rows have no real tokens (phase 1), or tokens at all."""
    overrides = group.get("overrides") or []
    return any((entry or {}).get("placeholder_tokens") for entry in overrides)


def without_placeholders(group: ScoredDataGroup) -> ScoredDataGroup:
    """The group with its rows of real tokens alone."""
    overrides: Any = group.get("overrides") or [{}] * len(group["tokens"])
    kept = [i for i, entry in enumerate(overrides) if not (entry or {}).get("placeholder_tokens")]
    rest: Any = dict(group)
    for name in (*_PER_ROW, "images", "metadata"):
        column = rest.get(name)
        if isinstance(column, list) and len(column) == len(overrides):
            rest[name] = [column[i] for i in kept]
    return rest  # type: ignore[no-any-return]


def _rollouts(group: ScoredDataGroup) -> list[str] | None:
    metadata = group.get("metadata") or []
    names = [entry.get("rollout_id") for entry in metadata]
    if len(names) != len(group["tokens"]) or not all(isinstance(name, str) for name in names):
        return None
    return [str(name) for name in names]


def _row_metadata(group: ScoredDataGroup, row: int) -> dict[str, Any]:
    metadata = group.get("metadata") or []
    entry = metadata[row] if row < len(metadata) else {}
    return {name: entry[name] for name in _METADATA if name in entry}


def _main_branches(group: ScoredDataGroup, rows: list[int], names: list[str]) -> list[int]:
    """One row per rollout: the one with the most trained tokens, the later one of equals."""
    best: dict[str, tuple[int, int]] = {}
    for i in rows:
        trained = sum(token != MASKED for token in group["masks"][i])
        if names[i] not in best or trained >= best[names[i]][0]:
            best[names[i]] = (trained, i)
    return sorted(i for _, i in best.values())


def _policy_version(group: ScoredDataGroup, rows: list[int]) -> int | None:
    """The oldest version that sampled any of it, where versions are numbers."""
    metadata = group.get("metadata") or []
    versions = []
    for i in rows:
        for span in (metadata[i].get("policy_versions") or []) if i < len(metadata) else []:
            text = str(span.get("version", ""))
            if not text.isdecimal():
                return None
            versions.append(int(text))
    return min(versions, default=None)
