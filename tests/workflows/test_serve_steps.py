"""What `serve` does at the steps of a training: evaluations, checkpoints, metrics."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from environments.base_env import BaseEnv
from environments.errors import ServerUnavailable
from environments.results.tracker import Tracker
from tests.trajectory_api.running import Server, Trainer
from tests.workflows.training import TokenEnv, make, serve, train

pytestmark = pytest.mark.timeout(300)


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
