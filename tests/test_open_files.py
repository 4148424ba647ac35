"""A run may hold more files open than the process that it was started from, its sandboxes may not."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from environments.open_files import limit_inside, more_open_files, shortage

ROOT = Path(__file__).parents[1]

PROGRAM = """
import asyncio, json, resource
from environments.config import HermesAgentEnvConfig
from environments.open_files import more_open_files
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.local.backend import LocalBackend

async def main():
    backend = LocalBackend(HermesAgentEnvConfig(), "open-files")
    async def one():
        sandbox = await backend.create(SandboxSpec())
        runs = [await sandbox.exec("ulimit -Sn; ulimit -Hn", timeout=60) for _ in range(2)]
        process = await sandbox.spawn("ulimit -Sn; ulimit -Hn")
        await process.wait(60)
        return [run.text for run in runs] + [(await process.read_soon(5)).decode()]
    try:
        return await asyncio.gather(*(one() for _ in range(40)))
    finally:
        await backend.close()

with more_open_files():
    inside = asyncio.run(main())
print(json.dumps([inside, resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


def under(soft: int, hard: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program with these limits."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, preexec_fn=limit, timeout=200)


def test_more_sandboxes_than_the_soft_limit_has_room_for() -> None:
    done = under(128, 4096, sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    inside, after = json.loads(done.stdout)
    assert {text for texts in inside for text in texts} == {"128\n4096\n"}
    assert after == [128, 4096]


def test_the_limit_is_raised_for_as_long_as_it_is_asked_for() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = (min(300, before[1]), before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, low)
    try:
        with more_open_files() as limit:
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, before[1])
            assert 300 < limit <= 65536
            assert limit_inside() == 300
            with more_open_files() as again:
                assert (again, limit_inside()) == (limit, 300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == low
        assert limit_inside() is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("limit", "rollouts", "enough"), [(65536, 2000, True), (1024, 16, True), (1024, 256, False)]
)
def test_a_limit_that_is_too_low_is_told(limit: int, rollouts: int, enough: bool) -> None:
    text = shortage(limit, rollouts)
    assert (text == "") is enough
    assert enough or ("256 rollouts" in text and "1024" in text)


def test_a_run_says_that_its_hard_limit_is_too_low(tmp_path: Path) -> None:
    script = ROOT / "environments" / "terminal_test_env" / "terminal_test_env.py"
    options = ["--openai.server_type", "oracle", "--env.use_wandb", "false", "--env.total_steps", "1"]
    options += ["--env.max_eval_workers", "200", "--env.data_dir_to_save_evals", str(tmp_path / "evals")]
    done = under(300, 400, sys.executable, str(script), "evaluate", *options)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "open files" in line and "400" in line], done.stderr
