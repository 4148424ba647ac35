"""The environment of the original's documentation runs unchanged but for its dataset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

EXAMPLE = """
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig
from atroposlib.envs.server_handling.server_manager import APIServerConfig

class MyEnvConfig(HermesAgentEnvConfig):
    my_custom_field: str = "default_value"

class MyEnv(HermesAgentBaseEnv):
    name = "my-env"
    env_config_cls = MyEnvConfig

    @classmethod
    def config_init(cls):
        env_config = MyEnvConfig(
            enabled_toolsets=["terminal", "file"],
            terminal_backend="modal",
            max_agent_turns=30,
        )
        server_configs = [APIServerConfig(
            base_url="https://openrouter.ai/api/v1",
            model_name="anthropic/claude-sonnet-4.6",
            server_type="openai",
        )]
        return env_config, server_configs

    async def setup(self):
        self.dataset = [{"instruction": "Make all tests pass."}]
        self.iter = 0

    async def get_next_item(self):
        item = self.dataset[self.iter % len(self.dataset)]
        self.iter += 1
        return item

    def format_prompt(self, item):
        return item["instruction"]

    async def compute_reward(self, item, result, ctx):
        test = ctx.terminal("pytest -v")
        return 1.0 if test["exit_code"] == 0 else 0.0

    async def evaluate(self, *args, **kwargs):
        pass

if __name__ == "__main__":
    MyEnv.cli()
"""


def run(directory: Path, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run the example in a process of its own, as a user does."""
    (directory / "my_env.py").write_text(EXAMPLE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [python, *arguments], cwd=directory, env=environment, capture_output=True, text=True, timeout=300
    )


OPTIONS = [
    *("--openai.server_type", "nop", "--env.terminal_backend", "local", "--env.total_steps", "2"),
    *("--env.data_path_to_save_groups", "out.jsonl", "--env.my_custom_field", "mine"),
]


@pytest.mark.parametrize("start", [["my_env.py"], ["-m", "environments.command_line", "my_env.py:MyEnv"]])
def test_the_example_runs_as_a_script_and_through_the_console_command(
    tmp_path: Path, start: list[str]
) -> None:
    ended = run(tmp_path, *start, "process", *OPTIONS)
    assert ended.returncode == 0, ended.stderr
    groups = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [len(group["scores"]) for group in groups] == [4, 4]
    assert groups[0]["metadata"][0]["config"]["my_custom_field"] == "mine"
    assert groups[0]["messages"][0][0]["content"] == "Make all tests pass."


def test_its_evaluate_does_nothing_and_says_so(tmp_path: Path) -> None:
    ended = run(tmp_path, "my_env.py", "evaluate", *OPTIONS)
    assert ended.returncode != 0
    assert "did nothing" in ended.stderr


def test_without_a_key_the_error_names_the_variable(tmp_path: Path) -> None:
    ended = run(
        tmp_path, "my_env.py", "process", "--env.terminal_backend", "local", "--env.use_wandb", "false"
    )
    assert ended.returncode != 0
    assert "OPENROUTER_API_KEY" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.integration
def test_the_example_runs_with_the_real_atroposlib(tmp_path: Path) -> None:
    python = os.environ.get("HERMES_TEST_ATROPOS_PYTHON")
    if not python:
        pytest.skip("HERMES_TEST_ATROPOS_PYTHON names no python that has atroposlib")
    ended = run(tmp_path, "my_env.py", "process", *OPTIONS, python=python)
    assert ended.returncode == 0, ended.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
