"""Groups and sequences that `serve` leaves out, and the runs that end of it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from environments.attempt_scope import current_attempt
from environments.errors import ConfigError, RunAborted, ServerUnavailable
from environments.records import Ending
from tests.trajectory_api.running import Server, Trainer
from tests.workflows.training import TokenEnv, ledger, make, serve, train

pytestmark = pytest.mark.timeout(300)


def test_groups_that_are_not_sent_are_counted_with_their_reasons(api: Server, tmp_path: Path) -> None:
    train(api, 3)

    def behaviour(number: int) -> Any:
        if number == 1:
            return ServerUnavailable("gone")
        if number == 2:
            return asyncio.sleep(30)
        return float(number)

    environment = make(
        tmp_path,
        api.url,
        behaviour=behaviour,
        total_steps=3,
        worker_timeout=4,
        model_error_retries=0,
    )
    report = serve(environment)
    assert report.complete
    outcomes = ledger(tmp_path)
    assert outcomes[1] == "no_scored_attempt" and outcomes[2] == "worker_timeout"
    assert "1 not sent: worker_timeout" in report.message


def test_equal_scores_are_left_out_where_asked_for(api: Server, tmp_path: Path) -> None:
    train(api, 1)
    scores = iter([0.0, 0.0, 0.0, 1.0, 0.5, 1.0, 0.25, 1.0, 0.1, 0.2, 0.3, 0.4, 0.7, 0.9])
    environment = make(
        tmp_path,
        api.url,
        behaviour=lambda number: next(scores),
        total_steps=1,
        max_num_workers=1,
        ensure_scores_are_not_same=True,
    )
    assert serve(environment).complete
    assert ledger(tmp_path)[0] == "equal_scores"


def test_a_hopeless_run_ends(api: Server, tmp_path: Path) -> None:
    train(api, 5)
    environment = make(
        tmp_path, api.url, behaviour=lambda number: ServerUnavailable("gone"), model_error_retries=0
    )
    with pytest.raises(RunAborted):
        serve(environment)
    assert environment.position < 30


def test_groups_of_nothing_end_the_run_without_burning_items(api: Server, tmp_path: Path) -> None:
    train(api, 5)

    class Env(TokenEnv):
        async def collect_trajectories(self, item: Any) -> Any:
            return None, []

    environment = make(tmp_path, api.url, Env)
    with pytest.raises(RunAborted, match="gave nothing to send"):
        serve(environment)
    assert environment.position <= 24


class LongEnv(TokenEnv):
    """The first rollout of each group is short, the others have two replies, the first of them short."""

    async def collect_trajectory(self, item: Any) -> Any:
        row, backlog = await super().collect_trajectory(item)
        attempt = current_attempt.get()
        assert row is not None and attempt is not None
        if attempt.record.attempt > 0:
            n = item["number"]
            row["tokens"], row["masks"] = [n] * 8, [-100, n, n, -100, -100, n, n, n]
            row["inference_logprobs"] = [1.0, -0.5, -0.5, 1.0, 1.0, -0.5, -0.5, -0.5]
        return row, backlog


@pytest.mark.parametrize(
    ("policy", "reason", "words"),
    [
        ("drop", "row_too_long", "left out as too long for the trainer"),
        ("truncate", "row_truncated", "truncated to what the trainer takes"),
    ],
)
def test_sequences_that_are_cut_or_left_out_are_told_and_counted(
    api: Server, tmp_path: Path, policy: str, reason: str, words: str
) -> None:
    train(api, 2, max_token_len=7, batch_size=2)
    environment = make(tmp_path, api.url, LongEnv, total_steps=2, long_sequences=policy)
    report = serve(environment)
    lines = (tmp_path / "groups.run" / "groups-1.jsonl").read_text().splitlines()
    noted = [entry["rows"] for entry in map(json.loads, lines) if "rows" in entry]
    assert report.complete and len(noted) >= 2 and all(rows == {reason: 1} for rows in noted)
    assert f"{len(noted)} sequences {words}" in report.message
    assert report.metrics[f"not_sent/{reason}"] == len(noted)
    # The same command later still knows of them.
    assert f"{len(noted)} sequences {words}" in serve(make(tmp_path, api.url, LongEnv, total_steps=2)).message


def test_a_training_that_takes_no_sequence_ends(api: Server, tmp_path: Path) -> None:
    train(api, 5, max_token_len=2)
    environment = make(tmp_path, api.url, total_steps=5)
    with pytest.raises(RunAborted, match=r"longer than the 2 tokens .*--env.long_sequences truncate"):
        serve(environment)
    assert environment.position <= 24


def test_no_more_items_ends_the_run_incomplete(api: Server, tmp_path: Path) -> None:
    train(api, 5)

    class Env(TokenEnv):
        items = 3

    report = serve(make(tmp_path, api.url, Env))
    assert not report.complete and "no more items" in report.message
    assert Counter(ledger(tmp_path).values()) == {"sent": 3}


def test_attempts_over_a_limit_may_count_for_the_mean_alone(api: Server, tmp_path: Path) -> None:
    class Overflowing(TokenEnv):
        async def collect_trajectory(self, item: Any) -> Any:
            scope = current_attempt.get()
            assert scope is not None
            if scope.record.attempt == 0:
                scope.record.ending = Ending.CONTEXT_LENGTH
            return await super().collect_trajectory(item)

    trainer = Trainer(api.url, num_steps=1)
    trainer.register()
    batches: list[Any] = []

    def read() -> None:
        while not batches:
            batch = trainer.fetch()
            batches.append(batch) if batch else time.sleep(0.05)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    serve(make(tmp_path, api.url, Overflowing, total_steps=1, over_limit_attempts="baseline"))
    thread.join(200)
    assert [one["overrides"] for one in batches[0]] == [[{"set_advantage_to_zero": True}, {}]] * 2


def test_placeholder_tokens_are_refused(api: Server, tmp_path: Path) -> None:
    train(api, 5)

    class Env(TokenEnv):
        async def collect_trajectory(self, item: Any) -> Any:
            return {"scores": 1.0, "messages": [{"role": "user", "content": "x"}]}, []

    with pytest.raises(ConfigError, match="allow_placeholder_tokens"):
        serve(make(tmp_path, api.url, Env))
