"""The main job with a real small model: served for the run, and by a server started apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from environments.records import Ending, Outcome

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "environments" / "terminal_test_env" / "terminal_test_env.py"
MODEL = "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"

SERVER = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.port, params.use_jinja = 8192, 1, 0, True
params.hostnames = ["127.0.0.1"]
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(900)
"""


@pytest.fixture
def model() -> Path:
    """Path of the model; skips where there is none."""
    directory = os.environ.get("HERMES_TEST_MODELS")
    if not directory:
        pytest.skip("HERMES_TEST_MODELS names no directory with models (.ci/fetch_models.sh makes one)")
    pytest.importorskip("xllamacpp", reason="the extra 'llamacpp' is not installed")
    return Path(directory) / MODEL


def process(directory: Path, *arguments: str) -> list[dict[str, Any]]:
    """One group of two rollouts of the main job; its groups."""
    limits = ["--env.total_steps", "1", "--env.group_size", "2", "--env.max_agent_turns", "3"]
    ended = subprocess.run(
        [
            *(sys.executable, str(SCRIPT), "process", *limits, "--env.max_token_length", "160"),
            *("--env.data_path_to_save_groups", "out.jsonl", "--env.use_wandb", "false", *arguments),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in (directory / "out.jsonl").read_text().splitlines()]


def check(groups: list[dict[str, Any]]) -> None:
    """Real replies, real usage numbers, honest scores."""
    (group,) = groups
    assert len(group["scores"]) == 2
    for row, messages in zip(group["metadata"], group["messages"], strict=True):
        replies = [message for message in messages if message["role"] == "assistant"]
        assert replies
        assert any(message["content"] or message.get("tool_calls") for message in replies)
        assert row["outcome"] == Outcome.SCORED
        assert row["ending"] in list(Ending)
        assert row["usage"]["prompt_tokens"] > 500
        assert row["usage"]["completion_tokens"] > 0
        assert row["turns"] == len(replies)
    assert set(group["scores"]) <= {0.0, 0.5, 1.0}


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_a_model_file_without_a_server(tmp_path: Path, model: Path) -> None:
    check(process(tmp_path, "--openai.server_type", "llamacpp", "--openai.model_name", str(model)))


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_a_server_started_apart(tmp_path: Path, model: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(model)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http")
        check(process(tmp_path, "--openai.base_url", f"{address}/v1", "--openai.model_name", "qwen"))
    finally:
        server.kill()
        server.wait()
