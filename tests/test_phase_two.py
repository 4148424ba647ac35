"""Runs over servers that give tokens: what of it comes into results, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.agent_loop import AgentResult, HermesAgentLoop
from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.errors import ConfigError
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.inference.server_manager import ServerManager
from environments.records import MASKED, Attempt, Ending, Item, ScoredDataItem
from environments.run import RunReport
from tests.servers.small_tokenizer import make_tokenizer
from tests.servers.token_server import TokenServer

END = "<|im_end|>"


class TalkEnv(HermesAgentBaseEnv):
    """Two replies without tools: the user asks once more."""

    name = "talk"

    async def setup(self) -> None:
        self.drawn = 0

    async def get_next_item(self) -> Item | None:
        self.drawn += 1
        return {"id": "talk"} if self.drawn == 1 else None

    def format_prompt(self, item: Item) -> str:
        return "Hello"

    async def next_message(self, item: Item, result: AgentResult, ctx: Any) -> str | None:
        return "And again" if result.turns_used < 2 else None

    async def compute_reward(self, item: Item, result: AgentResult, ctx: Any) -> float:
        return 0.5

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.evaluate_items([{"id": "talk"}])


class OwnLoopEnv(TalkEnv):
    """Makes its loop itself, as code of the original does; the second one begins with another history."""

    states: list[Any]
    changes_history = False

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        loop = HermesAgentLoop(server=self.server, max_turns=1, task_id="t", max_tokens=50)
        first = await loop.run([{"role": "user", "content": "Hello"}])
        messages = [*first.messages, {"role": "user", "content": "More"}]
        if self.changes_history:
            messages[1] = {"role": "assistant", "content": "what I never said"}
        second = await loop.run(messages)
        self.states = [first.managed_state, second.managed_state]
        return {"scores": 1.0, "messages": second.messages, "tokens": [0], "masks": [MASKED],
                "overrides": {"placeholder_tokens": True}}, []  # fmt: skip


def replying(texts: Sequence[str], folder: Path, **options: Any) -> TokenServer:
    """A server that gives these replies, by how many the conversation has already."""
    tokenizer = make_tokenizer(folder)
    end = tokenizer.token_to_id(END)
    replies = [[*tokenizer.encode(text).ids, end] for text in texts]

    def script(prompt: list[int]) -> list[int]:
        text = tokenizer.decode(prompt, skip_special_tokens=False)
        return replies[min(max(0, text.count("<|im_start|>assistant") - 1), len(replies) - 1)]

    return TokenServer(script, eos=end, **{"context": 4096, **options})


def run(
    path: Path,
    server: TokenServer,
    environment: type[TalkEnv] = TalkEnv,
    workflow: str = "process_manager",
    **settings: Any,
) -> tuple[RunReport, TalkEnv]:
    """One run over the server, and the environment that it was of."""
    defaults: dict[str, Any] = {
        "group_size": 1,
        "enabled_toolsets": [],
        "use_wandb": False,
        "progress": "none",
        "data_path_to_save_groups": str(path / "out.jsonl"),
        "data_dir_to_save_evals": str(path / "e"),
        "ensure_scores_are_not_same": False,
        "include_messages": True,
        "terminal_backend": "local",
    }
    config = HermesAgentEnvConfig(**{**defaults, **settings})

    async def work() -> tuple[RunReport, TalkEnv]:
        await server.start()
        try:
            named = server.config("vllm", tokenizer_name=str(path / "tokenizer"))
            env = environment(config, [named])
            return await getattr(env, workflow)(), env
        finally:
            await server.stop()

    return asyncio.run(work())


def tokens_of(attempt: Attempt, server: TokenServer) -> None:
    """The last prompt of the server and its reply are the sequence."""
    (sequence,) = attempt.sequences
    last = max(server.prompts, key=len)
    assert sequence.tokens[: len(last)] == last
    assert len(sequence.tokens) == len(sequence.mask) == len(sequence.logprobs)


def test_the_record_has_the_tokens_and_says_where_they_are_from(tmp_path: Path) -> None:
    server = replying(["Hi.", "Yes."], tmp_path / "tokenizer")
    server.version = "4"
    report, _ = run(tmp_path, server)
    (attempt,) = report.attempts
    tokens_of(attempt, server)
    assert (attempt.agent.phase, attempt.agent.wire, attempt.agent.model_served) == (2, "generate", "m")
    assert [turn.policy_version for turn in attempt.turns] == ["4", "4"]
    assert [span.version for span in attempt.sequences[0].policy_versions] == ["4", "4"]
    assert attempt.ending is Ending.STOPPED and attempt.reward == 0.5
    assert attempt.messages[-1]["content"] == "Yes."


def test_a_resumed_run_has_the_tokens_of_the_first(tmp_path: Path) -> None:
    server = replying(["Hi.", "Yes."], tmp_path / "tokenizer")
    run(tmp_path, server, total_steps=1)
    first = json.loads((tmp_path / "out.jsonl").read_text())
    (tmp_path / "out.jsonl").unlink()  # the attempts themselves are in the run's directory
    asked = len(server.prompts)
    run(tmp_path, server, total_steps=1)
    second = json.loads((tmp_path / "out.jsonl").read_text())
    assert len(server.prompts) == asked
    for column in ("tokens", "masks", "inference_logprobs", "scores"):
        assert second[column] == first[column]
    assert second["metadata"][0]["policy_versions"] == first["metadata"][0]["policy_versions"]


def test_evaluations_go_over_the_same_endpoint(tmp_path: Path) -> None:
    server = replying(["Hi.", "Yes."], tmp_path / "tokenizer")
    report, _ = run(tmp_path, server, workflow="evaluate_manager")
    assert report.complete and len(server.prompts) == 2


def test_a_conversation_that_has_no_room_left_ends_and_is_graded(tmp_path: Path) -> None:
    server = replying(["x" * 60, "Yes."], tmp_path / "tokenizer", context=100)
    report, _ = run(tmp_path, server)
    (attempt,) = report.attempts
    assert attempt.ending is Ending.CONTEXT_LENGTH and attempt.reward == 0.5
    assert len(server.prompts) == 1 and len(attempt.sequences) == 1


def test_a_loop_of_the_users_own_has_its_tokens_too(tmp_path: Path) -> None:
    server = replying(["Hi.", "Yes."], tmp_path / "tokenizer")
    report, env = run(tmp_path, server, OwnLoopEnv)
    tokens_of(report.attempts[0], server)
    assert isinstance(env, OwnLoopEnv)
    assert [len(state["sequences"]) for state in env.states] == [1, 1]


@pytest.mark.parametrize(("branch_reward", "rows"), [("every", 2), ("last", 1)])
def test_a_changed_history_makes_a_second_sequence(tmp_path: Path, branch_reward: str, rows: int) -> None:
    server = replying(["Hi.", "Yes."], tmp_path / "tokenizer")
    changing = type("Changing", (OwnLoopEnv,), {"changes_history": True})
    report, env = run(tmp_path, server, changing, branch_reward=branch_reward)
    (attempt,) = report.attempts
    assert len(attempt.sequences) == 2 and attempt.sequences[1].fork_reason
    assert isinstance(env, OwnLoopEnv) and len(env.states[1]["forks"]) == 1
    group = json.loads((tmp_path / "out.jsonl").read_text())
    assert len(group["tokens"]) == rows and group["scores"] == [1.0] * rows
    assert group["tokens"][-1] == attempt.sequences[1].tokens


def test_log_probabilities_of_another_distribution_are_not_trained_on(tmp_path: Path) -> None:
    server = replying(["Hi.", "Yes."], tmp_path / "tokenizer", raw=True)
    report, _ = run(tmp_path, server, agent_temperature=0.5)
    assert report.attempts[0].valid  # written, and told about
    with pytest.raises(ConfigError, match=r"leaves out temperature, top_p.*agent_temperature 1 and no top_p"):
        run(tmp_path, server, workflow="env_manager", agent_temperature=0.5, top_p=0.9, resume=False)


@pytest.mark.parametrize(
    ("extra_body", "message"),
    [
        ({"n": 2}, "2 answers.*group_size"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs cannot have messages"),
        ({"chat_template_kwargs": "x"}, "no mapping"),
        ({"stop_token_ids": "x"}, "no list of token ids"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_every_call_would_be_refused_for_is_said_at_the_start(
    tmp_path: Path, extra_body: dict[str, Any], message: str
) -> None:
    server = replying(["Hi."], tmp_path / "tokenizer")
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, server, extra_body=extra_body)
    assert not server.prompts


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = replying(["Hi."], tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="tokenizer"):
        run(tmp_path, server)


def test_where_the_tokenizer_is_looked_for(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "model")

    async def work(**fields: Any) -> bool:
        server = TokenServer(lambda prompt: [2])
        await server.start()
        try:
            manager = ServerManager([server.config("vllm", **fields)], tokenizer=fields.pop("named", None))
            async with manager:
                return manager.session().phase == 2
        finally:
            await server.stop()

    assert asyncio.run(work(tokenizer_name=str(tmp_path / "model")))
    # Where the server has its model from comes next.
    with pytest.raises(ConfigError, match=r"some/model.*openai\.tokenizer_name"):
        asyncio.run(work())


def test_conversations_under_the_names_of_atropos(tmp_path: Path) -> None:
    server = replying(["Hi."], tmp_path / "tokenizer")

    async def work() -> Any:
        await server.start()
        try:
            config = server.config("vllm", tokenizer_name=str(tmp_path / "tokenizer"))
            async with ServerManager([config]) as manager:
                async with manager.managed_server(tokenizer=None) as managed:
                    reply = await managed.chat_completion(messages=[{"role": "user", "content": "Hello"}])
                return reply.choices[0].message.content, managed.get_state()["nodes"]
        finally:
            await server.stop()

    content, (node,) = asyncio.run(work())
    assert content == "Hi."
    sampled = [token for token in node.masked_tokens if token != MASKED]
    assert node.tokens[-4:] == sampled and len(node.logprobs) == len(node.tokens)


def test_servers_with_and_without_tokens_do_not_stand_beside_each_other() -> None:
    kinds = ("vllm", "openai")
    with pytest.raises(ConfigError, match="vllm gives exact tokens and cannot stand beside openai"):
        ServerManager([APIServerConfig(base_url="http://h/v1", server_type=kind) for kind in kinds])


def test_a_session_before_the_start_says_what_is_missing() -> None:
    manager = ServerManager([APIServerConfig(base_url="http://h/v1", server_type="sglang")])
    with pytest.raises(ConfigError, match="start"):
        manager.session()
