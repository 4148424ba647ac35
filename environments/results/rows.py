"""One view of every kind of result, for people to look at: a row per rollout.

Understands groups of ``process`` (ours and atroposlib's), attempts of a run directory, and samples of
an evaluation; as files, directories, or values in memory. Reading changes nothing on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from environments.errors import ResultsUnreadable
from environments.records import Attempt
from environments.results.coverage import Coverage, left_out
from environments.results.durable import encode, read_lines, store_errors
from environments.results.evaluate_log import SAMPLES_FILE
from environments.results.metrics import passed
from environments.results.plain import plain
from environments.results.reading import (
    ATTEMPTS_FILE,
    PAYLOADS_DIRECTORY,
    attempt_key,
    item_hashes,
    read_attempts,
)

logger = logging.getLogger(__name__)

JSON = dict[str, Any]

_BESIDE_RESULTS = frozenset(
    {"metrics.json", "items.json", "run.json", "tools.json", "sources.json", "rescore.json", "lock"}
)
"""Files of a run or an evaluation that hold no rollouts themselves."""


@dataclass(slots=True)
class Row:
    """One rollout as a table or page shows it. ``None`` is what the file does not say."""

    number: int
    """Position in the file, from 1."""
    place: str
    """Group and row, ``3.2``, where the file has groups; else the number."""
    item: str = ""
    item_hash: str = ""
    """The item's content; empty where the file does not say."""
    attempt: int | None = None
    reward: float | None = None
    passed: bool | None = None
    ending: str = ""
    outcome: str = ""
    turns: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    model: str = ""
    messages: list[JSON] = field(default_factory=list)
    verdict: JSON = field(default_factory=dict)
    failures: list[JSON] = field(default_factory=list)
    timings: JSON = field(default_factory=dict)
    details: JSON = field(default_factory=dict)
    """What else is worth a line: seed, tools, sandbox, error."""
    raw: Any = None
    """The record itself."""


def read_rows(path: Path) -> Iterator[Row]:
    """Every rollout of a result file or directory, in the order of the file.

    Of an evaluation's directory attempts at items that the dataset has no more are left out, which a
    warning names; ``attempts.jsonl`` itself gives all. Raises ``ResultsUnreadable`` that says what is
    wrong with the path; broken lines are skipped and named.
    """
    file = find_file(path)
    if file.name == ATTEMPTS_FILE:
        yield from _attempt_rows(file, everything=path.name == ATTEMPTS_FILE)
        return
    numbers = count(1)
    groups = count(1)
    understood = False
    for number, line in read_lines(file):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            if not understood and number == 1:
                raise ResultsUnreadable(
                    f"{file} is no JSONL file of results: its first line is no JSON"
                ) from None
            logger.warning("%s, line %d is broken or not finished yet; skipped", file, number)
            continue
        if not is_record(record):
            raise ResultsUnreadable(
                f"{file}, line {number} is neither a group, nor an attempt, nor a sample of an evaluation"
            )
        understood = True
        yield from rows_of_record(record, numbers, groups)


def rows_of(records: Iterable[Any]) -> Iterator[Row]:
    """Rows of groups, samples (mappings) or ``Attempt`` values in memory."""
    numbers, groups = count(1), count(1)
    for record in records:
        if isinstance(record, Attempt):
            yield row_of_attempt(record, next(numbers))
        else:
            yield from rows_of_record(record, numbers, groups)


def find_file(path: Path) -> Path:
    """The file to read for a path that a person typed. Raises ``ResultsUnreadable`` with what to do."""
    if path.is_file():
        return _results_beside(path)
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob("*.jsonl"))[:5] if path.parent.is_dir() else []
        hint = f"; {path.parent} has {', '.join(near)}" if near else ""
        raise ResultsUnreadable(f"{path} does not exist{hint}")
    for name in (ATTEMPTS_FILE, SAMPLES_FILE):
        if (path / name).is_file():
            return path / name
    files = list(path.glob("*.jsonl"))
    runs = [run for run in path.glob("*.run") if run.with_suffix(".jsonl") not in files]
    candidates = sorted(map(str, [*files, *runs]))
    if len(candidates) == 1:
        return find_file(Path(candidates[0]))
    if candidates:
        raise ResultsUnreadable(f"{path} holds several results; name one: {', '.join(candidates[:10])}")
    raise ResultsUnreadable(f"{path} holds no results ({ATTEMPTS_FILE}, {SAMPLES_FILE} or another .jsonl)")


def _results_beside(path: Path) -> Path:
    """The file of results that a file of a run belongs to: of its page, manifest, metrics, or a payload."""
    is_page = path.suffix == ".html"
    if is_page:
        whole = path.with_suffix("")  # out.txt.html stands beside out.txt
        candidates = [whole, path.with_suffix(".jsonl"), path.with_suffix(".run") / ATTEMPTS_FILE]
    elif path.name in _BESIDE_RESULTS or path.parent.name == PAYLOADS_DIRECTORY:
        directory = path.parent.parent if path.parent.name == PAYLOADS_DIRECTORY else path.parent
        candidates = [directory / ATTEMPTS_FILE, directory / SAMPLES_FILE]
    else:
        return path
    found = next((file for file in candidates if file.is_file()), None)
    if found is not None:
        return found
    if is_page and not _begins_as_page(path):
        return path
    raise ResultsUnreadable(f"{path} holds no rollouts, and beside it there is none of: {_names(candidates)}")


def _begins_as_page(path: Path) -> bool:
    with store_errors(f"cannot read {path}"), path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"<")


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(dict.fromkeys(map(str, paths)))


def is_record(record: Any) -> bool:
    """Whether a JSON value is something that this module understands."""
    if not isinstance(record, dict):
        return False
    return (
        _is_group(record)
        or _is_attempt(record)
        or bool({"messages", "score", "reward", "passed"} & set(record))
    )


def rows_of_record(record: Mapping[str, Any], numbers: Iterator[int], groups: Iterator[int]) -> Iterator[Row]:
    """Rows of one JSON record, numbered from the two counters."""
    if _is_attempt(record):
        from environments.results.reading import parse_attempt

        yield row_of_attempt(parse_attempt(encode(record)), next(numbers))
    elif _is_group(record):
        yield from _group_rows(record, numbers, next(groups))
    else:
        yield _sample_row(record, next(numbers))


def row_of_attempt(attempt: Attempt, number: int) -> Row:
    """The row of one attempt."""
    return Row(
        number=number,
        place=str(number),
        item=attempt.item_id,
        item_hash=item_hashes(attempt)[-1],
        attempt=attempt.attempt,
        reward=attempt.reward,
        passed=passed(attempt) if attempt.valid else None,
        ending=str(attempt.ending or ""),
        outcome=str(attempt.outcome or ""),
        turns=len(attempt.turns),
        tokens=attempt.usage.completion_tokens,
        seconds=attempt.clock.wall,
        cost=attempt.usage.cost,
        model=attempt.agent.model,
        messages=attempt.messages,
        verdict=plain(attempt.verdict) or {},
        failures=plain(attempt.failures),
        timings=plain(attempt.clock),
        details=_details(
            group=attempt.group_id,
            try_number=attempt.try_number,
            seed=attempt.seed,
            tools=attempt.tool_names,
            sandbox=plain(attempt.sandbox),
            tool_errors=plain(attempt.tool_errors),
        ),
        raw=attempt,
    )


def _attempt_rows(path: Path, *, everything: bool) -> Iterator[Row]:
    """Last record of each attempt; the file is read twice so that not all of it is in memory."""
    coverage = Coverage() if everything else Coverage.read(path.parent)
    last: dict[Any, int] = {}
    gone: dict[str, None] = {}
    for position, attempt in enumerate(read_attempts(path)):
        if coverage.has(attempt):
            last[attempt_key(attempt)] = position
        else:
            gone[attempt.item_id] = None
    if gone:
        logger.warning("%s (%s has them)", left_out(gone), path)
    wanted = set(last.values())
    numbers = count(1)
    for position, attempt in enumerate(read_attempts(path)):
        if position in wanted:
            yield row_of_attempt(attempt, next(numbers))


def _group_rows(group: Mapping[str, Any], numbers: Iterator[int], group_number: int) -> Iterator[Row]:
    scores = _list(group.get("scores"))
    for index in range(len(scores)):
        raw = {name: value[index] for name, value in group.items() if _has(value, index) and name != "failed"}
        row = _metadata_row(_object(raw.get("metadata")), next(numbers), f"{group_number}.{index + 1}")
        reward = scores[index]
        row.reward = _number(reward)
        if row.passed is None and row.reward is not None:
            row.passed = row.reward >= 1.0 - 1e-9
        row.messages = _messages(raw.get("messages"))
        if row.tokens is None and not _object(raw.get("overrides")).get("placeholder_tokens"):
            row.tokens = len(_list(raw.get("tokens")))
        if row.turns is None and row.messages:
            row.turns = sum(message.get("role") == "assistant" for message in row.messages)
        row.raw = raw
        yield row
    for index, entry in enumerate(_list(group.get("failed"))):
        row = _metadata_row(_object(entry), next(numbers), f"{group_number}.{len(scores) + index + 1}")
        row.messages = _messages(_object(entry).get("messages"))
        row.passed, row.raw = None, entry
        yield row


def _metadata_row(metadata: JSON, number: int, place: str) -> Row:
    usage, timings, verdict = (_object(metadata.get(name)) for name in ("usage", "timings", "verdict"))
    return Row(
        number=number,
        place=place,
        item=str(metadata.get("item_id") or ""),
        item_hash=str(metadata.get("item_hash") or ""),
        attempt=_number(metadata.get("attempt")),
        passed=_flag(verdict.get("passed")),
        ending=str(metadata.get("ending") or ""),
        outcome=str(metadata.get("outcome") or ""),
        turns=_number(metadata.get("turns")),
        tokens=_number(usage.get("completion_tokens")),
        seconds=_number(timings.get("wall")),
        cost=_number(usage.get("cost")),
        model=str(metadata.get("model") or ""),
        verdict=verdict,
        failures=[_object(entry) for entry in _list(metadata.get("failures"))],
        timings=timings,
        details=_details(
            group=metadata.get("group_id"),
            draw=metadata.get("draw"),
            seed=metadata.get("seed"),
            tools=metadata.get("tools"),
            sandbox=metadata.get("sandbox"),
            tool_errors=metadata.get("errors"),
        ),
    )


def _sample_row(sample: Mapping[str, Any], number: int) -> Row:
    reward = sample.get("reward", sample.get("score"))
    told = ("metrics", "explanation", "contested", "tampered")
    verdict = {name: sample[name] for name in told if sample.get(name)}
    known = {"messages", "usage", "timings", *told}
    timings, usage = _object(sample.get("timings")), _object(sample.get("usage"))
    return Row(
        number=number,
        place=str(number),
        item=str(sample.get("item_id") or sample.get("task_name") or sample.get("question") or ""),
        item_hash=str(sample.get("item_hash") or ""),
        attempt=_number(sample.get("attempt")),
        reward=_number(reward),
        passed=_flag(sample.get("passed", sample.get("correct"))),
        ending=str(sample.get("ending") or sample.get("finish_reason") or ""),
        outcome=str(sample.get("outcome") or ("error" if sample.get("error") else "")),
        turns=_number(sample.get("turns_used")),
        tokens=_number(usage.get("completion_tokens")),
        seconds=_number(timings.get("wall")),
        cost=_number(usage.get("cost")),
        model=str(sample.get("model") or ""),
        messages=_messages(sample.get("messages")),
        verdict=verdict,
        timings=timings,
        details={name: value for name, value in sample.items() if name not in known and value is not None},
        raw=dict(sample),
    )


def _is_group(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("scores"), list)


def _is_attempt(record: Mapping[str, Any]) -> bool:
    return {"run_id", "item_id", "group_id", "attempt"} <= record.keys() and "scores" not in record


def _details(**values: Any) -> JSON:
    return {name: value for name, value in values.items() if value not in (None, [], {}, "")}


def _messages(value: Any) -> list[JSON]:
    return [_object(message) or {"content": message} for message in _list(value)]


def _number(value: Any) -> Any:
    """A number as it is, None for what is none; files of others may hold anything."""
    return value if isinstance(value, int | float) else None


def _flag(value: Any) -> bool | None:
    return bool(value) if isinstance(value, int | float) else None


def _object(value: Any) -> JSON:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _has(value: Any, index: int) -> bool:
    return isinstance(value, list) and index < len(value)
