"""`serve` against a real server and a trainer that reads as the original's does."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from environments.errors import ConfigError
from tests.trajectory_api.running import Server, Trainer, call
from tests.workflows.training import TokenEnv, ledger, make, serve, train

pytestmark = pytest.mark.timeout(300)


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
