"""Read attempts back from a file, whoever wrote it and whatever happened to it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from environments.errors import StoreError
from environments.records import MASKED_LOGPROB, Attempt, attempt_from_json
from environments.results.durable import read_lines
from environments.results.payloads import Payloads

if TYPE_CHECKING:
    from pydantic import ValidationError

logger = logging.getLogger(__name__)

ATTEMPTS_FILE = "attempts.jsonl"
PAYLOADS_DIRECTORY = "payloads"

AttemptKey = tuple[str, str, str, int]


def read_attempts(path: Path, *, end: int | None = None) -> Iterator[Attempt]:
    """Each attempt of an ``attempts.jsonl``, as it was written; broken lines are skipped and named."""
    payloads = Payloads(path.parent / PAYLOADS_DIRECTORY)
    for number, line in read_lines(path, end=end):
        try:
            yield parse_attempt(payloads.restore(line))
        except (ValueError, StoreError) as error:
            logger.warning("%s, line %d is broken and was skipped: %s", path, number, _first_line(error))


def parse_attempt(line: bytes) -> Attempt:
    """An attempt from one line of JSON. Raises ``ValueError`` where it is none.

    Values that lost their type on the way (NaN is null in JSON, an id was a number) are mended.
    """
    from pydantic import ValidationError

    try:
        return attempt_from_json(line)
    except ValidationError as error:
        data = orjson.loads(line)
        if not isinstance(data, dict):
            raise
        _mend(data, error)
        return attempt_from_json(orjson.dumps(data))


def last_of_each(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The last record of each key and try, in the order in which those last records came."""
    latest: dict[tuple[str, str, str, int, int], Attempt] = {}
    for attempt in attempts:
        key = (*attempt_key(attempt), attempt.try_number)
        latest.pop(key, None)
        latest[key] = attempt
    return list(latest.values())


def final_attempts(attempts: Iterable[Attempt]) -> list[Attempt]:
    """One record per attempt: of several tries the one that came last."""
    latest = {attempt_key(attempt): attempt for attempt in attempts}
    return list(latest.values())


def attempt_key(attempt: Attempt) -> AttemptKey:
    """What tells attempts apart, whatever their try."""
    return (attempt.environment, *attempt.key)


def item_hashes(attempt: Attempt) -> tuple[str, ...]:
    """The item's content when the attempt was made, and that for which it was last judged to count."""
    judged = attempt.verdict.evidence.get("item_hash") if attempt.verdict is not None else None
    made = attempt.provenance.item_hash
    return (made, judged) if isinstance(judged, str) else (made,)


def _mend(data: dict[str, Any], error: ValidationError) -> None:
    for problem in error.errors(include_url=False, include_context=False):
        place = [part for part in problem["loc"] if isinstance(part, int) or not part.startswith("function-")]
        parent: Any = data
        for part in place[:-1]:
            try:
                parent = parent[part]
            except (KeyError, IndexError, TypeError):
                break
        else:
            if place:
                _mend_value(parent, place[-1], problem["input"], problem["type"])


def _mend_value(parent: Any, key: Any, value: Any, kind: str) -> None:
    if isinstance(parent, list) and isinstance(key, int) and key < len(parent):
        if value is None:
            parent[key] = MASKED_LOGPROB  # a log-probability that nobody knows
    elif isinstance(parent, dict) and key in parent:
        if kind == "string_type" and isinstance(value, int | float):
            parent[key] = str(value)
        else:
            del parent[key]


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
