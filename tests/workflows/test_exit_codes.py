"""Exit code 0 only where everything that was planned is there and every attempt is valid."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from environments.errors import (
    AccessDenied,
    HermesError,
    ModelError,
    SandboxError,
    ServerUnavailable,
    StoreError,
    VerifierError,
)
from environments.results.groups import GroupFile
from environments.run import RunReport
from workflows.number_environment import NumberEnv, environment, process

FAILURES: list[Any] = [
    pytest.param(lambda: ServerUnavailable("down"), id="model"),
    pytest.param(lambda: ModelError("odd"), id="odd-model"),
    pytest.param(lambda: SandboxError("gone"), id="sandbox"),
    pytest.param(lambda: VerifierError("no verdict"), id="verifier"),
    pytest.param(lambda: KeyError("bug"), id="environment"),
    pytest.param(lambda: float("nan"), id="nan"),
    pytest.param(lambda: float("inf"), id="infinity"),
    pytest.param(lambda: None, id="no-score"),
]
ONE = 2
"""The item that something is wrong with."""


def evaluate(
    path: Path, behaviour: Any = None, base: type[NumberEnv] | None = None, **settings: Any
) -> RunReport:
    env = environment(path, behaviour, **settings)
    if base is not None:
        env.__class__ = type("Env", (base,), {"behaviour": type(env).behaviour})
    return asyncio.run(env.evaluate_manager())


def ending_with(failure: Any) -> Any:
    return lambda number, call: failure() if number == ONE else 1.0


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("workflow", [evaluate, process])
def test_one_attempt_without_a_score(tmp_path: Path, workflow: Any, failure: Any) -> None:
    path = tmp_path / "out.jsonl"
    report = workflow(
        path, ending_with(failure), group_size=1, model_error_retries=0, sandbox_error_retries=0
    )
    assert report.exit_code == 1 and not report.complete
    assert "failed" in report.message
    mended = workflow(path, group_size=1)
    assert mended.exit_code == 0, mended.message


@pytest.mark.parametrize("failure", FAILURES)
def test_a_group_that_was_written_without_one_of_its_attempts_stays_incomplete(
    tmp_path: Path, failure: Any
) -> None:
    path = tmp_path / "out.jsonl"

    def once(number: int, call: int) -> Any:
        return failure() if (number, call) == (ONE, 1) else 1.0

    settings = {"model_error_retries": 0, "sandbox_error_retries": 0}
    assert process(path, once, **settings).exit_code == 1
    again = process(path, **settings)
    assert again.exit_code == 1 and "1 attempts of finished groups had failed" in again.message
    assert process(path, total_steps=ONE, **settings).exit_code == 0, "the groups before it are whole"


@pytest.mark.parametrize("workflow", [evaluate, process])
def test_a_failure_that_would_meet_every_attempt(tmp_path: Path, workflow: Any) -> None:
    with pytest.raises(HermesError, match="wrong key"):
        workflow(tmp_path / "out.jsonl", ending_with(lambda: AccessDenied("wrong key")), group_size=1)


class Swallows(NumberEnv):
    """Its ``evaluate`` hides that it was ended."""

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        try:
            await super().evaluate()
        except HermesError:
            return {"eval/pass_rate": 1.0}


def test_an_evaluate_that_swallows_the_end(tmp_path: Path) -> None:
    failing = ending_with(lambda: AccessDenied("wrong key"))
    assert evaluate(tmp_path / "out.jsonl", failing, Swallows).exit_code == 1


class Raises(NumberEnv):
    """Its ``evaluate`` fails after the rollouts."""

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        await super().evaluate()
        raise ValueError("no report")


def test_an_evaluate_that_fails_afterwards(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no report"):
        evaluate(tmp_path / "out.jsonl", base=Raises)


def test_some_attempts_of_several(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    once = lambda number, call: KeyError("bug") if (number, call) == (ONE, 3) else 1.0  # noqa: E731
    first = evaluate(path, once, attempts=3)
    assert first.exit_code == 1 and first.metrics["eval/coverage"] == pytest.approx(11 / 12)
    second = evaluate(path, attempts=3)
    assert second.exit_code == 0 and second.metrics["eval/coverage"] == 1.0
    assert evaluate(path, attempts=4).exit_code == 0


def test_groups_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert process(path, ending_with(lambda: VerifierError("no"))).exit_code == 1
    report = process(path)
    assert report.exit_code == 0 and "4 of them from an earlier run" in report.message


def test_a_dataset_that_is_empty(tmp_path: Path) -> None:
    env = environment(tmp_path / "out.jsonl")
    type(env).items = 0
    assert asyncio.run(env.process_manager()).exit_code == 1


def test_a_file_that_was_deleted_is_made_again_from_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    process(path)
    before = sorted(path.read_bytes().splitlines())
    path.unlink()
    env = environment(path)
    report = asyncio.run(env.process_manager())
    assert report.exit_code == 0 and env.calls == {}
    assert "10 attempts taken from what an earlier run kept" in report.message
    assert sorted(path.read_bytes().splitlines()) == before


def test_a_run_that_shrinks_counts_what_it_is_to_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.jsonl"
    process(path, total_steps=3)
    capsys.readouterr()
    report = process(path, total_steps=1, progress="plain")
    assert report.exit_code == 0
    assert "numbers process: 1 done" in capsys.readouterr().err
    assert report.message.startswith(f"3 groups in {path}; 3 of them from an earlier run")


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_two_names_of_one_file_are_one_output(tmp_path: Path, link: Any) -> None:
    path, other = tmp_path / "out.jsonl", tmp_path / "other.jsonl"
    process(path, total_steps=1)
    link(other, path)
    with GroupFile(path) as file:
        file.finished()
        with pytest.raises(StoreError, match="in use by another run"):
            process(other, total_steps=2)
    if link is Path.symlink_to:
        assert process(other, total_steps=2).exit_code == 0
        assert other.is_symlink() and len(path.read_text().splitlines()) == 2
        assert not (tmp_path / "other.run").exists(), "there is one store"


def test_two_runs_at_once_through_a_link(tmp_path: Path) -> None:
    path, other = tmp_path / "out.jsonl", tmp_path / "other.jsonl"
    process(path, total_steps=1)
    other.symlink_to(path)
    going, enough = threading.Event(), threading.Event()

    def slow(number: int, call: int) -> float:
        going.set()
        enough.wait(60)
        return 1.0

    first = threading.Thread(target=process, args=(path, slow), kwargs={"total_steps": 2})
    first.start()
    try:
        assert going.wait(60)
        with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
            process(other, total_steps=2)
    finally:
        enough.set()
        first.join()
    found = [json.loads(line)["metadata"][0]["draw"] for line in path.read_text().splitlines()]
    assert found == [0, 1]
