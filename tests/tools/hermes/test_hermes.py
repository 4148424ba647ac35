"""Tools of an installed Hermes Agent: a stand-in for what goes wrong, the real one for what must go right."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from typing import Any

import pytest

from environments.agent_loop import AgentResult
from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.errors import ConfigError, UnknownName
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.records import Item, Message
from environments.run import RunReport
from environments.tool_context import ToolContext
from environments.tools.base import Tool
from environments.tools.definitions import select_tools
from environments.tools.hermes.client import WorkerFailure
from environments.tools.hermes.settings import HermesSettings, find_python, hermes_settings
from environments.tools.hermes.tools import HermesTools, load_hermes_tools, load_tools
from environments.tools.shared import SharedResources
from environments.tools.toolbox import Toolbox
from tools.processes import alive, wait_for
from tools.rollouts import ForeignRollouts

STAND_IN = Path(__file__).with_name("stand_in")
REAL = os.environ.get("HERMES_TEST_HERMES_AGENT", "")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A virtual environment of its own, with the stand-in as installed packages."""
    where = tmp_path_factory.mktemp("hermes") / "venv"
    venv.create(where, symlinks=True)
    (packages,) = where.glob("lib/python*/site-packages")
    (packages / "stand_in.pth").write_text(str(STAND_IN))
    return find_python(str(where))


class Rollouts(ForeignRollouts):
    """The tools of a Hermes Agent, and rollouts that use them."""

    def __init__(self, root: Path, python: str, *tools: str, **settings: Any) -> None:
        super().__init__(root)
        self.settings = HermesSettings(python, tools, **settings)

    async def load(self) -> HermesTools:
        return await load_tools(self.settings, self.shared)

    def offered(self) -> list[Tool]:
        return [*self.tools.given, *self.tools.others]


async def call(box: Toolbox, tool: str, /, **arguments: Any) -> dict[str, Any]:
    return (await box.call(tool, arguments)).result or {}


def test_tools_results_and_errors(tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "sk-hidden")

    async def scenario() -> None:
        async with Rollouts(tmp_path, python, "note", "odd", variables={"GIVEN_KEY": "hush!"}) as rollouts:
            tools = {tool.name: tool for tool in rollouts.tools.given}
            assert set(tools) >= {"note", "noisy", "counted"}
            assert {"memory", "picky"} <= {tool.name for tool in rollouts.tools.others}
            assert (tools["note"].toolset, tools["note"].description) == ("notes", "Does note.")
            box = rollouts.begin()
            assert await call(box, "note", text="one") == {"notes": ["one"]}
            assert "text is missing" in (await call(box, "note"))["error"]
            assert await call(box, "memory", text="two") == {"entries": ["loaded", "two"]}
            assert "agents of Hermes Agent" in (await call(box, "delegate_task"))["error"]
            assert await call(box, "noisy") == {"read": ""}
            assert "out of cheese" in (await call(box, "loud_exit"))["error"]
            assert "more than 10000000" in (await call(box, "long", size=10_000_001))["error"]
            assert await call(box, "long", size=9) == {"result": "x" * 9}
            lines = (await call(box, "picture"))["result"].splitlines()
            assert lines[0] == "a picture"
            assert Path(lines[1].rpartition(" in ")[2].rstrip("]")).read_bytes() == b"\x89PNG\r\n\x1a\n"
            seen = await call(box, "environment")
            assert seen["python"] == python
            assert seen["variables"]["GIVEN_KEY"] == "hush!"
            assert "SECRET_API_KEY" not in seen["variables"]
            assert seen["variables"]["HOME"] == seen["directory"] != os.environ["HOME"]
            assert seen["variables"]["HERMES_HOME"].startswith(seen["directory"])
            assert seen["variables"]["PATH"].startswith(str(Path(python).parent))
            worker = box.state.slots["hermes"]
            assert worker.starts == 1

    asyncio.run(scenario())


def test_each_rollout_has_its_own_process_and_home(tmp_path: Path, python: str) -> None:
    async def scenario() -> None:
        async with Rollouts(tmp_path, python) as rollouts:
            first, second = rollouts.begin(), rollouts.begin()
            assert await call(first, "note", text="mine") == {"notes": ["mine"]}
            assert await call(second, "note", text="other") == {"notes": ["other"]}
            counts = [await call(box, "counted") for box in (first, first, second)]
            assert [found["count"] for found in counts] == [1, 2, 1]
            homes = [box.state.slots["hermes"].home for box in (first, second)]
            await first.cleanup()
            assert [home.exists() for home in homes] == [False, True]
        assert not homes[1].parent.exists()

    asyncio.run(scenario())


def test_one_home_for_all_where_the_user_names_it(tmp_path: Path, python: str) -> None:
    home = tmp_path / "home"
    home.mkdir()

    async def scenario() -> None:
        async with Rollouts(tmp_path, python, home=str(home)) as rollouts:
            first, second = rollouts.begin(), rollouts.begin()
            await call(first, "note", text="mine")
            assert await call(second, "note", text="other") == {"notes": ["mine", "other"]}
            seen = (await call(second, "environment"))["variables"]
            assert (seen["HERMES_HOME"], seen["HOME"]) == (str(home), os.environ["HOME"])
        assert (home / "notes").exists()

    asyncio.run(scenario())


def test_a_process_that_dies_is_told_of_and_started_again(tmp_path: Path, python: str) -> None:
    async def scenario() -> None:
        async with Rollouts(tmp_path, python, variables={"GIVEN_KEY": "hush!"}) as rollouts:
            box = rollouts.begin()
            await call(box, "note", text="kept")
            await call(box, "counted")
            error = (await call(box, "die"))["error"]
            assert "exit code 3" in error and "out of cheese, key ***" in error and "hush" not in error
            assert await call(box, "counted") == {"count": 1}
            assert await call(box, "note", text="more") == {"notes": ["kept", "more"]}

    asyncio.run(scenario())


def test_calls_that_take_too_long_or_are_cancelled_end_the_process(tmp_path: Path, python: str) -> None:
    async def scenario() -> None:
        async with Rollouts(tmp_path, python, timeout=1) as rollouts:
            box = rollouts.begin()
            first = (await call(box, "clinging"))["processes"]
            outcome = await box.call("sleep", {"seconds": 600})
            assert outcome.error == "timeout"
            assert "within 1 seconds" in outcome.content
            assert wait_for(lambda: not any(map(alive, first)))
            second = (await call(box, "clinging"))["processes"]
            running = asyncio.create_task(box.call("sleep", {"seconds": 600}))
            await asyncio.sleep(0.2)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert wait_for(lambda: not any(map(alive, second)))
            assert await call(box, "counted") == {"count": 1}

    asyncio.run(scenario())


def test_calls_at_the_same_time_do_not_mix(tmp_path: Path, python: str) -> None:
    async def scenario() -> None:
        async with Rollouts(tmp_path, python) as rollouts:
            box = rollouts.begin()
            answers = await asyncio.gather(*(call(box, "long", size=n) for n in range(1, 30)))
            assert [len(answer["result"]) for answer in answers] == list(range(1, 30))
            assert box.state.slots["hermes"].starts == 1

    asyncio.run(scenario())


def test_all_processes_end_with_the_rollout(tmp_path: Path, python: str) -> None:
    async def scenario() -> list[int]:
        async with Rollouts(tmp_path, python) as rollouts:
            processes: list[int] = (await call(rollouts.begin(), "clinging"))["processes"]
            assert all(map(alive, processes))
        return processes

    assert not any(map(alive, asyncio.run(scenario())))


def test_all_processes_end_when_the_run_is_killed(tmp_path: Path, python: str) -> None:
    code = f"""
        import asyncio, sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from pathlib import Path
        from tools.hermes.test_hermes import Rollouts, call

        async def main():
            async with Rollouts(Path({str(tmp_path)!r}), {python!r}) as rollouts:
                box = rollouts.begin()
                found = await call(box, "clinging")
                print(*found["processes"], box.state.slots["hermes"].home, flush=True)
                await asyncio.sleep(1000)

        asyncio.run(main())
    """
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    *numbers, home = run.stdout.readline().split()
    processes = [int(number) for number in numbers]
    assert all(map(alive, processes))
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert wait_for(lambda: not any(map(alive, processes)))

    async def next_run() -> None:
        async with Rollouts(tmp_path, python):
            return

    asyncio.run(next_run())
    assert not Path(home).exists()


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (["nte"], "unknown tool or toolset of Hermes Agent 'nte' in hermes_tools; did you mean note"),
        (["note", "read_file"], "'read_file' is a tool or toolset of this framework.*enabled_toolsets"),
        (["file"], "'file' is a tool or toolset of this framework"),
        (["picky"], "tool 'picky': its check check_picky fails; it names variables.*PICKY_KEY"),
        (["delegate_task"], "tool 'delegate_task': it starts agents"),
        (["needy"], "toolset 'needy': .*check_picky"),
    ],
)
def test_tools_that_cannot_be_had_are_an_error_at_start(python: str, tools: list[str], message: str) -> None:
    async def scenario() -> None:
        shared = SharedResources()
        try:
            with pytest.raises(ConfigError, match=message):
                await load_tools(HermesSettings(python, tuple(tools)), shared)
        finally:
            await shared.close()

    asyncio.run(scenario())


def test_of_a_toolset_only_what_is_not_ours_and_can_be_used(
    tmp_path: Path, python: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Rollouts(tmp_path, python, "mixed", "memory") as rollouts:
            given = rollouts.tools.given
            assert [tool.name for tool in given] == ["note", "memory"]
            assert "read_file" not in {tool.name for tool in rollouts.tools.others}
            names = [tool.name for tool in select_tools(["todo"], None, brought=given).tools]
            assert names == ["todo", "note", "memory"]
            names = [tool.name for tool in select_tools(["todo", "note"], ["memory"], brought=given).tools]
            assert names == ["todo", "note"]

    asyncio.run(scenario())
    assert "picky (its check check_picky fails" in caplog.text


def test_a_python_that_cannot_be_used_is_an_error_at_start(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    for path, message in [
        ("~/no/such/python", "there is no program"),
        (str(tmp_path), r"there is no program '.*/bin/python'"),
        (str(text), "cannot be run"),
        (str(broken), "cannot be started"),
        ("/bin/true", "Hermes Agent ended before it answered"),
        (str(bare), r"No module named 'model_tools'\); install it there: .*bare/bin/python -m pip install"),
    ]:

        async def scenario(path: str = path, message: str = message) -> None:
            shared = SharedResources()
            try:
                with pytest.raises(ConfigError, match=message):
                    await load_hermes_tools(HermesAgentEnvConfig(hermes_python=path), shared)
            finally:
                await shared.close()

        asyncio.run(scenario())


def test_a_program_that_never_gets_ready(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nsleep 1000\n")
    program.chmod(0o755)

    async def scenario() -> None:
        shared = SharedResources()
        try:
            with pytest.raises(ConfigError, match="was not ready within 1 seconds") as caught:
                await load_tools(HermesSettings(str(program), start_timeout=1), shared)
            assert isinstance(caught.value.__cause__, WorkerFailure)
        finally:
            await shared.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hermes_python": None, "hermes_tools": ["memory"]}, "hermes_tools needs --env.hermes_python"),
        ({"hermes_variables": ["NO_SUCH_VARIABLE_HERE"]}, "NO_SUCH_VARIABLE_HERE, which is not set"),
        ({"hermes_variables": ["KEY=sk-secret"]}, "names such as XAI_API_KEY, not 'KEY'"),
        ({"hermes_home": "/no/such/home"}, "there is no directory"),
    ],
)
def test_settings_that_cannot_work_say_so(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        hermes_settings(HermesAgentEnvConfig(**{"hermes_python": sys.executable, **fields}))
    assert "sk-secret" not in str(caught.value)


class NoteEnv(HermesAgentBaseEnv):
    """The oracle takes a note; the reward looks at it with a tool that the model does not have."""

    name = "notes"
    drawn = 0

    async def setup(self) -> None:
        self.drawn = 0

    async def get_next_item(self) -> Item | None:
        self.drawn += 1
        return {"id": str(self.drawn)} if self.drawn <= 3 else None

    def format_prompt(self, item: Item) -> str:
        return "Take a note."

    def oracle(self, item: Item) -> list[Message]:
        function = {"name": "note", "arguments": {"text": f"n{item['id']}"}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}
        ]

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        assert json.loads(ctx.call_tool("memory", {"text": "x"})) == {"entries": ["loaded", "x"]}
        assert "there is no tool" in json.loads(ctx.call_tool("memry"))["error"]
        return float(json.loads(ctx.call_tool("note", {"text": "end"}))["notes"] == [f"n{item['id']}", "end"])

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.evaluate_items([{"id": "e"}])


def run(path: Path, python: str | None, **settings: Any) -> RunReport:
    config = HermesAgentEnvConfig(
        enabled_toolsets=["todo"], use_wandb=False, progress="none", group_size=1, hermes_python=python,
        ensure_scores_are_not_same=False, data_path_to_save_groups=str(path / "out.jsonl"), **settings,
    )  # fmt: skip
    return asyncio.run(NoteEnv(config, [APIServerConfig(server_type="oracle")]).process_manager())


def test_a_run_with_it(tmp_path: Path, python: str) -> None:
    report = run(tmp_path, python, hermes_tools=["note"], hermes_variables=["PATH"])
    assert [attempt.reward for attempt in report.attempts] == [1.0] * 3
    assert {tuple(attempt.tool_names) for attempt in report.attempts} == {("todo", "note")}
    with pytest.raises(UnknownName, match="did you mean note"):
        run(tmp_path / "again", python, hermes_tools=["notee"])


@pytest.mark.integration
@pytest.mark.skipif(
    not REAL, reason="HERMES_TEST_HERMES_AGENT names no virtual environment with hermes-agent"
)
def test_the_real_one(tmp_path: Path) -> None:
    """PyPI's ``hermes-agent``: tools of its registry and of its own loop, in two rollouts apart."""

    async def scenario() -> None:
        real = find_python(REAL)
        async with Rollouts(tmp_path, real, "memory", "skills", "session_search") as rollouts:
            names = {tool.name for tool in rollouts.tools.given}
            assert names >= {"memory", "skills_list", "skill_view", "session_search"}
            assert all(
                tool.parameters["properties"] for tool in rollouts.tools.given if tool.name == "memory"
            )
            first, second = rollouts.begin(), rollouts.begin()
            added = await call(first, "memory", action="add", target="memory", content="the code is 417")
            assert added["success"] and added["entry_count"] == 1
            other = await call(second, "memory", action="add", target="memory", content="something else")
            assert other["entry_count"] == 1
            skill = "---\nname: greeting\ndescription: Greets.\n---\nSay hello."
            made = await call(first, "skill_manage", action="create", name="greeting", content=skill)
            assert made["success"], made
            listed = await call(first, "skills_list")
            assert [found["name"] for found in listed["skills"]] == ["greeting"]
            assert "Say hello." in (await call(first, "skill_view", name="greeting"))["content"]
            assert (await call(second, "skills_list"))["skills"] == []
            assert (await call(first, "session_search", query="anything"))["success"]
            assert "error" in await call(first, "x_search", query="moss")

    asyncio.run(scenario())


@pytest.mark.integration
@pytest.mark.skipif(
    not REAL, reason="HERMES_TEST_HERMES_AGENT names no virtual environment with hermes-agent"
)
@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (["memmory"], "did you mean memory"),
        (["x_search"], "tool 'x_search': its check .* fails"),
        (["terminal"], "a tool or toolset of this framework"),
        (["delegation"], "toolset 'delegation'"),
    ],
)
def test_what_the_real_one_cannot_give(tools: list[str], message: str) -> None:
    async def scenario() -> None:
        shared = SharedResources()
        try:
            with pytest.raises(ConfigError, match=message):
                await load_tools(HermesSettings(find_python(REAL), tuple(tools)), shared)
        finally:
            await shared.close()

    asyncio.run(scenario())
