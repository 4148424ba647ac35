"""A run as a job directory of Harbor, so that its viewer and the field's tools read it.

::

    JOB/
      config.json  result.json
      TASK__0/
        config.json  result.json
        agent/trajectory.json                 the conversation in ATIF
        verifier/reward.txt test-stdout.txt   what the tests gave and printed
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from environments.cli_output import emit, plural
from environments.errors import ConfigError, StoreError
from environments.records import Attempt
from environments.results.atif import JSON, timestamp, trajectory_of
from environments.results.coverage import Coverage, left_out, split
from environments.results.durable import make_directory, store_errors, write_atomically
from environments.results.reading import ATTEMPTS_FILE, final_attempts, read_attempts
from environments.results.store import read_tools

logger = logging.getLogger(__name__)

_NAMESPACE = uuid.UUID("6f0c1f0e-5a53-4be1-9d8c-0c7f4f1b9f55")
"""Makes identities that are the same whenever a run is written again."""

_LONGEST_NAME = 100
"""Bytes of an item's id in the name of a directory."""


def main(argv: Sequence[str]) -> int:
    """``hermes-env export harbor RUN JOB``; returns the exit code."""
    usage = (
        "usage: hermes-env export harbor RUN JOB\n\nWrite an evaluation's directory RUN as Harbor's JOB.\n"
    )
    if argv and argv[0] in ("-h", "--help"):
        return emit(usage)
    if len(argv) != 2 or any(word.startswith("--") for word in argv):
        raise ConfigError("'hermes-env export harbor' takes a run's directory and that of the job to write")
    trials = write_job(Path(argv[0]), Path(argv[1]))
    return emit(f"{plural(trials, 'trial')} in {argv[1]}\n")


def write_job(run: Path, job: Path) -> int:
    """Write the attempts of a run directory as a job; returns how many trials there are.

    Attempts at items that the dataset has no more are left out, which a warning names. Raises
    ``ConfigError`` where ``run`` is no run or has no attempt, or ``job`` holds something else;
    ``StoreError`` where one cannot be read or the other not be written.
    """
    with store_errors(f"cannot read {run}"):
        if not (run / ATTEMPTS_FILE).is_file():
            raise ConfigError(f"{run} is no directory of a run: it has no {ATTEMPTS_FILE}")
        attempts, gone = split(final_attempts(read_attempts(run / ATTEMPTS_FILE)), Coverage.read(run))
        tools = read_tools(run)
    if gone:
        logger.warning("%s", left_out(gone))
    if not attempts:
        raise StoreError(f"{run} has no attempt: there is nothing to export")
    with store_errors(f"cannot write {job}"):
        _check_target(job, attempts)
        names = _TrialNames()
        trials = [_write_trial(attempt, job, names.of(attempt), tools) for attempt in attempts]
        _remove_others(job, {trial["trial_name"] for trial in trials})
        _write(job / "config.json", {"job_name": job.name, "jobs_dir": str(job.parent)})
        _write(job / "result.json", _job(job, attempts, trials))
    return len(trials)


def _check_target(job: Path, attempts: Sequence[Attempt]) -> None:
    if job.exists() and not job.is_dir():
        raise ConfigError(f"{job} is no directory; name another")
    if job.exists() and not (job / "result.json").is_file() and any(job.iterdir()):
        raise ConfigError(f"{job} holds something that is no job; name another directory")
    _check_owner(job, attempts)


def _remove_others(job: Path, names: Collection[str]) -> None:
    """Remove trials that an earlier export of the same run wrote and that are none of its results now."""
    for path in job.iterdir():
        if path.name not in names and path.is_dir() and (path / "agent" / "trajectory.json").is_file():
            shutil.rmtree(path)


def _check_owner(job: Path, attempts: Sequence[Attempt]) -> None:
    """Raise ``ConfigError`` where another run's job, or a file that is none, would be written over."""
    path = job / "result.json"
    if not path.exists():
        return
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        found = None
    if not isinstance(found, dict) or found.get("id") != _job_id(job, attempts):
        raise ConfigError(f"{job} is the job of another run, or none; name another directory")


class _TrialNames:
    """Names of trials: the item's where a path can hold it, else with a part of its hash."""

    def __init__(self) -> None:
        self._items: dict[str, str] = {}

    def of(self, attempt: Attempt) -> str:
        """The trial's name, which no other item's trial has."""
        item, plain = attempt.item_id, _plain(attempt.item_id)
        if len(plain.encode()) > _LONGEST_NAME or self._items.setdefault(plain.casefold(), item) != item:
            short = plain.encode()[:_LONGEST_NAME].decode("utf-8", "ignore")
            plain = f"{short}-{hashlib.sha256(item.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        return f"{plain}__{attempt.attempt}"


def _write_trial(attempt: Attempt, job: Path, name: str, tools: Mapping[str, Any]) -> JSON:
    directory = job / name
    verdict = attempt.verdict
    result = _trial(attempt, name, directory)
    _write(directory / "config.json", result["config"])
    _write(directory / "result.json", result)
    schemas = tools.get(attempt.provenance.tools_hash)
    _write(directory / "agent" / "trajectory.json", trajectory_of(attempt, schemas))
    if verdict is not None:
        if verdict.reward is not None:
            make_directory(directory / "verifier")
            write_atomically(directory / "verifier" / "reward.txt", f"{verdict.reward:g}\n".encode())
        output = str(verdict.evidence.get("output", ""))
        make_directory(directory / "verifier")
        write_atomically(directory / "verifier" / "test-stdout.txt", output.encode("utf-8", "replace"))
    return result


def _trial(attempt: Attempt, name: str, directory: Path) -> JSON:
    verdict, model = attempt.verdict, attempt.agent.model
    provider, _, short = model.rpartition("/")
    rewards = None
    if attempt.valid and verdict is not None and verdict.reward is not None:
        rewards = {**verdict.metrics, "reward": verdict.reward}
    config = {
        "task": {"path": attempt.item_id, "source": attempt.provenance.dataset},
        "trial_name": name,
        "trials_dir": str(directory.parent),
        "agent": {"name": attempt.agent.name, "model_name": model or None},
    }
    return {
        "id": str(uuid.uuid5(_NAMESPACE, f"{attempt.run_id}/{attempt.group_id}/{attempt.attempt}")),
        "task_name": attempt.item_id,
        "trial_name": name,
        "trial_uri": directory.resolve().as_uri(),
        "task_id": {"path": attempt.item_id},
        "source": attempt.provenance.dataset,
        "task_checksum": attempt.provenance.item_hash,
        "config": config,
        "agent_info": {
            "name": attempt.agent.name,
            "version": attempt.agent.version or "unknown",
            "model_info": {"name": short, "provider": provider or None} if model else None,
        },
        "agent_result": {
            "n_input_tokens": attempt.usage.prompt_tokens,
            "n_cache_tokens": attempt.usage.cached_tokens,
            "n_output_tokens": attempt.usage.completion_tokens,
            "cost_usd": attempt.usage.cost,
            "metadata": {"ending": attempt.ending, "outcome": attempt.outcome},
        },
        "verifier_result": {"rewards": rewards} if rewards is not None else None,
        "exception_info": _exception(attempt),
        "started_at": timestamp(attempt.started_at),
        "finished_at": timestamp(attempt.ended_at),
    }


def _exception(attempt: Attempt) -> JSON | None:
    """The failure of ours that ended it; a time-out of the agent is graded, and none."""
    if attempt.valid or not attempt.failures:
        return None
    failure = attempt.failures[-1]
    return {
        "exception_type": failure.type,
        "exception_message": failure.message,
        "exception_traceback": failure.traceback,
        "occurred_at": timestamp(failure.at) or timestamp(attempt.ended_at),
    }


def _job(job: Path, attempts: Sequence[Attempt], trials: Sequence[JSON]) -> JSON:
    rewards: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    exceptions: dict[str, list[str]] = defaultdict(list)
    for trial in trials:
        found = trial["verifier_result"]
        for key, value in (found["rewards"] if found else {}).items():
            rewards[key][f"{value:g}"].append(trial["trial_name"])
        if trial["exception_info"] is not None:
            exceptions[trial["exception_info"]["exception_type"]].append(trial["trial_name"])
    errors = sum(len(names) for names in exceptions.values())
    first = attempts[0] if attempts else None
    label = "__".join(filter(None, (first.agent.name, _plain(first.agent.model)))) if first else "none"
    stats = {
        "n_trials": len(trials),
        "n_errors": errors,
        "reward_stats": rewards,
        "exception_stats": exceptions,
    }
    return {
        "id": _job_id(job, attempts),
        "started_at": timestamp(min((a.started_at for a in attempts), default=0.0)) or timestamp(1.0),
        "finished_at": timestamp(max((a.ended_at for a in attempts), default=0.0)),
        "n_total_trials": len(trials),
        "stats": {"n_completed_trials": len(trials), "n_errored_trials": errors, "evals": {label: stats}},
    }


def _job_id(job: Path, attempts: Sequence[Attempt]) -> str:
    return str(uuid.uuid5(_NAMESPACE, attempts[0].run_id if attempts else job.name))


def _plain(name: str) -> str:
    """A name that is one part of a path."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name) or "-"


def _write(path: Path, value: Any) -> None:
    make_directory(path.parent)
    write_atomically(path, orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
