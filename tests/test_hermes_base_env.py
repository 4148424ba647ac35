"""Environments with tools in real local sandboxes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from environments.agent_loop import AgentResult, HermesAgentLoop
from environments.benchmark_env import BenchmarkEnv
from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.errors import ConfigError, RunAborted, SandboxReleased, UnknownName, VerifierError
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.records import Ending, Item, Message, Reward, ScoredDataItem
from environments.run import RunReport
from environments.tool_context import READ_LIMIT, ToolContext
from environments.tools.base import ToolState
from environments.tools.custom import tool


def calls(name: str, **arguments: Any) -> Message:
    """An assistant message with one tool call."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


class FileEnv(HermesAgentBaseEnv):
    """The oracle runs the item's commands; the reward is the item's function of the context."""

    name = "files"
    items: list[dict[str, Any]] = []

    async def setup(self) -> None:
        self.position = 0

    async def get_next_item(self) -> Item | None:
        self.position += 1
        return self.items[self.position - 1] if self.position <= len(self.items) else None

    def format_prompt(self, item: Item) -> str:
        return str(item["prompt"])

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> Any:
        outcome = item["reward"](ctx, result)
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    def oracle(self, item: Item) -> list[Message]:
        commands = item.get("commands", [])
        return [*(calls("terminal", command=c) for c in commands), {"role": "assistant", "content": "done"}]

    def item_info(self, item: Item) -> dict[str, Any]:
        return {"prompt": item["prompt"]}

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.evaluate_items(self.items)


def environment(
    path: Path,
    *items: dict[str, Any],
    base: type[FileEnv] = FileEnv,
    server: str = "oracle",
    **settings: Any,
) -> FileEnv:
    """An environment with these items and quiet settings."""
    cls = type("Env", (base,), {"items": [{"id": f"i{n}", "prompt": "go", **i} for n, i in enumerate(items)]})
    defaults: dict[str, Any] = {
        "group_size": 1,
        "enabled_toolsets": ["terminal", "file"],
        "use_wandb": False,
        "progress": "none",
        "include_messages": True,
        "ensure_scores_are_not_same": False,
        "retry_backoff": 0.0,
        "data_path_to_save_groups": str(path / "out.jsonl"),
        "data_dir_to_save_evals": str(path / "evals"),
    }
    config = HermesAgentEnvConfig(**{**defaults, **settings})
    env: FileEnv = cls(config, [APIServerConfig(server_type=server)])  # type: ignore[arg-type]
    return env


def process(path: Path, *items: dict[str, Any], **settings: Any) -> RunReport:
    return asyncio.run(environment(path, *items, **settings).process_manager())


def test_reward_sees_files_processes_and_directory_as_the_agent_left_them(tmp_path: Path) -> None:
    def reward(ctx: ToolContext, result: AgentResult) -> float:
        listed = ctx.terminal("pwd; ls; pgrep -x sleep | wc -l")
        assert listed["exit_code"] == 0, listed
        directory, name, count = listed["output"].split()
        return float(directory.endswith("/work") and name == "a.txt" and int(count) >= 1)

    commands = ["mkdir work && cd work", "echo hi > a.txt", "nohup sleep 300 >/dev/null 2>&1 &"]
    report = process(tmp_path, {"commands": commands, "reward": reward})
    assert [attempt.reward for attempt in report.attempts] == [1.0]
    (attempt,) = report.attempts
    assert attempt.sandbox is not None
    assert attempt.sandbox.backend == "local"
    assert attempt.clock.tools > 0
    assert attempt.ending is Ending.STOPPED


def test_a_shell_function_of_the_agent_does_not_reach_the_reward(tmp_path: Path) -> None:
    commands = ["cat() { echo 42; }; export -f cat; alias cat='echo 42'", "PATH=/tmp/evil:$PATH; export PATH"]

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        return float("42" in ctx.terminal("cat ~/answer.txt")["output"])

    assert process(tmp_path, {"commands": commands, "reward": reward}).attempts[0].reward == 0.0


def test_files_round_trip_through_the_context(tmp_path: Path) -> None:
    source = tmp_path / "tree"
    (source / "deep").mkdir(parents=True)
    blob = bytes(range(256)) * 4096
    (source / "deep" / "blob.bin").write_bytes(blob)

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        assert ctx.upload_dir(source, "~/tree")["success"]
        assert ctx.terminal("sha256sum ~/tree/deep/blob.bin")["exit_code"] == 0
        assert ctx.download_dir("~/tree", tmp_path / "back")["success"]
        assert ctx.download_file("~/tree/deep/blob.bin", tmp_path / "one.bin")["success"]
        assert not ctx.download_file("~/missing", tmp_path / "none")["success"]
        assert ctx.write_file("~/näme.txt", "größe\n")["bytes_written"] == 8
        assert ctx.read_file("~/näme.txt")["content"] == "größe\n"
        assert "error" in ctx.read_file("~/missing.txt")
        assert ctx.search("größe", "~")["total_count"] == 1
        return 1.0

    assert process(tmp_path, {"reward": reward}).attempts[0].reward == 1.0
    found = [path.read_bytes() for path in (tmp_path / "back").rglob("blob.bin")]
    assert found == [blob]
    assert (tmp_path / "one.bin").read_bytes() == blob


def test_small_trees_go_in_and_large_files_do_not_come_out_whole(tmp_path: Path) -> None:
    source = tmp_path / "tree"
    source.mkdir()
    (source / "small").write_text("x")

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        for number in range(10):
            assert ctx.upload_dir(source, f"~/tree{number}")["success"]
        huge = ctx.read_file("~/huge")
        assert huge["content"] == ""
        assert huge["file_size"] == 3 << 30
        assert f"{3 << 30} bytes" in huge["error"]
        assert "download_file" in huge["error"]
        assert str(6 << 30) in ctx.download_file("~/huger", tmp_path / "huger")["error"]
        large = ctx.read_file("~/large")
        assert len(large["content"]) == large["file_size"] == READ_LIMIT
        assert large["total_lines"] == READ_LIMIT // 2
        return 1.0

    commands = [f"truncate -s 3G ~/huge; truncate -s 6G ~/huger; yes | head -c {READ_LIMIT} > ~/large"]
    assert process(tmp_path, {"commands": commands, "reward": reward}).attempts[0].reward == 1.0
    assert not (tmp_path / "huger").exists()


def test_every_form_of_reward(tmp_path: Path) -> None:
    async def awaited(ctx: ToolContext, result: AgentResult) -> float:
        return float((await ctx.aio.terminal("true"))["exit_code"] == 0)

    forms: list[Any] = [
        lambda ctx, result: 1,
        lambda ctx, result: (1.0, {"speed": 2}),
        lambda ctx, result: Reward(1.0, {"speed": 2.0}, "well done"),
        awaited,
    ]
    report = process(tmp_path, *({"reward": form} for form in forms))
    assert [attempt.reward for attempt in report.attempts] == [1.0] * 4
    by_item = {attempt.item_id: attempt for attempt in report.attempts}
    assert by_item["i2"].verdict is not None
    assert by_item["i2"].verdict.explanation == "well done"
    assert by_item["i1"].verdict is not None
    assert by_item["i1"].verdict.metrics == {"speed": 2.0}


def test_plain_compute_reward_runs_in_a_thread(tmp_path: Path) -> None:
    class PlainEnv(FileEnv):
        def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return float(ctx.terminal("echo plain")["output"].strip() == "plain")

    report = asyncio.run(environment(tmp_path, {}, base=PlainEnv).process_manager())
    assert report.attempts[0].reward == 1.0


def test_a_failing_verifier_runs_again_over_the_same_state_and_never_the_agent(tmp_path: Path) -> None:
    calls_seen: list[str] = []

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        calls_seen.append(ctx.terminal("cat ~/count; echo x >> ~/count")["output"])
        if len(calls_seen) < 3:
            raise VerifierError("the grader hiccupped")
        return 1.0

    report = process(tmp_path, {"commands": ["echo a > ~/count"], "reward": reward})
    assert [seen.strip().splitlines() for seen in calls_seen] == [["a"], ["a", "x"], ["a", "x", "x"]]
    (attempt,) = report.attempts
    assert attempt.reward == 1.0
    assert [failure.outcome for failure in attempt.failures] == ["verifier_error"] * 2


def test_a_reward_that_takes_too_long_is_a_failing_verifier(tmp_path: Path) -> None:
    def reward(ctx: ToolContext, result: AgentResult) -> float:
        ctx.terminal("sleep 60")
        return 1.0

    started = time.monotonic()
    report = process(tmp_path, {"reward": reward}, reward_timeout=0.5, verifier_error_retries=1)
    assert report.attempts[0].outcome == "verifier_error"
    assert time.monotonic() - started < 30


def test_the_agents_time_limit_stops_its_command_and_grading_follows(tmp_path: Path) -> None:
    commands = ["echo started > ~/log; sleep 60; echo late >> ~/log"]

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        assert result.ending is Ending.TIME_LIMIT
        return float(ctx.terminal("cat ~/log; pgrep -x sleep")["output"].split() == ["started"])

    report = process(tmp_path, {"commands": commands, "reward": reward}, rollout_timeout=1.5)
    assert report.attempts[0].reward == 1.0


def test_rollouts_do_not_see_each_other(tmp_path: Path) -> None:
    def reward(ctx: ToolContext, result: AgentResult) -> float:
        return float(ctx.terminal("cat ~/mark /tmp/mark | wc -l")["output"].strip() == "2")

    items = [{"commands": ["echo x >> ~/mark; echo x >> /tmp/mark"], "reward": reward}] * 6
    report = process(tmp_path, *items, max_num_workers=6)
    assert [attempt.reward for attempt in report.attempts] == [1.0] * 6


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


def test_loops_and_contexts_that_user_code_builds_find_their_own_sandbox(tmp_path: Path) -> None:
    class ByHand(FileEnv):
        async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
            schemas, names = self._resolve_tools_for_group()
            loop = HermesAgentLoop(
                server=self.server,
                tool_schemas=schemas,
                valid_tool_names=names,
                max_turns=5,
                task_id=f"task-{item['id']}",
            )
            result = await loop.run([{"role": "user", "content": item["prompt"]}])
            ctx = ToolContext(f"task-{item['id']}")
            found = await ctx.aio.read_file("~/a")
            return {
                "tokens": [0],
                "masks": [-100],
                "scores": float(found["content"] == f"{item['id']}\n"),
                "messages": result.messages,
                "overrides": {"placeholder_tokens": True},
            }, []

        def oracle(self, item: Item) -> list[Message]:
            return [
                calls("terminal", command=f"echo {item['id']} > ~/a"),
                {"role": "assistant", "content": "k"},
            ]

    env = environment(tmp_path, *({} for _ in range(4)), base=ByHand, max_num_workers=4)
    report = asyncio.run(env.process_manager())
    assert [attempt.reward for attempt in report.attempts] == [1.0] * 4


def test_a_hand_written_evaluate_resumes_through_rollout(tmp_path: Path) -> None:
    class ByHand(FileEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            rewards = []
            for item in self.items:
                async with self.rollout(item) as r:
                    result = await r.run()
                    rewards.append((await r.score(result)).reward)
            return {"mean": sum(x or 0 for x in rewards) / len(rewards)}

    commands = [f"date +%N >> {tmp_path}/never; echo x > ~/a"]
    item = {"commands": commands, "reward": lambda ctx, result: float("error" not in ctx.read_file("~/a"))}
    first = asyncio.run(environment(tmp_path, item, item, base=ByHand).evaluate_manager())
    assert first.metrics == {"mean": 1.0}
    graded: list[int] = []
    broken = {"commands": ["false"], "reward": lambda ctx, result: graded.append(1) or 0.0}
    second = asyncio.run(environment(tmp_path, broken, broken, base=ByHand).evaluate_manager())
    # Functions are not part of an item's content here, so the second run finds both attempts finished.
    assert second.exit_code == 0


def test_a_rollout_is_released_with_its_block(tmp_path: Path) -> None:
    kept: list[Any] = []

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        kept.append(ctx)
        return 1.0

    class Peek(FileEnv):
        async def cleanup(self) -> None:
            with pytest.raises(SandboxReleased):
                await kept[0].aio.terminal("true")
            kept.append("checked")

    asyncio.run(environment(tmp_path, {"reward": reward}, base=Peek).process_manager())
    assert kept[-1] == "checked"


def test_an_agent_that_breaks_its_sandbox_scores_zero_once(tmp_path: Path) -> None:
    commands = ["kill -9 -1", "kill -9 1; echo alive", "echo still > ~/a"]
    report = process(tmp_path, {"commands": commands, "reward": lambda ctx, result: 1.0})
    (attempt,) = report.attempts
    assert attempt.try_number == 0
    assert attempt.outcome == "scored"


def test_two_environments_in_one_process_do_not_see_each_other(tmp_path: Path) -> None:
    async def both() -> list[RunReport]:
        def reward(ctx: ToolContext, result: AgentResult) -> float:
            return float(
                ctx.terminal("cat ~/who")["output"].strip().split("\n") == [result.messages[0]["content"]]
            )

        def items(who: str) -> list[dict[str, Any]]:
            return [{"prompt": who, "commands": [f"echo {who} >> ~/who"], "reward": reward}] * 5

        one = environment(tmp_path / "1", *items("one"), max_num_workers=5)
        two = environment(
            tmp_path / "2",
            *items("two"),
            max_num_workers=5,
            local_isolation="landlock",
            enabled_toolsets=["terminal"],
        )
        return list(await asyncio.gather(one.process_manager(), two.process_manager()))

    one, two = asyncio.run(both())
    assert [attempt.reward for attempt in one.attempts + two.attempts] == [1.0] * 10
    assert {"read_file" in attempt.tool_names for attempt in one.attempts} == {True}
    assert {"read_file" in attempt.tool_names for attempt in two.attempts} == {False}
    assert {a.sandbox.isolation for a in one.attempts if a.sandbox} != {
        a.sandbox.isolation for a in two.attempts if a.sandbox
    }


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


def test_a_long_grading_keeps_the_rollout_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.rollout._KEEP_AFTER", 0.2)

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        ctx.terminal("sleep 1")
        lines = (tmp_path / "out.run" / "attempts.jsonl").read_text().splitlines()
        return float(json.loads(lines[-1])["outcome"] is None)

    assert process(tmp_path, {"reward": reward}).attempts[0].reward == 1.0
    lines = (tmp_path / "out.run" / "attempts.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == [None, "scored"]


@pytest.mark.parametrize("leave", [lambda: sys.exit(0), lambda: sys.exit(3)], ids=["exit 0", "exit 3"])
def test_user_code_that_exits_is_an_error_and_not_the_end(tmp_path: Path, leave: Any) -> None:
    report = process(tmp_path, {"reward": lambda ctx, result: leave()})
    assert report.exit_code == 1
    assert "sys.exit" in report.attempts[0].failures[-1].message


def test_user_code_that_raises_cancelled_is_an_error(tmp_path: Path) -> None:
    def reward(ctx: ToolContext, result: AgentResult) -> float:
        raise asyncio.CancelledError

    report = process(tmp_path, {"reward": reward})
    assert report.attempts[0].outcome == "environment_error"


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
