"""Environments with tools in real local sandboxes."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from file_environment import FileEnv, calls, environment, process

from environments.agent_loop import AgentResult
from environments.benchmark_env import BenchmarkEnv
from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.errors import ConfigError, RunAborted, UnknownName
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.records import Ending, Item, Message
from environments.tool_context import ToolContext
from environments.tools.base import ToolState
from environments.tools.custom import tool


def test_nop_gets_nothing_for_nothing(tmp_path: Path) -> None:
    def reward(ctx: ToolContext, result: AgentResult) -> float:
        return float("error" not in ctx.read_file("~/a"))

    report = process(tmp_path, {"commands": ["touch ~/a"], "reward": reward}, server="nop")
    assert report.attempts[0].reward == 0.0
    assert report.attempts[0].ending is Ending.STOPPED


def test_a_simulated_user_answers(tmp_path: Path) -> None:
    class Talk(FileEnv):
        async def next_message(self, item: Item, result: AgentResult, ctx: ToolContext) -> str | None:
            said = ctx.terminal("echo asked >> ~/log; wc -l < ~/log")["output"].strip()
            return f"question {said}" if int(said) < 3 else None

        def oracle(self, item: Item) -> Any:
            async def answer(messages: list[Message]) -> Message:
                return {"role": "assistant", "content": f"answer to {messages[-1]['content']}"}

            return answer

    env = environment(tmp_path, {"reward": lambda ctx, result: 1.0}, base=Talk)
    report = asyncio.run(env.process_manager())
    said = [m["content"] for m in report.attempts[0].messages]
    assert said == [
        "go",
        "answer to go",
        "question 1",
        "answer to question 1",
        "question 2",
        "answer to question 2",
    ]


def test_items_may_name_their_toolsets(tmp_path: Path) -> None:
    report = process(
        tmp_path,
        {"reward": lambda ctx, result: 1.0, "toolsets": ["todo"]},
        {"reward": lambda ctx, result: 1.0},
        max_num_workers=2,
    )
    tools = {attempt.item_id: attempt.tool_names for attempt in report.attempts}
    assert tools["i0"] == ["todo"]
    assert "terminal" in tools["i1"]


def test_groups_started_together_draw_their_own_tools(tmp_path: Path) -> None:
    items = [{"reward": lambda ctx, result: 1.0} for _ in range(12)]
    settings: dict[str, Any] = {
        "enabled_toolsets": None,
        "distribution": "development",
        "max_num_workers": 12,
    }
    first = process(tmp_path, *items, **settings)
    second = asyncio.run(environment(tmp_path / "again", *items, **settings).process_manager())
    drawn = {attempt.item_id: tuple(attempt.tool_names) for attempt in first.attempts}
    assert drawn == {attempt.item_id: tuple(attempt.tool_names) for attempt in second.attempts}
    assert len(set(drawn.values())) > 1


def test_a_model_needs_isolation_or_a_word_that_it_need_not(tmp_path: Path) -> None:
    item = {"reward": lambda ctx, result: 1.0}
    with pytest.raises(Exception, match="allow_unisolated") as caught:
        process(tmp_path, item, server="openai", local_isolation="none")
    assert "docker" in str(caught.value)
    assert process(tmp_path, item, local_isolation="none").attempts[0].reward == 1.0


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"enabled_toolsets": ["termnal"]}, UnknownName, "terminal"),
        ({"tool_result_overrides": {"read_fiel": 5}}, UnknownName, "read_file"),
        ({"tool_result_overrides": {"terminal": 0}}, ConfigError, "at least 1"),
        ({"enabled_toolsets": ["image_gen"]}, ConfigError, "image_base_url"),
        ({"terminal_backend": "dokcer"}, UnknownName, "docker"),
        ({"distribution": "developement", "enabled_toolsets": None}, UnknownName, "development"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        process(tmp_path, {"reward": lambda ctx, result: 1.0}, **settings)


def test_an_environment_without_an_oracle_says_so(tmp_path: Path) -> None:
    class NoOracle(FileEnv):
        oracle = HermesAgentBaseEnv.oracle  # type: ignore[assignment]

    with pytest.raises((ConfigError, RunAborted), match="no oracle"):
        asyncio.run(environment(tmp_path, {"reward": lambda c, r: 1.0}, base=NoOracle).process_manager())


def test_run_directory_names_no_secret(tmp_path: Path) -> None:
    env = environment(tmp_path, {"reward": lambda ctx, result: 1.0})
    env.server_configs[0].api_key = "sk-very-secret"
    asyncio.run(env.process_manager())
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"sk-very-secret" not in file.read_bytes()
    assert json.loads((tmp_path / "out.run" / "run.json").read_text())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"system_prompt": "Be brief."}, "Be brief."),
        ({"thinking_mode": True, "custom_thinking_prompt": "Think!"}, "Think!"),
        (
            {"system_prompt": "Be brief.", "thinking_mode": True, "custom_thinking_prompt": "Think!"},
            "Be brief.\n\nThink!",
        ),
    ],
)
def test_system_and_thinking_prompt(tmp_path: Path, settings: dict[str, Any], expected: str | None) -> None:
    report = process(tmp_path, {"reward": lambda ctx, result: 1.0}, **settings)
    messages = report.attempts[0].messages
    assert [m["content"] for m in messages if m["role"] == "system"] == ([expected] if expected else [])


@pytest.mark.parametrize(
    "prompt",
    ["", [], [{"role": "king", "content": "go"}], [{"role": "user"}], ["go"], {"content": "go"}, 5],
    ids=repr,
)
def test_prompts_that_no_server_takes_are_the_environments_error(tmp_path: Path, prompt: Any) -> None:
    class Odd(FileEnv):
        def format_prompt(self, item: Item) -> Any:
            return prompt

    env = environment(tmp_path, {"reward": lambda ctx, result: 1.0}, base=Odd)
    report = asyncio.run(env.process_manager())
    assert report.attempts[0].outcome == "environment_error"


def test_a_full_disk_under_the_sandboxes_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from environments.sandboxes.local import backend

    monkeypatch.setattr(backend, "LEAST_SPACE", 1 << 60)
    with pytest.raises(RunAborted, match=r"is full.*TMPDIR"):
        process(tmp_path, {"reward": lambda ctx, result: 1.0})


def test_a_model_server_on_this_machine_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    env = environment(tmp_path, {"reward": lambda ctx, result: 1.0}, server="openai")
    env.server = type(env.server)([APIServerConfig(base_url="http://localhost:9/v1", model_name="m")])
    started = time.monotonic()
    with pytest.raises(RunAborted, match=r"no model server answers.*base_url"):
        asyncio.run(env.process_manager())
    assert time.monotonic() - started < 20


def test_no_items_at_all_is_not_success(tmp_path: Path) -> None:
    assert process(tmp_path).exit_code == 1
    with pytest.raises(RunAborted, match="nothing to evaluate"):
        asyncio.run(environment(tmp_path).evaluate_manager())
    with pytest.raises(ConfigError, match="total_steps"):
        process(tmp_path, total_steps=-1)


def test_an_evaluation_names_the_policy_that_acted(tmp_path: Path) -> None:
    asyncio.run(environment(tmp_path, {"reward": lambda c, r: 1.0}).evaluate_manager())
    metrics = json.loads((tmp_path / "evals" / "metrics.json").read_text())
    assert metrics["config_general"]["model_name"] == "oracle"


def test_a_benchmark_may_list_its_items_plainly(tmp_path: Path) -> None:
    class Plain(BenchmarkEnv):
        name = "plain-benchmark"

        def eval_items(self) -> Any:  # type: ignore[override]
            return [{"id": "a", "prompt": "go"}, {"id": "b", "prompt": "go"}]

        async def rollout_and_score_eval(self, eval_item: Item) -> dict[str, Any]:
            return {"reward": float(eval_item["id"] == "a")}

    config = HermesAgentEnvConfig(
        enabled_toolsets=["todo"], use_wandb=False, progress="none", data_dir_to_save_evals=str(tmp_path)
    )
    report = asyncio.run(Plain(config, [APIServerConfig(server_type="nop")]).evaluate_manager())
    assert report.metrics["eval/pass_rate"] == 0.5


def test_an_environments_own_tools_run_beside_the_built_in_ones(tmp_path: Path) -> None:
    @tool
    async def double(number: int, state: ToolState) -> int:
        """Twice a number, written to a file as well."""
        await state.sandbox.write_bytes("doubled", str(2 * number).encode())
        return 2 * number

    class OwnTools(FileEnv):
        custom_tools = (double,)

        def oracle(self, item: Item) -> list[Message]:
            return [calls("double", number=21), {"role": "assistant", "content": "done"}]

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        again = json.loads(ctx.call_tool("double", {"number": 4}))
        return float("42" in str(result.messages) and again == {"result": 8})

    report = process(tmp_path, {"reward": reward}, base=OwnTools, enabled_toolsets=["terminal"])
    assert [attempt.reward for attempt in report.attempts] == [1.0]
    assert report.attempts[0].tool_names == ["terminal", "process", "double"]


@pytest.mark.parametrize("error", [SystemExit(0), asyncio.CancelledError()])
def test_a_prompt_that_would_end_the_program_is_an_error_of_the_environment(
    tmp_path: Path, error: BaseException
) -> None:
    class Odd(FileEnv):
        def format_prompt(self, item: Item) -> str:
            if item["id"] == "i0":
                raise error
            return "go"

    report = process(tmp_path, {"reward": lambda *_: 1.0}, {"reward": lambda *_: 1.0}, base=Odd)
    assert report.exit_code == 1
    assert sorted(str(attempt.outcome) for attempt in report.attempts) == ["environment_error", "scored"]
    failure = next(attempt.failures[-1] for attempt in report.attempts if attempt.failures)
    assert type(error).__name__.replace("SystemExit", "sys.exit") in failure.message


def test_an_evaluation_says_what_it_took_from_an_earlier_run(tmp_path: Path) -> None:
    item = {"reward": lambda *_: 1.0}
    first = asyncio.run(environment(tmp_path, item).evaluate_manager())
    second = asyncio.run(environment(tmp_path, item).evaluate_manager())
    assert "earlier" not in first.message
    assert "1 of them from an earlier run" in second.message
