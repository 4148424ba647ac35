"""The parts of `serve`: wire forms, the ledger over restarts, room for more groups, metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from environments.config import BaseEnvConfig
from environments.errors import UserCodeError
from environments.records import Attempt, Ending, Outcome, PolicySpan, Sequence, Verdict
from environments.results.groups import group_from_attempts
from environments.results.tracker import Tracker
from environments.trajectory_api.client import TrajectoryClient
from environments.workflows.serve_ledger import Ledger
from environments.workflows.serve_link import Demand, Link, Training
from environments.workflows.serve_metrics import PrefixedTracker, ServeMetrics
from environments.workflows.serve_wire import Outgoing, has_placeholders, outgoing, without_placeholders


def attempt(number: int, reward: float, *sequences: Sequence) -> Attempt:
    return Attempt(
        run_id="r",
        environment="e",
        item_id="i",
        group_id="0",
        attempt=number,
        sequences=list(sequences),
        outcome=Outcome.SCORED,
        verdicts=[Verdict(reward=reward)],
    )


def sequence(length: int, trained: int, version: str = "3") -> Sequence:
    tokens = list(range(length))
    mask = [-100] * (length - trained) + tokens[length - trained :]
    logprobs = [1.0] * (length - trained) + [-0.5] * trained
    return Sequence(tokens, mask, logprobs, [PolicySpan(0, length, version)])


def forked() -> Any:
    """Two rollouts; the first forked into two sequences."""
    attempts = [
        attempt(0, 1.0, sequence(6, 2), sequence(8, 4, "2")),
        attempt(1, 0.0, sequence(5, 5)),
    ]
    return group_from_attempts(0, attempts, include_messages=False)


def sent(group: Any, **options: Any) -> Outgoing:
    out = outgoing(group, **{"rollout_ids": False, "max_token_length": 0, **options})
    assert out is not None
    return out


def test_old_trainers_get_one_row_per_rollout() -> None:
    out = sent(forked())
    assert [len(row) for row in out.body["tokens"]] == [8, 5]
    assert out.body["scores"] == [1.0, 0.0] and out.members == 2
    assert "rollout_ids" not in out.body and out.notes == {"branch_not_sent": 1}


def test_new_trainers_get_every_branch_and_its_rollout() -> None:
    out = sent(forked(), rollout_ids=True)
    assert [len(row) for row in out.body["tokens"]] == [6, 8, 5]
    ids = out.body["rollout_ids"]
    assert ids[0] == ids[1] != ids[2] and out.members == 2 and not out.notes
    assert out.body["policy_version"] == 2 and out.trained_tokens == [2, 4, 5]


def test_rows_that_are_too_long_are_left_out_and_told() -> None:
    out = sent(forked(), rollout_ids=True, max_token_length=6)
    assert [len(row) for row in out.body["tokens"]] == [6, 5]
    assert out.notes == {"row_too_long": 1}
    assert outgoing(forked(), rollout_ids=True, max_token_length=3) is None


def two_replies() -> Any:
    """One rollout: a prompt of 2, a reply of 3, a tool's answer of 2, a reply of 3."""
    tokens = list(range(10))
    mask = [-100, -100, 2, 3, 4, -100, -100, 7, 8, 9]
    logprobs = [1.0 if m == -100 else -0.5 for m in mask]
    group = group_from_attempts(
        0, [attempt(0, 1.0, Sequence(tokens, mask, logprobs))], include_messages=False
    )
    group["advantages"] = [[0.1] * 10]
    return group


@pytest.mark.parametrize(("limit", "left"), [(10, 10), (9, 5), (6, 5), (5, 5)])
def test_long_rows_end_with_the_last_reply_that_fits(limit: int, left: int) -> None:
    out = sent(two_replies(), max_token_length=limit, truncate=True)
    for name in ("tokens", "masks", "inference_logprobs", "advantages"):
        assert [len(row) for row in out.body[name]] == [left]
    cut = left < 10
    assert out.body["overrides"] == ([{"truncated_from": 10}] if cut else None)
    assert out.notes == ({"row_truncated": 1} if cut else {})
    assert out.body["scores"] == [1.0]


def test_a_row_of_which_no_reply_fits_is_left_out() -> None:
    assert outgoing(two_replies(), rollout_ids=False, max_token_length=4, truncate=True) is None


def test_the_last_branch_may_train_alone() -> None:
    attempts = [attempt(0, 1.0, sequence(6, 2), sequence(8, 4)), attempt(1, 0.0, sequence(5, 5))]
    group = group_from_attempts(0, attempts, include_messages=False, last_branch=True)
    assert [len(row) for row in group["tokens"]] == [8, 5]
    assert [row["branch"] for row in group["metadata"]] == [1, 0]


def test_rollouts_that_have_no_tokens_are_left_out_with_all_their_columns() -> None:
    attempts = [attempt(0, 1.0), attempt(1, 0.0, sequence(5, 5))]
    group = group_from_attempts(0, attempts, include_messages=True)
    assert has_placeholders(group)
    real = without_placeholders(group)
    for name in ("tokens", "masks", "scores", "messages", "inference_logprobs", "overrides", "metadata"):
        assert len(real[name]) == 1, name  # type: ignore[literal-required]
    assert not has_placeholders(real) and real["scores"] == [0.0]


def test_columns_that_contradict_each_other_are_the_environments_error() -> None:
    group = {"tokens": [[1, 2]], "masks": [[1]], "scores": [1.0]}
    with pytest.raises(UserCodeError, match="masks"):
        sent(group)
    with pytest.raises(UserCodeError, match="scores"):
        sent({**group, "masks": [[1, 2]], "scores": [1.0, 2.0]})


def test_sampling_and_version_are_filled_in() -> None:
    group = {"tokens": [[1]], "masks": [[1]], "scores": [1.0]}
    out = sent(group, generation_params={"temperature": 0.5}, policy_version=9)
    assert out.body["generation_params"] == {"temperature": 0.5} and out.body["policy_version"] == 9


def test_the_ledger_goes_on_with_the_same_training(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    instance = ledger.instance()
    assert ledger.begin("run-a", 0) == []
    first = ledger.spool(ledger.key(4, 0), 4, 2, b"{}")
    ledger.settle(3, "sent")
    ledger.settle(5, "equal_scores")
    ledger.close()
    again = Ledger(tmp_path)
    assert again.instance() == instance
    assert again.begin("run-a", 2) == [first]
    assert again.done == {3, 5} and again.outcomes == {"sent": 1, "equal_scores": 1}
    again.close()


@pytest.mark.parametrize(("run", "step"), [("run-b", 9), ("run-a", 3)])
def test_the_ledger_begins_anew_with_another_training(tmp_path: Path, run: str, step: int) -> None:
    ledger = Ledger(tmp_path)
    ledger.begin("run-a", 0)
    ledger.reached(7)
    ledger.spool(ledger.key(0, 0), 0, 2, b"{}")
    ledger.settle(1, "sent")
    key = ledger.key(2, 0)
    ledger.close()
    again = Ledger(tmp_path)
    assert again.begin(run, step) == [] and again.done == set()
    assert again.key(2, 0) != key
    assert len(list(tmp_path.glob("spool-1/*.json"))) == 1
    again.close()


def link(*, ours: bool = True, demand: Demand | None = None, **config: Any) -> Link:
    one = Link(
        TrajectoryClient("http://localhost:1"),
        BaseEnvConfig(group_size=4, max_batches_offpolicy=2, **config),
        "e",
        "i",
        lambda text: None,
    )
    one.training = Training("r", ours, 0, "e_0", "g", "p", 16, 0, 0, 100, 0, "", False)
    one.demand = demand or Demand()
    return one


def test_room_counts_what_waits_what_is_out_and_what_is_under_way() -> None:
    assert link().room(0, None) == 32
    assert link(demand=Demand(queued=8, outstanding=16)).room(4, None) == 4
    assert link(demand=Demand(queued=16, outstanding=16)).room(0, None) == 0


def test_no_more_is_begun_than_the_training_needs() -> None:
    assert link(demand=Demand(step=9, queued=8)).room(4, 10) == 4
    assert link(demand=Demand(step=9, queued=16)).room(0, 10) == 0


def test_a_minimum_is_filled_although_others_fill_the_queue() -> None:
    demand = Demand(queued=64, own_queued=4)
    assert link(demand=demand).room(0, None) < 0
    assert link(demand=demand, min_batch_allocation=0.25).room(0, None) == 4


def test_the_original_is_never_starved_by_a_guess() -> None:
    assert link(ours=False, demand=Demand(outstanding=48)).room(0, None) == 16


class Recorder(Tracker):
    def __init__(self) -> None:
        super().__init__(None)
        self.seen: dict[str, Any] = {}

    def log(self, metrics: Any, step: int | None = None) -> None:
        self.seen |= metrics


def test_metrics_have_their_names_in_atropos() -> None:
    metrics = ServeMetrics(max_token_length=10)
    metrics.group_made([10, 2])
    metrics.group_ended(2.0, succeeded=True)
    metrics.group_ended(4.0, succeeded=False)
    metrics.group_sent(1, 0.5)
    metrics.looked(0.4, 3)
    metrics.attempts_ended(
        [attempt(0, 1.0, sequence(6, 2)), Attempt("r", "e", "i", "0", 1, ending=Ending.ERROR)]
    )
    metrics.not_sent("equal_scores")
    recorder = Recorder()
    PrefixedTracker(recorder, "e_0").log({**metrics.take(), "server/server_0_request_time_avg": 1.0})
    expected = {
        "e_0_train/items_sent_to_api": 1,
        "e_0_train/items_rejected": 1,
        "e_0_train/not_sent/equal_scores": 1,
        "e_0_train/completion_lengths": 6.0,
        "e_0_train/completion_lengths_p95": 0.5,
        "e_0_train_perf/task_duration_mean": 3.0,
        "e_0_train_perf/failed_task_duration_max": 4.0,
        "e_0_train/staleness_mean": 1.0,
        "e_0_train_perf/mainloop_timings_max": 0.4,
        "e_0_train_perf/workers_added_per_attempt_mean": 3,
        "e_0_train_perf/send_latency_mean": 0.5,
        "e_0_train/outcome/scored": 1,
        "e_0_train/ending/error": 1,
        "server/server_0_request_time_avg": 1.0,
    }
    assert expected.items() <= recorder.seen.items()
    assert metrics.take() == {"train/items_sent_to_api": 0, "train/items_rejected": 0}
