"""With the real atroposlib 0.4.0: our environments on its server, its environments on ours, its trainer.

``HERMES_TEST_ATROPOS_PYTHON`` names the Python of an environment with ``torch`` and ``atroposlib==0.4.0``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.atropos_server import PYTHON, WHY_NOT, started, their_api
from tests.trajectory_api.running import call, server
from tests.workflows.training import make, serve

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUR_ENVIRONMENT = ROOT / "environments" / "terminal_test_env" / "terminal_test_env.py"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON, reason=WHY_NOT),
]


@contextmanager
def their_trainer(url: str, steps: int, batch_size: int, directory: Path) -> Iterator[Any]:
    command = [PYTHON, str(HERE / "atropos_trainer.py"), url, str(steps), str(batch_size)]
    log = directory / "trainer.log"
    with started(command, directory, log) as process:

        def batches() -> list[dict[str, Any]]:
            assert process.wait(180) == 0, log.read_text()[-3000:]
            lines = [line for line in log.read_text().splitlines() if line.startswith("BATCH ")]
            return [json.loads(line.removeprefix("BATCH ")) for line in lines]

        yield batches


def their_environment(url: str, directory: Path, *options: str) -> Any:
    script = str(HERE / "atropos_environment.py")
    command = [PYTHON, script, "serve", "--env.rollout_server_url", url, *options]
    return started(command, directory, directory / "theirs.log")


def our_environment(url: str, *options: str) -> list[str]:
    return [
        sys.executable,
        str(OUR_ENVIRONMENT),
        "serve",
        *("--openai.server_type", "oracle"),
        *("--env.rollout_server_url", url),
        *("--env.allow_placeholder_tokens", "true"),
        *("--env.use_wandb", "false"),
        *("--env.steps_per_eval", "0"),
        *options,
    ]


def check_theirs(group: dict[str, Any]) -> None:
    """Token for token what their environment sent."""
    item = int(group["messages"][0][0]["content"])
    assert group["tokens"] == [[1, 2 + item % 50, 60], [1, 2 + item % 50, 61]]
    assert group["masks"] == [[-100, *row[1:]] for row in group["tokens"]]
    assert group["inference_logprobs"] == [[1.0, -0.25, -0.125], [1.0, -0.25, -0.25]]
    assert group["scores"] == [0.0, 1.0] and group["generation_params"] == {"temperature": 0.5}


def test_our_environment_feeds_their_server_and_trainer(tmp_path: Path) -> None:
    with their_api(tmp_path) as url, their_trainer(url, 2, 6, tmp_path) as batches:
        run = subprocess.run(
            our_environment(url, "--env.total_steps", "2"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        assert "the original" in run.stderr
        got = batches()
    assert len(got) == 2
    for one in got:
        for group in one["batch"]:
            assert group["tokens"] == [[0]] * 3 and group["masks"] == [[-100]] * 3
            assert group["inference_logprobs"] == [[1.0]] * 3 and group["scores"] == [1.0] * 3
            assert group["overrides"] == [{"placeholder_tokens": True}] * 3
        assert one["temperatures"] == [[1.0] * 6]


def test_real_tokens_reach_their_trainer_through_their_server(tmp_path: Path) -> None:
    with their_api(tmp_path) as url, their_trainer(url, 3, 4, tmp_path) as batches:
        report = serve(make(tmp_path, url, total_steps=3), timeout=150)
        assert report.complete
        got = batches()
    numbers = []
    for one in got:
        for group in one["batch"]:
            number = group["tokens"][0][0]
            numbers.append(number)
            assert group["tokens"] == [[number] * 3] * 2
            assert group["masks"] == [[-100, number, number]] * 2
            assert group["inference_logprobs"] == [[1.0, -0.5, -0.1]] * 2
        assert [round(value, 4) for value in one["logprobs"][0][0][:2]] == [-0.5, -0.1]
    assert len(set(numbers)) == len(numbers) >= 6


def test_their_environment_feeds_our_server_and_their_trainer(tmp_path: Path) -> None:
    with (
        server(tmp_path / "data") as ours,
        their_trainer(ours.url, 3, 4, tmp_path) as batches,
        their_environment(ours.url, tmp_path),
    ):
        got = batches()
    assert len(got) >= 3  # it reads until nothing waits
    items = []
    for one in got:
        assert sum(len(group["tokens"]) for group in one["batch"]) == 4
        for group in one["batch"]:
            check_theirs(group)
            items.append(int(group["messages"][0][0]["content"]))
        assert one["temperatures"] == [[0.5] * 4]
        assert one["logprobs"] is not None and one["logprobs"][0][0][:2] == [-0.25, -0.125]
        assert [round(row[0], 5) for row in one["advantages"][0]] == [-1.0, 1.0] * 2
    assert len(set(items)) == len(items)


def test_both_environments_share_our_server_by_their_minima(tmp_path: Path) -> None:
    minimum = ("--env.min_batch_allocation", "0.3")
    with ExitStack() as stack:
        ours = stack.enter_context(server(tmp_path / "data"))
        steps = 4
        call(
            ours.url,
            "POST",
            "/register",
            {
                "wandb_group": "g",
                "wandb_project": "p",
                "batch_size": 10,
                "max_token_len": 64,
                "checkpoint_dir": "",
                "save_checkpoint_interval": 100,
                "starting_step": 0,
                "num_steps": 1000,
            },
        )
        call(ours.url, "GET", "/batch")
        stack.enter_context(their_environment(ours.url, tmp_path, *minimum))
        command = our_environment(ours.url, *minimum, "--env.total_steps", "1000")
        stack.enter_context(started(command, tmp_path, tmp_path / "ours.log"))
        deadline = time.monotonic() + 120
        while 'environments{namespace="default"} 2' not in call(ours.url, "GET", "/metrics")[1]:
            assert time.monotonic() < deadline
            time.sleep(0.3)
        got = 0
        while got < steps:
            assert time.monotonic() < deadline
            batch = call(ours.url, "GET", "/batch")[1]["batch"]
            if batch is None:
                time.sleep(0.2)
                continue
            got += 1
            theirs = [group for group in batch if group["messages"]]
            assert theirs and len(theirs) < len(batch)
            for group in theirs:
                check_theirs(group)
            assert sum(len(g["tokens"]) for g in theirs) >= 3
            assert sum(len(g["tokens"]) for g in batch if not g["messages"]) >= 3
            assert sum(len(g["tokens"]) for g in batch) <= 10
