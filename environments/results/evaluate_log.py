"""Results of an evaluation in Atropos' form: ``metrics.json`` and ``samples.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from environments.records import Attempt, Ending
from environments.results.durable import encode, write_atomically, write_via_temporary
from environments.results.fingerprint import scrub
from environments.results.metrics import passed
from environments.results.plain import plain
from environments.results.reading import item_hashes

METRICS_FILE = "metrics.json"
SAMPLES_FILE = "samples.jsonl"


def write_evaluation(
    directory: Path,
    *,
    name: str,
    model_name: str,
    metrics: Mapping[str, Any],
    samples: Iterable[Mapping[str, Any]] | None,
    start_time: float | None = None,
    end_time: float | None = None,
    generation_parameters: Any = None,
    covers: Mapping[str, Any] | None = None,
) -> None:
    """Write both files, each whole or not at all.

    ``name`` is the task that the metrics stand under. ``samples`` may be any mappings, one line each,
    and are written as they come, so a generator does; None leaves an earlier ``samples.jsonl`` alone.
    Times are seconds since the epoch. ``covers`` says which items the metrics are of. Raises ``StoreError``.
    """
    elapsed = end_time - start_time if start_time is not None and end_time is not None else None
    parameters = scrub(generation_parameters) if generation_parameters is not None else {}
    document = {
        "config_general": {
            "model_name": model_name,
            "total_evaluation_time_seconds": elapsed,
            "generation_parameters": parameters,
        },
        "results": {name: plain(metrics), "all": plain(metrics)},
    }
    if covers is not None:
        document["covers"] = plain(covers)
    if samples is not None:
        rows = samples

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                for sample in rows:
                    file.write(encode(sample) + b"\n")

        write_via_temporary(directory / SAMPLES_FILE, write)
    indented = orjson.dumps(orjson.loads(encode(document)), option=orjson.OPT_INDENT_2)
    write_atomically(directory / METRICS_FILE, indented + b"\n")


def sample_from_attempt(attempt: Attempt) -> dict[str, Any]:
    """One line of ``samples.jsonl``: what became of one attempt, with its conversation."""
    item = attempt.item or {}
    verdict = attempt.verdict
    sample: dict[str, Any] = {
        "task_name": item.get("task_name") or item.get("name") or attempt.item_id,
        "category": item.get("category"),
        "passed": passed(attempt),
        "reward": attempt.reward,
        "turns_used": len(attempt.turns),
        "finished_naturally": attempt.ending is Ending.STOPPED,
        "item_id": attempt.item_id,
        "item_hash": item_hashes(attempt)[-1],
        "attempt": attempt.attempt,
        "ending": attempt.ending,
        "outcome": attempt.outcome,
        "model": attempt.agent.model,
        "metrics": dict(verdict.metrics) if verdict else {},
        "explanation": verdict.explanation if verdict else "",
        "contested": verdict.contested if verdict else False,
        "tampered": verdict.tampered if verdict else False,
        "usage": plain(attempt.usage),
        "timings": plain(attempt.clock),
        "tool_errors": plain(attempt.tool_errors),
        "messages": attempt.messages,
    }
    if sample["category"] is None:
        del sample["category"]
    error = _error(attempt)
    if error:
        sample["error"] = error
    return sample


def _error(attempt: Attempt) -> str | None:
    if attempt.valid:
        return None
    if attempt.failures:
        failure = attempt.failures[-1]
        return f"{failure.type}: {failure.message}"
    if attempt.verdict is not None and attempt.verdict.error:
        return attempt.verdict.error
    return str(attempt.outcome) if attempt.outcome else "not finished"
