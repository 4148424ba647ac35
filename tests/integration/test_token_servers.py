"""The main job in tokens, with a real tokenizer, over the protocols of servers that need a GPU.

SGLang does not run on this kind of machine: a server that speaks its ``/generate`` stands in, and what it
"samples" is a script, spelled in tokens that nobody would get by encoding the text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.records import MASKED, MASKED_LOGPROB
from tests.servers.thread import LoopThread
from tests.servers.token_server import TokenServer, logprob
from tests.trajectory_api.running import Trainer
from tests.trajectory_api.running import server as api_server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "environments" / "terminal_test_env" / "terminal_test_env.py"
END = 151645
"""Qwen's ``<|im_end|>``."""

CASES = [
    ("sglang", ["/generate"]),
    ("vllm", ["/inference/v1/generate"]),
    ("vllm", ["/v1/completions"]),
    ("vllm", ["/generate", "example"]),
]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


REPLIES = [
    "I write it.\n" + call("write_file", path="~/greeting.txt", content="Hello from Hermes Agent"),
    call("terminal", command="cat ~/greeting.txt") + "\n" + call("read_file", path="~/greeting.txt"),
    "Done: ~/greeting.txt.",
]


@pytest.fixture
def tokenizer_folder() -> Path:
    """Qwen 3's tokenizer and chat template; skips where there is none."""
    directory = os.environ.get("HERMES_TEST_TOKENIZERS")
    if not directory:
        pytest.skip("HERMES_TEST_TOKENIZERS names no directory with tokenizers (.ci/fetch_tokenizers.sh)")
    pytest.importorskip("tokenizers", reason="the extra 'tokens' is not installed")
    return Path(directory) / "qwen3"


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


def spelled(tokenizer: Any, text: str) -> list[int]:
    """The text in tokens, its words cut in two."""
    ids: list[int] = []
    for piece in (
        text.replace("<tool_call>", "\0<tool_call>\0").replace("</tool_call>", "\0</tool_call>\0").split("\0")
    ):
        cuts = (
            [piece]
            if piece.startswith(("<tool", "</tool"))
            else [piece[i : i + 3] for i in range(0, len(piece), 3)]
        )
        ids += [token for cut in cuts for token in tokenizer.encode(cut, add_special_tokens=False).ids]
    return [*ids, END]


def scripted(folder: Path, offers: list[str]) -> tuple[TokenServer, list[list[int]]]:
    """A server of the script, and its replies in tokens. Each turn is another policy's."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    replies = [spelled(tokenizer, text) for text in REPLIES]

    def script(prompt: list[int]) -> list[int]:
        if len(prompt) < 3:
            return [END]
        turn = min(tokenizer.decode(prompt, skip_special_tokens=False).count("<tool_response>\n"), 2)
        server.version = str(turn + 1)
        return replies[turn]

    server = TokenServer(script, offers=offers, eos=END, context=32768)
    return server, replies


def command(workflow: str, server: TokenServer, server_type: str, folder: Path, *options: str) -> list[str]:
    """The main job's command line: one group of two."""
    return [
        *(sys.executable, str(SCRIPT), workflow, "--openai.server_type", server_type),
        *("--openai.base_url", f"{server.url}/v1", "--openai.model_name", "m"),
        *("--openai.tokenizer_name", str(folder), "--env.group_size", "2"),
        *("--env.total_steps", "1", "--env.use_wandb", "false", *options),
    ]


def process(directory: Path, server: TokenServer, server_type: str, folder: Path) -> dict[str, Any]:
    """The group that ``process`` writes."""
    ended = subprocess.run(
        command("process", server, server_type, folder, "--env.data_path_to_save_groups", "out.jsonl"),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    (line,) = (directory / "out.jsonl").read_text().splitlines()
    return dict(json.loads(line))


@pytest.mark.parametrize(("server_type", "offers"), CASES)
def test_process_writes_the_tokens_that_were_sampled(
    tmp_path: Path, tokenizer_folder: Path, loop: LoopThread, server_type: str, offers: list[str]
) -> None:
    server, replies = scripted(tokenizer_folder, offers)
    loop.run(server.start())
    try:
        group = process(tmp_path, server, server_type, tokenizer_folder)
    finally:
        loop.run(server.stop())
    assert group["scores"] == [1.0, 1.0] and not group.get("overrides")
    sampled = [token for reply in replies for token in reply]
    for row in range(2):
        tokens, masks = group["tokens"][row], group["masks"][row]
        assert [mask for mask in masks if mask != MASKED] == sampled
        for token, mask, value in zip(tokens, masks, group["inference_logprobs"][row], strict=True):
            assert mask in (token, MASKED)
            expected = MASKED_LOGPROB if mask == MASKED else logprob(token, 1.0, -1, raw=False)
            assert value == expected
        seen = [prompt for prompt in server.prompts if tokens[: len(prompt)] == prompt]
        assert len(seen) >= 3  # the server saw the row's own beginnings, turn after turn
        metadata = group["metadata"][row]
        assert metadata["agent"]["phase"] == 2 and metadata["agent"]["wire"] == "generate"
        assert metadata["branches"] == 1 and metadata["turns"] == 3
        assert [len(turn["tool_calls"]) for turn in metadata["turn_details"]] == [1, 2, 0]
        if offers[0] != "/v1/completions" and "example" not in offers:
            assert len(metadata["policy_versions"]) == 3
    assert len(server.prompts) == 6


def test_serve_ends_long_sequences_with_the_last_reply_that_fits(
    tmp_path: Path, tokenizer_folder: Path, loop: LoopThread
) -> None:
    server, replies = scripted(tokenizer_folder, ["/generate"])
    loop.run(server.start())
    try:
        whole = process(tmp_path, server, "sglang", tokenizer_folder)["tokens"][0]
        with api_server(tmp_path / "data") as api:
            trainer = Trainer(api.url, batch_size=2, max_token_len=len(whole) - 1, num_steps=1)
            trainer.register()
            options = ("--env.rollout_server_url", api.url, "--env.long_sequences", "truncate")
            serving = subprocess.Popen(
                command("serve", server, "sglang", tokenizer_folder, "--env.steps_per_eval", "0", *options),
                cwd=tmp_path,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                batch, end = None, time.monotonic() + 200
                while batch is None and time.monotonic() < end and serving.poll() is None:
                    batch = trainer.fetch()
                    time.sleep(0.2)
            finally:
                serving.terminate()
                _, said = serving.communicate(timeout=60)
    finally:
        loop.run(server.stop())
    assert batch is not None, said
    (group,) = batch
    kept = [token for reply in replies[:2] for token in reply]
    for tokens, masks in zip(group["tokens"], group["masks"], strict=True):
        assert len(tokens) < len(whole) and tokens[-1] == END
        assert [mask for mask in masks if mask != MASKED] == kept
    assert [entry["truncated_from"] for entry in group["overrides"]] == [len(whole)] * 2
