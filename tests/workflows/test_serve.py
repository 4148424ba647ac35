"""`serve` against a real server and a trainer that reads as the original's does."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.attempt_scope import current_attempt
from environments.base_env import BaseEnv
from environments.errors import ConfigError, RunAborted, ServerUnavailable
from environments.records import Ending
from environments.results.tracker import Tracker
from tests.trajectory_api.running import Server, Trainer, call, server
from tests.workflows.training import TokenEnv, make, serve, train

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "api") as running:
        yield running


def ledger(directory: Path) -> dict[int, str]:
    lines = (directory / "groups.run" / "groups-1.jsonl").read_text().splitlines()
    return {entry["draw"]: entry["outcome"] for entry in map(json.loads, lines)}


def test_a_training_gets_each_group_once_and_ends(api: Server, tmp_path: Path) -> None:
    trainer, thread = train(api, 5)
    report = serve(make(tmp_path, api.url))
    thread.join(200)
    assert report.complete and report.exit_code == 0
    assert sorted(trainer.groups) == list(range(10))
    assert Counter(ledger(tmp_path).values()) == {"sent": 10}
    assert len((tmp_path / "groups.jsonl").read_text().splitlines()) == 10
    assert not list(tmp_path.glob("groups.run/spool-1/*"))
    status = call(api.url, "GET", "/metrics")[1]
    assert 'trajectory_api_environments{namespace="default"} 0' in status  # it said good-bye


def test_groups_carry_tokens_and_the_policy_version(api: Server, tmp_path: Path) -> None:
    trainer = Trainer(api.url, num_steps=2)
    trainer.register()
    batches: list[Any] = []

    def read() -> None:
        while len(batches) < 2:
            batch = trainer.fetch()
            batches.append(batch) if batch else time.sleep(0.05)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    serve(make(tmp_path, api.url, max_batches_offpolicy=1))
    thread.join(200)
    for step, batch in enumerate(batches):
        for one in batch:
            number = one["tokens"][0][0]
            assert one["tokens"] == [[number] * 3] * 2
            assert one["masks"] == [[-100, number, number]] * 2
            assert one["inference_logprobs"] == [[1.0, -0.5, -0.1]] * 2
            assert one["env_id"] == 0 and one["policy_version"] <= step


def test_the_bound_on_waiting_batches_counts_everything(api: Server, tmp_path: Path) -> None:
    trainer = Trainer(api.url, num_steps=50)
    trainer.register()
    trainer.fetch()
    environment = make(tmp_path, api.url, total_steps=50, max_batches_offpolicy=2, max_num_workers=32)
    most: list[int] = []

    def look() -> tuple[int, int]:
        status = call(api.url, "GET", "/status-env?env_id=0")[1]
        return status["current_step"], status["queued_sequences"] + status["outstanding_sequences"]

    async def watch() -> None:
        task = asyncio.ensure_future(environment.env_manager())
        while not environment.active_run or not getattr(environment, "position", 0):
            await asyncio.sleep(0.05)
        for round_ in range(3):  # sequences that wait: handed out, queued, being rolled out
            waiting = 0
            while waiting < 8:
                await asyncio.sleep(0.1)
                _, waiting = await asyncio.to_thread(look)
            await asyncio.sleep(1)  # time to begin too many
            step, waiting = await asyncio.to_thread(look)
            most.append(waiting)
            assert step == round_
            await asyncio.to_thread(trainer.fetch)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(watch())
    assert most == [8, 8, 8]  # two batches of four, never more


def test_it_waits_for_the_api_and_the_trainer_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="environments")
    running = Server(tmp_path / "api")
    notes: list[str] = []

    def said(text: str) -> None:
        while text not in "\n".join(notes):
            time.sleep(0.05)

    def come_late() -> None:
        said("waiting for the trajectory API")
        running.start()
        said("waiting for a trainer to register")
        trainer = Trainer(running.url, num_steps=2)
        trainer.register()
        said("waiting for the trainer to fetch its first batch")
        trainer.run(2)

    thread = threading.Thread(target=come_late, daemon=True)
    thread.start()

    class Env(TokenEnv):
        async def setup(self) -> None:
            await super().setup()
            assert self.active_run is not None
            self.active_run.note = notes.append  # type: ignore[method-assign]

    report = serve(make(tmp_path, running.url, Env, total_steps=2))
    thread.join(200)
    running.stop()
    assert report.complete


def test_each_group_arrives_once_although_the_api_is_killed(tmp_path: Path) -> None:
    running = Server(tmp_path / "api").start()
    try:
        trainer = Trainer(running.url, num_steps=40, batch_size=4)
        trainer.register()
        seen: Counter[int] = Counter()
        done = threading.Event()

        def read() -> None:
            acknowledge = ""
            while not done.is_set() and sum(seen.values()) < 80:
                try:
                    reply = call(running.url, "GET", f"/batch?consumer=t{acknowledge}")[1]
                except OSError:
                    time.sleep(0.02)
                    continue
                if not isinstance(reply, dict) or reply.get("batch") is None:
                    time.sleep(0.02)
                elif f"&acknowledge={reply['batch_id']}" != acknowledge:
                    acknowledge = f"&acknowledge={reply['batch_id']}"
                    seen.update(one["tokens"][0][0] for one in reply["batch"])

        def kill() -> None:
            for _ in range(4):
                time.sleep(0.8)
                running.kill()
                time.sleep(0.2)
                running.start()

        threads = [threading.Thread(target=target, daemon=True) for target in (read, kill)]
        for thread in threads:
            thread.start()
        environment = make(tmp_path, running.url, total_steps=40)
        environment.pause = 0.05
        report = serve(environment, timeout=200)
        for thread in threads:
            thread.join(200)
        assert report.complete and report.groups >= 80
        assert len(seen) == 80 and set(seen.values()) == {1}
    finally:
        running.stop()


SCRIPT = """
import sys
from pathlib import Path
from tests.workflows.training import make, serve
environment = make(Path(sys.argv[1]), sys.argv[2], total_steps=30)
environment.pause = 0.1
report = serve(environment)
sys.exit(report.exit_code)
"""


def test_each_group_arrives_once_although_the_environment_is_killed(api: Server, tmp_path: Path) -> None:
    trainer, thread = train(api, 30)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), api.url]
    root = Path(__file__).parents[2]
    for seconds in (2.0, 2.5):
        process = subprocess.Popen(command, cwd=root, start_new_session=True)
        time.sleep(seconds)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert subprocess.run(command, cwd=root, timeout=200).returncode == 0
    thread.join(200)
    assert len(trainer.groups) == 60
    assert max(Counter(trainer.groups).values()) == 1
    joined = [line for line in call(api.url, "GET", "/metrics")[1].splitlines() if "duplicate_total{" in line]
    assert joined  # what was sent again was recognised by its key


def test_another_training_begins_afresh(api: Server, tmp_path: Path) -> None:
    _, thread = train(api, 2)
    serve(make(tmp_path, api.url, total_steps=2))
    thread.join(200)
    second, thread = train(api, 2)
    report = serve(make(tmp_path, api.url, total_steps=2))
    thread.join(200)
    assert report.complete and report.groups >= 4
    assert sorted(second.groups) == [0, 1, 2, 3]
    assert (tmp_path / "groups.run" / "groups-2.jsonl").exists()


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


@pytest.mark.parametrize("handling", ["STOP_TRAIN", "LIMIT_TRAIN", "NONE"])
def test_evaluations_come_at_their_steps(api: Server, tmp_path: Path, handling: str) -> None:
    trainer = Trainer(api.url, num_steps=4, save_checkpoint_interval=2)
    trainer.register()
    thread = threading.Thread(target=trainer.run, args=(4,), kwargs={"pause": 0.7}, daemon=True)
    thread.start()

    class Slow(TokenEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.1)
            self.evaluations.append(self.rolling)

    environment = make(
        tmp_path,
        api.url,
        Slow,
        total_steps=4,
        steps_per_eval=1,
        eval_at_start=True,
        eval_handling=handling,
        max_batches_offpolicy=1,
    )
    report = serve(environment)
    thread.join(200)
    assert report.complete
    assert "evaluated at 0, 1, 2, 3, 4" in report.message
    assert environment.saved == [2, 4]


def test_what_was_saved_comes_back_after_a_restart(api: Server, tmp_path: Path) -> None:
    class Remembering(TokenEnv):
        seen = 0
        loaded: int | None = None

        def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
            BaseEnv.save_checkpoint(self, step, {"seen": self.position})

        def load_checkpoint(self) -> None:
            BaseEnv.load_checkpoint(self)
            self.loaded = self.seen

    checkpoints = tmp_path / "checkpoints"
    options = {"save_checkpoint_interval": 2, "checkpoint_dir": str(checkpoints)}
    _, thread = train(api, 8, **options)
    first = make(tmp_path, api.url, Remembering, total_steps=5)
    assert serve(first).complete
    assert (checkpoints / "env_checkpoints" / "tokens_0" / "step-4.json").exists()
    again = make(tmp_path, api.url, Remembering, total_steps=8)
    assert serve(again).complete
    thread.join(200)
    assert again.loaded and again.loaded > 4


class Recorder(Tracker):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(None)
        self.names: set[str] = set()
        self.totals: Counter[str] = Counter()

    def log(self, metrics: Any, step: int | None = None) -> None:
        self.names |= set(metrics)
        self.totals.update({k: v for k, v in metrics.items() if isinstance(v, int)})

    def log_table(self, name: str, columns: Any, rows: Any, step: int | None = None) -> None:
        self.names.add(name)


def test_metrics_are_logged_by_their_names_in_atropos(
    api: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    opened: list[Any] = []

    def open_tracker(*arguments: Any, **options: Any) -> Tracker:
        opened.append((arguments, options))
        return recorder

    monkeypatch.setattr(Tracker, "open", open_tracker)

    class Talking(TokenEnv):
        async def collect_trajectory(self, item: Any) -> Any:
            row, backlog = await super().collect_trajectory(item)
            if item["number"] == 3:
                raise ServerUnavailable("gone")
            return {**row, "messages": [{"role": "user", "content": "x"}]}, backlog

    _, thread = train(api, 4)
    options = {"total_steps": 4, "include_messages": True, "model_error_retries": 0}
    assert serve(make(tmp_path, api.url, Talking, **options)).complete
    thread.join(200)
    names = {name.removeprefix("tokens_0_") for name in recorder.names if name.startswith("tokens_0_")}
    spread = ("mean", "std", "max", "min")
    perf = ("task_duration", "succeeded_task_duration", "failed_task_duration")
    perf += ("mainloop_timings", "workers_added_per_attempt", "send_latency")
    lengths = ("", "_std", "_max", "_min", "_p95")
    expected = {f"train_perf/{name}_{kind}" for name in perf for kind in spread}
    expected |= {f"train/completion_lengths{kind}" for kind in lengths}
    expected |= {f"train/staleness_{kind}" for kind in spread}
    expected |= {"train/rollouts", "train/items_sent_to_api", "train/items_rejected"}
    expected |= {"train/outcome/scored", "train/outcome/model_error", "train/ending/stopped"}
    expected |= {"train/not_sent/no_scored_attempt"}
    assert expected - names == set()
    assert recorder.totals["tokens_0_train/items_sent_to_api"] == 8
    assert recorder.totals["tokens_0_train/outcome/model_error"] == 2
    [((_, name, _, project), more)] = opened
    assert (name, project, more) == ("tokens_0", "project", {"group": "group"})


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


def test_mistakes_are_said_at_once(api: Server, tmp_path: Path) -> None:
    train(api, 5)
    with pytest.raises(ConfigError, match="group_size 5"):
        serve(make(tmp_path, api.url, group_size=5))
    with pytest.raises(ConfigError, match="no URL"):
        serve(make(tmp_path, "localhost:8000"))


def test_two_environments_share_a_training_with_a_minimum(api: Server, tmp_path: Path) -> None:
    trainer = Trainer(api.url, num_steps=6, batch_size=8)
    trainer.register()
    trainer.fetch()
    shares: list[int] = []

    def read() -> None:
        while len(shares) < 6:
            batch = trainer.fetch()
            if batch is None:
                time.sleep(0.05)
            else:
                shares.append(sum(len(one["tokens"]) for one in batch if one["env_id"] == slow_id[0]))

    slow_id = [1]
    fast = make(tmp_path / "fast", api.url, total_steps=6, wandb_name="fast")
    slow = make(tmp_path / "slow", api.url, total_steps=6, min_batch_allocation=0.25, wandb_name="slow")
    slow.pause = 0.2

    async def registered(environments: int) -> None:
        line = f'trajectory_api_environments{{namespace="default"}} {environments}\n'
        while line not in (await asyncio.to_thread(call, api.url, "GET", "/metrics"))[1]:
            await asyncio.sleep(0.05)

    async def both() -> list[Any]:
        first = asyncio.ensure_future(fast.env_manager())
        await registered(1)
        second = asyncio.ensure_future(slow.env_manager())
        await registered(2)
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        async with asyncio.timeout(200):
            return await asyncio.gather(first, second)

    reports = asyncio.run(both())
    assert all(report.complete for report in reports)
    assert all(share >= 2 for share in shares)
