"""Signals and exit codes of a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "environments" / "terminal_test_env" / "terminal_test_env.py"


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the oracle on many groups, in a process group of its own."""
    return subprocess.Popen(
        [
            *(sys.executable, str(SCRIPT), "process", "--openai.server_type", "oracle"),
            *("--env.data_path_to_save_groups", "out.jsonl", "--env.use_wandb", "false", *arguments),
        ],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_groups(path: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().count("\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} has not got {count} groups in time")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=90)
    return process.returncode, errors


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_run_cleanly_and_the_same_command_goes_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = start(tmp_path, "--env.total_steps", "60")
    wait_for_groups(tmp_path / "out.jsonl", 3)
    process.send_signal(number)
    returned, errors = finish(process)
    assert returned == code
    assert "the same command goes on" in errors
    assert "Traceback" not in errors
    returned, errors = finish(start(tmp_path, "--env.total_steps", "12"))
    assert returned == 0, errors
    draws = [json.loads(line)["metadata"][0]["draw"] for line in (tmp_path / "out.jsonl").open()]
    assert len(draws) == len(set(draws))
    assert set(range(12)) <= set(draws)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, "--env.total_steps", "500")
    wait_for_groups(tmp_path / "out.jsonl", 1)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143


def test_kill_9_loses_and_doubles_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = dict(os.environ, TMPDIR=str(temporary))

    def run(total: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(sys.executable, str(SCRIPT), "process", "--openai.server_type", "oracle"),
                *("--env.data_path_to_save_groups", "out.jsonl", "--env.use_wandb", "false"),
                *("--env.total_steps", str(total)),
            ],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    process = run(40)
    wait_for_groups(tmp_path / "out.jsonl", 4)
    process.kill()
    process.communicate()
    returned, errors = finish(run(40))
    assert returned == 0, errors
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").open()]
    assert sorted(line["metadata"][0]["draw"] for line in lines) == list(range(40))
    assert {tuple(line["scores"]) for line in lines} == {(1.0, 1.0, 1.0)}
    left = [path for path in temporary.rglob("*") if path.name.startswith("sandbox") or path.is_socket()]
    assert left == []


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_a_run_that_nobody_listens_to_writes_its_results(tmp_path: Path, streams: str) -> None:
    line = f'"{sys.executable}" "{SCRIPT}" process --openai.server_type oracle --env.total_steps 2'
    line += f" --env.use_wandb false --env.data_path_to_save_groups out.jsonl {streams}"
    done = subprocess.run(line, shell=True, cwd=tmp_path, timeout=90, check=False)
    assert done.returncode == 0
    assert [len(json.loads(text)["scores"]) > 0 for text in (tmp_path / "out.jsonl").open()] == [True, True]


@pytest.mark.parametrize("where", ["item_id", "item_info", "postprocess_histories", "cleanup"])
def test_user_code_cannot_end_the_run_as_a_success(tmp_path: Path, where: str) -> None:
    (tmp_path / "odd.py").write_text(
        "import sys\n"
        "from environments.terminal_test_env.terminal_test_env import TerminalTestEnv\n\n\n"
        "class Odd(TerminalTestEnv):\n"
        f"    def {where}(self, *_):\n"
        "        sys.exit(0)\n\n\n"
        "Odd.cli()\n"
    )
    ended = subprocess.run(
        [
            *(sys.executable, "odd.py", "process", "--openai.server_type", "oracle"),
            *("--env.use_wandb", "false", "--env.data_path_to_save_groups", "out.jsonl"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 1
    assert "sys.exit(0)" in ended.stderr
    assert where in ended.stderr
