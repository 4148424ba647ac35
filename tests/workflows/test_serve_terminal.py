"""TerminalTestEnv, the whole stack: oracle, real sandboxes, the server, a trainer; by its command line."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.trajectory_api.running import Trainer, call, server
from tests.workflows.training import train

SCRIPT = Path(__file__).parents[2] / "environments" / "terminal_test_env" / "terminal_test_env.py"


def command(url: str, *options: str) -> list[str]:
    fixed = ["serve", "--openai.server_type", "oracle", "--env.use_wandb", "false"]
    return [sys.executable, str(SCRIPT), *fixed, "--env.rollout_server_url", url, *options]


def test_the_oracle_serves_a_training(tmp_path: Path) -> None:
    with server(tmp_path / "api") as api:
        trainer, thread = train(api, 3, batch_size=6)
        done = subprocess.run(
            command(api.url, "--env.allow_placeholder_tokens", "true"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
        )
        thread.join(100)
    assert done.returncode == 0, done.stderr
    assert "6 groups sent, step 3 of 3" in done.stderr and "mean reward 1.000" in done.stderr
    assert "evaluated at 3" in done.stderr
    assert trainer.steps == 3
    assert (tmp_path / "serve" / "terminal-test" / "evals" / "step-3" / "metrics.json").exists()


def test_placeholders_are_refused_before_anything_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        command("http://127.0.0.1:9"), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "allow_placeholder_tokens" in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_says_good_bye_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with server(tmp_path / "api") as api:
        trainer = Trainer(api.url, batch_size=6)
        trainer.register()
        trainer.fetch()
        options = command(api.url, "--env.allow_placeholder_tokens", "true", "--env.total_steps", "4")
        with subprocess.Popen(options, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
            wait_for(lambda: trainer.fetch() is not None)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        assert 'environments{namespace="default"} 0' in call(api.url, "GET", "/metrics")[1]
        again = subprocess.Popen(options, cwd=tmp_path, stderr=subprocess.DEVNULL)
        wait_for(lambda: trainer.steps == 4 or (trainer.fetch() is not None and trainer.steps == 4))
        assert again.wait(30) == 0
        # The same environment came back, not another one beside it.
        assert call(api.url, "GET", "/status-env?env_id=1")[0] == 404


def wait_for(condition: Callable[[], bool], patience: float = 90.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
