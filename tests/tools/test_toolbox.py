from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from environments.errors import SandboxError, SandboxReleased
from environments.tools.base import JSON, Tool, ToolState
from environments.tools.toolbox import Toolbox

from .bench import Bench


def sample(name: str, function: Any, parallel_safe: bool = False, exempt: bool = False) -> Tool:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": []}
    return Tool(name, "", schema, function, "test", parallel_safe, exempt)


def with_tools(bench: Bench, *tools: Tool) -> Toolbox:
    return Toolbox(tools, bench.state)


async def text_of_size(state: ToolState, n: int = 0) -> JSON:
    return {"output": "x" * n}


MALFORMED: list[tuple[Any, Any, str, str]] = [
    (None, None, "unknown_tool", "names no tool"),
    ("", "{}", "unknown_tool", "names no tool"),
    (7, "{}", "unknown_tool", "must be a string, not int"),
    (["terminal"], "{}", "unknown_tool", "must be a string, not list"),
    ("Terminal", '{"command": "true"}', "unknown_tool", "did you mean terminal"),
    (" terminal ", '{"command": "true"}', "unknown_tool", "did you mean terminal"),
    ("functions.terminal", '{"command": "true"}', "unknown_tool", "did you mean terminal"),
    ("bash", "{}", "unknown_tool", "Tools: terminal, process"),
    ("x" * 10_000, "{}", "unknown_tool", "there is no tool"),
    ("\ud800", "{}", "unknown_tool", "there is no tool"),
    ("terminal", None, "bad_arguments", "command is missing"),
    ("terminal", "null", "bad_arguments", "command is missing"),
    ("terminal", "", "bad_arguments", "command is missing"),
    ("terminal", {}, "bad_arguments", "command is missing"),
    ("terminal", [], "bad_arguments", "an array of 0"),
    ("terminal", '["ls"]', "bad_arguments", "an array of 1"),
    ("terminal", '"ls"', "bad_arguments", "not valid JSON"),
    ("terminal", "ls -la", "bad_arguments", "not valid JSON"),
    ("terminal", '{"command": "ls"', "bad_arguments", "not valid JSON"),
    ("terminal", 5, "bad_arguments", "the number 5"),
    ("terminal", {"command": ["ls"]}, "bad_arguments", "command must be a string"),
    ("terminal", {"command": "  "}, "bad_arguments", "command is empty"),
    ("terminal", {"command": "a\0b"}, "bad_arguments", "NUL"),
    ("terminal", {"cmd": "ls"}, "bad_arguments", "no parameter 'cmd'"),
    ("terminal", {"command": "\ud83d"}, "bad_arguments", "surrogate"),
    ("terminal", {1: "ls"}, "bad_arguments", "no parameter '1'"),
    ("read_file", {"path": ""}, "bad_arguments", "path is empty"),
    ("read_file", {"path": "a\0"}, "bad_arguments", "NUL"),
]


@pytest.mark.parametrize(("name", "arguments", "kind", "text"), MALFORMED)
def test_every_malformed_call_tells_the_model_what_was_wrong(
    bench: Bench, name: Any, arguments: Any, kind: str, text: str
) -> None:
    outcome = bench.outcome(name, arguments)
    assert outcome.error == kind
    assert text in json.loads(outcome.content)["error"]
    assert outcome.exception is None
    outcome.content.encode("utf-8")
    assert len(outcome.content) < 2_000


@pytest.mark.parametrize("arguments", ['{"command": "echo hi"}', json.dumps('{"command": "echo hi"}')])
def test_the_next_call_is_as_if_nothing_had_happened(bench: Bench, arguments: str) -> None:
    bench.outcome("terminal", "{")
    assert json.loads(bench.outcome("terminal", arguments).content)["output"] == "hi\n"


def test_errors_of_a_tool_become_outcomes(bench: Bench) -> None:
    async def crash(state: ToolState) -> JSON:
        raise ZeroDivisionError("oops")

    async def slow(state: ToolState) -> JSON:
        raise TimeoutError("took 5 seconds")

    async def denied(state: ToolState) -> JSON:
        raise PermissionError(13, "Permission denied", "/root/x")

    box = with_tools(bench, sample("crash", crash), sample("slow", slow), sample("denied", denied))
    outcome = asyncio.run(box.call("crash", {}))
    assert outcome.error == "tool_error"
    assert "ZeroDivisionError: oops" in outcome.content
    assert outcome.exception is not None
    assert "Traceback" in outcome.exception
    assert asyncio.run(box.call("slow", {})).error == "timeout"
    outcome = asyncio.run(box.call("denied", {}))
    assert json.loads(outcome.content)["error"] == "/root/x: Permission denied"


def test_a_runtime_error_does_not_run_the_tool_twice(bench: Bench) -> None:
    runs = []

    async def once(state: ToolState) -> JSON:
        runs.append(1)
        raise RuntimeError("this event loop is already running")

    asyncio.run(with_tools(bench, sample("once", once)).call("once", {}))
    assert runs == [1]


def test_sandbox_errors_leave_the_toolbox(bench: Bench) -> None:
    asyncio.run(bench.sandbox.close())
    with pytest.raises(SandboxReleased):
        bench.outcome("terminal", {"command": "true"})


def test_a_sandbox_error_in_a_turn_ends_its_neighbours(bench: Bench) -> None:
    ended: list[str] = []

    async def broken(state: ToolState) -> JSON:
        raise SandboxError("gone")

    async def waits(state: ToolState) -> JSON:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("waits")
        return {}

    box = with_tools(bench, sample("broken", broken, True), sample("waits", waits, True))
    with pytest.raises(SandboxError, match="gone"):
        asyncio.run(box.call_turn([("1", "waits", {}), ("2", "broken", {})]))
    assert ended == ["waits"]


def test_safe_calls_run_side_by_side_and_results_keep_the_models_order(bench: Bench) -> None:
    started: list[int] = []
    everyone = asyncio.Event()

    async def meet(state: ToolState, n: int = 0) -> JSON:
        started.append(n)
        if len(started) == 3:
            everyone.set()
        await asyncio.wait_for(everyone.wait(), 10)
        return {"n": n}

    box = with_tools(bench, sample("meet", meet, True))
    outcomes = asyncio.run(box.call_turn([("same", "meet", {"n": n}) for n in (3, 1, 2)]))
    assert [json.loads(outcome.content)["n"] for outcome in outcomes] == [3, 1, 2]
    assert all(outcome.ended_at >= outcome.started_at > 0 for outcome in outcomes)


def test_other_calls_run_one_after_another_and_stay_between_their_neighbours(bench: Bench) -> None:
    running: set[int] = set()
    order: list[int] = []

    async def work(state: ToolState, n: int = 0) -> JSON:
        running.add(n)
        await asyncio.sleep(0.01)
        order.append(n)
        assert not (n >= 10 and len(running) > 1)
        running.discard(n)
        return {}

    box = with_tools(bench, sample("safe", work, True), sample("unsafe", work))
    calls = [("safe", 1), ("safe", 2), ("unsafe", 10), ("unsafe", 11), ("safe", 3)]
    outcomes = asyncio.run(box.call_turn([("id", name, {"n": n}) for name, n in calls]))
    assert [outcome.error for outcome in outcomes] == [None] * 5
    assert sorted(order[:2]) == [1, 2]
    assert order[2:] == [10, 11, 3]


def test_a_file_written_in_a_turn_is_read_as_written(bench: Bench) -> None:
    outcomes = asyncio.run(
        bench.toolbox.call_turn(
            [
                ("a", "write_file", {"path": "x", "content": "new"}),
                ("a", "read_file", {"path": "x"}),
                ("a", "nothing", {}),
            ]
        )
    )
    assert "1|new" in outcomes[1].content
    assert outcomes[2].error == "unknown_tool"


def test_a_long_result_goes_to_a_file_and_its_start_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, default_result_size_chars=1_000, preview_size_chars=100)
    outcome = bench.outcome("terminal", {"command": "seq 1 2000; exit 3"})
    result = json.loads(outcome.content)
    assert outcome.stored
    assert outcome.error is None
    assert result["exit_code"] == 3
    assert len(result["preview"]) == 100
    path = result["result_path"]
    assert path in result["notice"]
    assert f"{result['result_size']:,}" in result["notice"]
    assert path.startswith(bench.sandbox.scratch)
    assert Path(path).read_text().count("\n") > 2_000
    page = bench("read_file", path=path, offset=2, limit=3)
    assert page["content"].split("\n") == ["     2|1", "     3|2", "     4|3"]


def test_each_tool_may_have_its_own_size_and_read_file_has_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, default_result_size_chars=50, tool_result_overrides={"terminal": 10_000})
    assert not bench.outcome("terminal", {"command": "seq 500"}).stored
    (bench.work / "f").write_text("word\n" * 100)
    assert not bench.outcome("read_file", {"path": "f"}).stored
    assert bench.outcome("search_files", {"pattern": "word"}).stored


def test_result_files_have_names_of_our_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path, default_result_size_chars=10)
    calls = [("../../evil", "terminal", {"command": f"echo {word * 20}"}) for word in ("a", "b")]
    outcomes = asyncio.run(bench.toolbox.call_turn(calls))
    paths = [json.loads(outcome.content)["result_path"] for outcome in outcomes]
    assert len(set(paths)) == 2
    assert "a" * 20 in Path(paths[0]).read_text()
    assert "b" * 20 in Path(paths[1]).read_text()


def test_the_longest_results_of_a_turn_go_first(bench: Bench) -> None:
    bench.state.settings.turn_budget_chars = 31_000
    box = with_tools(bench, sample("text", text_of_size, True))
    sizes = [5_000, 20_000, 100, 15_000, 8_000]
    outcomes = asyncio.run(box.call_turn([("id", "text", {"n": n}) for n in sizes]))
    assert [outcome.stored for outcome in outcomes] == [False, True, False, False, False]
    assert sum(len(outcome.content) for outcome in outcomes) <= 31_000


def test_exempt_results_are_stored_only_where_nothing_else_is_left(bench: Bench) -> None:
    bench.state.settings.turn_budget_chars = 20_000
    box = with_tools(bench, sample("text", text_of_size, True), sample("page", text_of_size, True, True))
    first = asyncio.run(box.call_turn([("1", "page", {"n": 15_000}), ("2", "text", {"n": 9_000})]))
    assert [outcome.stored for outcome in first] == [False, True]
    second = asyncio.run(box.call_turn([("1", "page", {"n": 15_000}), ("2", "page", {"n": 16_000})]))
    assert [outcome.stored for outcome in second] == [False, True]


def test_a_result_that_cannot_be_stored_is_still_shortened(tmp_path: Path) -> None:
    bench = Bench(tmp_path, default_result_size_chars=100, preview_size_chars=50)
    (Path(bench.sandbox.scratch) / "tool_results").write_text("in the way")
    result = json.loads(bench.outcome("terminal", {"command": "seq 1000"}).content)
    assert "could not be stored" in result["notice"]
    assert len(result["preview"]) == 50


def test_schemas_are_definitions_for_the_model(bench: Bench) -> None:
    assert bench.toolbox.names[0] == "terminal"
    for schema in bench.toolbox.schemas:
        assert schema["type"] == "function"
        assert schema["function"]["description"]
        assert schema["function"]["parameters"]["type"] == "object"


def test_cancelling_a_turn_stops_its_command(bench: Bench) -> None:
    async def cancel() -> None:
        calls = [("1", "terminal", {"command": "sleep 2; touch late"})]
        turn = asyncio.create_task(bench.toolbox.call_turn(calls))
        await asyncio.sleep(0.2)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await asyncio.sleep(2.2)

    asyncio.run(cancel())
    assert not (bench.work / "late").exists()
