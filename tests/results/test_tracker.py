"""The tracker never stands in the run's way, and works with the real W&B where it is installed."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from environments.results import tracker as module
from environments.results.tracker import Tracker, why_not


class FakeRun:
    """Stands for W&B's side of the line only."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.logged: list[Any] = []
        self.finished = 0

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        if self.broken:
            raise RuntimeError("network is down")
        self.logged.append((values, step))

    def finish(self) -> None:
        self.finished += 1


def test_metrics_arrive_in_order_and_finish_waits_for_them() -> None:
    run = FakeRun()
    tracker = Tracker(lambda: run)
    for step in range(50):
        tracker.log({"x": step, "o": {1}}, step=step)
    tracker.finish()
    tracker.finish()
    assert run.logged == [({"x": step, "o": [1]}, step) for step in range(50)]
    assert run.finished == 1 and not tracker.active
    tracker.log({"x": 1})


def test_what_fails_is_said_once_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    run = FakeRun(broken=True)
    tracker = Tracker(lambda: run)
    for _ in range(3):
        tracker.log({"x": 1})
    tracker.finish()
    assert caplog.text.count("network is down") == 1 and run.finished == 1

    def no_start() -> Any:
        raise OSError("no such host")

    tracker = Tracker(no_start)
    tracker.log({"x": 1})
    tracker.finish()
    assert "no such host" in caplog.text


def test_a_stuck_tracker_blocks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def stuck() -> Any:
        release.wait()
        return FakeRun()

    tracker = Tracker(stuck)
    for _ in range(module.QUEUE_LENGTH + 10):
        tracker.log({"x": 1})
    tracker.finish(timeout=0.05)
    release.set()
    assert caplog.text.count("too slow") == 1


def test_why_not_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: Any) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert "not installed" in str(why_not())
    caplog.set_level(logging.INFO)
    assert not Tracker.open(True, "n", {}).active
    assert len(caplog.records) == 1
    assert not Tracker.open(False, "n", {}).active
    assert len(caplog.records) == 1

    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    assert "no key" in str(why_not())
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password k\n")
    assert why_not() is None
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "disabled" in str(why_not())
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert why_not() is None


def test_the_real_wandb_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if module.importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = Tracker.open(True, "n", {"api_key": "hushhushhush", "x": 1}, "p", directory=tmp_path)
    tracker.log({"train/x": 1.0, "odd": object()}, step=1)
    tracker.log_table("train/rollouts", ["text", "score"], [["a", 1.0], [["b"], None]])
    tracker.finish()
    (data,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = data.read_bytes()
    assert b"train/x" in content and b"train/rollouts" in content and b"hushhush" not in content
    assert list(tmp_path.glob("wandb/offline-run-*/files/media/table/train/*.json"))


def test_importing_results_loads_nothing_heavy() -> None:
    code = """
import sys, pkgutil, importlib, environments.results as results
for module in pkgutil.iter_modules(results.__path__):
    importlib.import_module(f"environments.results.{module.name}")
print(sorted({"wandb", "rich", "pydantic", "aiohttp", "asyncio"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr
