"""Scored groups: from attempts to rows, and the JSONL file that ``process`` writes, one line per group."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from environments.errors import ResultsUnreadable, StoreError
from environments.real_numbers import is_finite_number
from environments.records import (
    MASKED,
    MASKED_LOGPROB,
    Attempt,
    Ending,
    Outcome,
    ScoredDataGroup,
    TrainingUse,
)
from environments.records import Sequence as TokenSequence
from environments.results.durable import DurableFile, encode, move_aside, read_lines
from environments.results.fingerprint import scrub
from environments.results.plain import plain
from environments.results.reading import final_attempts

logger = logging.getLogger(__name__)

_PER_TOKEN = ("advantages", "ref_logprobs", "distill_token_ids", "distill_logprobs")
_PER_ROW = ("images",)
_PER_GROUP = ("generation_params", "group_overrides")

KEY_ORDER = (
    "tokens",
    "masks",
    "scores",
    "messages",
    "inference_logprobs",
    "advantages",
    "ref_logprobs",
    "generation_params",
    "group_overrides",
    "overrides",
    "images",
    "distill_token_ids",
    "distill_logprobs",
    "metadata",
    "failed",
)
"""Order of the keys in a line."""


def use_in_training(attempt: Attempt, *, over_limit: TrainingUse = TrainingUse.TRAIN) -> TrainingUse:
    """What an attempt does in its group.

    Scored attempts train and all others are left out. ``over_limit`` is what those do that ran out
    of context or of a budget.
    """
    if not is_scored(attempt):
        return TrainingUse.EXCLUDE
    if attempt.ending in (Ending.CONTEXT_LENGTH, Ending.TOKEN_BUDGET, Ending.COST_BUDGET):
        return over_limit
    return TrainingUse.TRAIN


def is_scored(attempt: Attempt) -> bool:
    """Whether an attempt has an outcome and a finite reward that count."""
    return attempt.outcome is Outcome.SCORED and is_finite_number(attempt.reward)


def group_from_attempts(
    draw: int,
    attempts: Iterable[Attempt],
    *,
    include_messages: bool,
    config: Any = None,
    over_limit: TrainingUse = TrainingUse.TRAIN,
    last_branch: bool = False,
) -> ScoredDataGroup:
    """The group of one draw: scored attempts become rows, the others stand in ``failed``.

    Several tries of an attempt count as the last one. An attempt with several token sequences gives
    several rows with the same ``rollout_id``; one without any gives placeholder tokens, marked in
    ``overrides``. ``last_branch`` leaves only the last of several. ``config`` is the environment's
    configuration; its secrets are removed here.
    """
    settings = scrub(config) if config is not None else None
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    group: dict[str, Any] = dict.fromkeys(KEY_ORDER)
    for attempt in final_attempts(attempts):
        use = use_in_training(attempt, over_limit=over_limit)
        if use is TrainingUse.EXCLUDE:
            failed.append(_failed(draw, attempt, settings))
            continue
        rows.extend(_rows(draw, attempt, use, settings, last_branch))
        for name in _PER_GROUP:
            if group[name] is None and attempt.row.get(name) is not None:
                group[name] = plain(attempt.row[name])
    for name in ("tokens", "masks", "scores", "inference_logprobs", "metadata"):
        group[name] = [row[name] for row in rows]
    if include_messages:
        group["messages"] = [row["messages"] for row in rows]
    for name in ("overrides", *_PER_TOKEN, *_PER_ROW):
        if any(row.get(name) for row in rows):
            empty: Any = {} if name == "overrides" else None
            group[name] = [row.get(name) or empty for row in rows]
    group["failed"] = failed
    return group  # type: ignore[return-value]  # all keys are those of KEY_ORDER


def _rows(
    draw: int, attempt: Attempt, use: TrainingUse, settings: Any, last_branch: bool
) -> list[dict[str, Any]]:
    sequences = attempt.sequences or [TokenSequence(tokens=[0], mask=[MASKED], logprobs=[MASKED_LOGPROB])]
    first = len(sequences) - 1 if last_branch else 0
    return [_row(draw, attempt, use, settings, sequences, branch) for branch in range(first, len(sequences))]


def _row(
    draw: int,
    attempt: Attempt,
    use: TrainingUse,
    settings: Any,
    sequences: Sequence[TokenSequence],
    branch: int,
) -> dict[str, Any]:
    sequence = sequences[branch]
    overrides = dict(attempt.row.get("overrides") or {})
    if not attempt.sequences:
        overrides["placeholder_tokens"] = True
    if use is TrainingUse.BASELINE:
        overrides["set_advantage_to_zero"] = True
    row: dict[str, Any] = {
        "tokens": sequence.tokens,
        "masks": sequence.mask,
        "scores": float(attempt.reward or 0.0),
        "messages": sequence.extra.get("messages") or attempt.messages,
        "inference_logprobs": sequence.logprobs,
        "overrides": overrides,
        "metadata": {
            **_identity(draw, attempt),
            "branch": branch,
            "branches": len(sequences),
            "fork_reason": sequence.fork_reason,
            "policy_versions": plain(sequence.policy_versions),
            "training_use": use.value,
            **_metadata(attempt, settings),
        },
    }
    for name in _PER_ROW:
        row[name] = plain(attempt.row.get(name))
    for name in _PER_TOKEN:  # a value per token belongs to one sequence
        of_rollout = attempt.row.get(name) if len(sequences) == 1 else None
        row[name] = plain(sequence.extra.get(name, of_rollout))
    return row


def _identity(draw: int, attempt: Attempt) -> dict[str, Any]:
    return {
        "schema_version": attempt.schema_version,
        "run_id": attempt.run_id,
        "environment": attempt.environment,
        "draw": draw,
        "group_id": attempt.group_id,
        "item_id": attempt.item_id,
        "item_hash": attempt.provenance.item_hash,
        "attempt": attempt.attempt,
        "try_number": attempt.try_number,
        "rollout_id": f"{attempt.group_id}/{attempt.item_id}/{attempt.attempt}",
        "seed": attempt.seed,
    }


def _metadata(attempt: Attempt, settings: Any) -> dict[str, Any]:
    return {
        "item": plain(attempt.item),
        "model": attempt.agent.model,
        "agent": plain(attempt.agent),
        "tools": list(attempt.tool_names),
        "turns": len(attempt.turns),
        "turn_details": plain(attempt.turns),
        "ending": attempt.ending,
        "outcome": attempt.outcome,
        "errors": plain(attempt.tool_errors),
        "timings": {**plain(attempt.clock), "started_at": attempt.started_at, "ended_at": attempt.ended_at},
        "usage": plain(attempt.usage),
        "verdict": plain(attempt.verdict),
        "metrics": plain(attempt.metrics),
        "sandbox": plain(attempt.sandbox),
        "provenance": plain(attempt.provenance),
        "config": settings,
    }


def _failed(draw: int, attempt: Attempt, settings: Any) -> dict[str, Any]:
    return {
        **_identity(draw, attempt),
        **_metadata(attempt, settings),
        "failures": plain(attempt.failures),
        "messages": attempt.messages,
    }


_LINES_TO_TELL = 100
"""Lines after which a file without a group is taken for somebody else's."""


class GroupFile:
    """The JSONL file of groups. ``resume=False`` keeps an earlier file under another name."""

    def __init__(self, path: Path, *, resume: bool = True) -> None:
        self.path = path
        self.foreign_lines = 0
        """Lines without a draw number (written by atroposlib), counted by ``finished``."""
        if not resume:
            move_aside(path)
        self._file: DurableFile | None = None
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def finished(self) -> dict[int, dict[str, Any]]:
        """Draw numbers of the groups in the file, each with ``item_id``, ``item_hash``, ``group_id``,
        ``rows``, ``failed``, ``scores`` and ``line``. Empty where there is no file yet.

        A half-written last line is repaired; a broken one in the middle is skipped and named.
        """
        if not self.path.exists():
            return {}
        _refuse_foreign(self.path)
        self._open()
        self.foreign_lines = 0
        found: dict[int, dict[str, Any]] = {}
        for number, line in read_lines(self.path):
            try:
                group = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                logger.warning("%s, line %d is broken and was skipped: %s", self.path, number, error)
                continue
            info = _light_info(group, number)
            if info is None:
                self.foreign_lines += 1
            else:
                found[info["draw"]] = info
        if self.foreign_lines:
            logger.warning("%s: %d lines carry no draw number; kept", self.path, self.foreign_lines)
        return found

    def append(self, group: ScoredDataGroup, draw: int) -> None:
        """Write one group; killing the process after this cannot lose it. Raises ``StoreError``."""
        line: dict[str, Any] = {name: group.get(name) for name in KEY_ORDER}
        line.update(group)
        for name in ("metadata", "failed"):
            line[name] = [{**entry, "draw": draw} for entry in line[name] or []]
        if not line["metadata"] and not line["failed"]:  # a group of the user's own making
            line["metadata"] = [{"draw": draw} for _ in line["scores"] or [None]]
        self._open().append(encode(line))

    def close(self) -> None:
        """Write everything to the disk. Idempotent; a later ``append`` opens the file again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> DurableFile:
        with self._opening:  # threads append
            if self._file is None:
                self._file = self._locked()
            return self._file

    def _locked(self) -> DurableFile:
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a directory; name a file such as {self.path}/groups.jsonl")
        file = DurableFile(self.path)
        if not file.lock():
            file.close()
            raise StoreError(f"{self.path} is in use by another run; wait for it or name another output")
        return file


def _refuse_foreign(path: Path) -> None:
    """Raise ``ResultsUnreadable`` for a file with whole lines of which none is a group."""
    if path.is_dir():
        return
    lines = 0
    for _, line in read_lines(path):
        lines += 1
        with suppress(orjson.JSONDecodeError):
            if isinstance(group := orjson.loads(line), dict) and "scores" in group:
                return
        if lines == _LINES_TO_TELL:
            break
    if lines > 1:  # a single one may be half-written
        raise ResultsUnreadable(
            f"{path} is no file of results: none of its lines is a group; name another file"
        )


def _light_info(group: Any, number: int) -> dict[str, Any] | None:
    if not isinstance(group, dict):
        return None
    entries = [entry for name in ("metadata", "failed") for entry in _objects(group.get(name))]
    draw = next((entry["draw"] for entry in entries if isinstance(entry.get("draw"), int)), None)
    if draw is None:
        return None
    first = entries[0]
    return {
        "draw": draw,
        "item_id": first.get("item_id"),
        "item_hash": first.get("item_hash"),
        "group_id": first.get("group_id"),
        "rows": len(group.get("scores") or []),
        "failed": len(_objects(group.get("failed"))),
        "scores": group.get("scores") or [],
        "line": number,
    }


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
