from __future__ import annotations

import asyncio
import json
from pathlib import Path

from .bench import Bench


def test_output_exit_code_and_no_error(bench: Bench) -> None:
    assert bench("terminal", command="echo out; echo err >&2; exit 3") == {
        "output": "out\nerr\n",
        "exit_code": 3,
        "error": None,
    }
    assert bench.outcome("terminal", {"command": "false"}).error is None


def test_directory_and_variables_persist(bench: Bench) -> None:
    bench("terminal", command="mkdir sub; cd sub; export COLOUR=blue")
    assert bench("terminal", command="echo $COLOUR; basename $PWD")["output"] == "blue\nsub\n"
    bench("write_file", path="here.txt", content="x")
    assert (bench.work / "sub" / "here.txt").read_text() == "x"


def test_workdir_is_for_one_command(bench: Bench) -> None:
    (bench.work / "other").mkdir()
    assert bench("terminal", command="basename $PWD", workdir="other")["output"] == "other\n"
    assert bench("terminal", command="basename $PWD")["output"] == "work\n"
    outcome = bench.outcome("terminal", {"command": "true", "workdir": "othr"})
    assert "similar: " in outcome.content
    assert outcome.error == "bad_arguments"


def test_a_time_out_is_124_and_names_limit_and_background(bench: Bench) -> None:
    outcome = bench.outcome("terminal", {"command": "echo before; sleep 30", "timeout": 1})
    result = json.loads(outcome.content)
    assert (result["exit_code"], result["output"]) == (124, "before\n")
    assert "1 second" in result["error"]
    assert "background=true" in result["error"]
    assert outcome.error == "timeout"


def test_the_setting_is_the_default_and_ten_minutes_the_most(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "a", terminal_timeout=1)
    assert bench("terminal", command="sleep 30")["exit_code"] == 124
    assert bench("terminal", command="sleep 1.5", timeout=20)["exit_code"] == 0
    assert "at most 600 seconds" in bench("terminal", command="true", timeout=601)["error"]
    patient = Bench(tmp_path / "b", terminal_timeout=1800)
    assert patient("terminal", command="true", timeout=1500)["exit_code"] == 0


def test_long_and_strange_output(bench: Bench) -> None:
    result = bench("terminal", command="seq 1 100000")
    assert len(result["output"]) <= 50_000
    assert result["output"].startswith("1\n2\n")
    assert result["output"].endswith("100000\n")
    assert "characters left out" in result["output"]
    assert bench("terminal", command="printf '\\033[31mred\\033[0m \\377'")["output"] == "red \ufffd"


def test_a_pseudo_terminal_on_request(bench: Bench) -> None:
    assert bench("terminal", command="[ -t 1 ] && echo yes || echo no")["output"] == "no\n"
    assert bench("terminal", command="[ -t 1 ] && echo yes; exit 4", pty=True) == {
        "output": "yes\n",
        "exit_code": 4,
        "error": None,
    }
    assert bench("terminal", command="sleep 30", pty=True, timeout=1)["exit_code"] == 124


def run(bench: Bench, *calls: tuple[str, dict[str, object]]) -> list[dict[str, object]]:
    """Several calls on one event loop, as background processes need."""

    async def all_of_them() -> list[dict[str, object]]:
        try:
            return [json.loads((await bench.toolbox.call(name, dict(args))).content) for name, args in calls]
        finally:
            await bench.toolbox.cleanup()

    return asyncio.run(all_of_them())


def test_a_background_session_from_start_to_end(bench: Bench) -> None:
    results = run(
        bench,
        ("terminal", {"command": "echo ready; read x; echo got $x; exit 5", "background": True}),
        ("process", {"action": "submit", "session_id": "proc_1", "data": "word"}),
        ("process", {"action": "wait", "session_id": "proc_1", "timeout": 20}),
        ("process", {"action": "poll", "session_id": "proc_1"}),
        ("process", {"action": "log", "session_id": "proc_1"}),
        ("process", {"action": "list"}),
        ("process", {"action": "write", "session_id": "proc_1", "data": "late"}),
    )
    started, written, waited, polled, log, listed, late = results
    assert started["session_id"] == "proc_1"
    assert written["bytes_written"] == 5
    assert (waited["status"], waited["exit_code"]) == ("exited", 5)
    assert str(written["output"]) + str(waited["output"]) == "ready\ngot word\n"
    assert polled["output"] == ""
    assert log["output"] == "ready\ngot word"
    assert [session["session_id"] for session in listed["processes"]] == ["proc_1"]  # type: ignore[attr-defined]
    assert "has ended" in str(late["error"])


def test_kill_close_and_wait(bench: Bench) -> None:
    results = run(
        bench,
        ("terminal", {"command": "sleep 60", "background": True}),
        ("terminal", {"command": "cat; echo end", "background": True}),
        ("process", {"action": "wait", "session_id": "proc_1", "timeout": 1}),
        ("process", {"action": "kill", "session_id": "proc_1"}),
        ("process", {"action": "write", "session_id": "proc_2", "data": "text"}),
        ("process", {"action": "close", "session_id": "proc_2"}),
        ("process", {"action": "wait", "session_id": "proc_2"}),
        ("process", {"action": "log", "session_id": "proc_2"}),
    )
    assert results[2]["status"] == "running"
    assert "still running after 1 seconds" in str(results[2]["note"])
    assert (results[3]["status"], results[3]["exit_code"]) == ("exited", 137)
    assert results[7]["output"] == "textend"


def test_log_pages_by_lines(bench: Bench) -> None:
    log = {"action": "log", "session_id": "proc_1"}
    results = run(
        bench,
        ("terminal", {"command": "seq 1 1000", "background": True}),
        ("process", {"action": "wait", "session_id": "proc_1"}),
        ("process", log),
        ("process", {**log, "offset": 10, "limit": 3}),
        ("process", {**log, "offset": -2}),
        ("process", {**log, "offset": 5_000}),
    )
    assert str(results[2]["output"]).split("\n")[0] == "801"
    assert results[2]["total_lines"] == 1000
    assert results[3]["output"] == "11\n12\n13"
    assert results[4]["output"] == "999\n1000"
    assert results[5]["output"] == ""


def test_an_unknown_session_names_those_that_exist(bench: Bench) -> None:
    results = run(
        bench,
        ("process", {"action": "poll", "session_id": "proc_9"}),
        ("terminal", {"command": "true", "background": True}),
        ("process", {"action": "poll"}),
        ("process", {"action": "lst"}),
    )
    assert "Sessions: none" in str(results[0]["error"])
    assert "Sessions: proc_1" in str(results[2]["error"])
    assert "must be one of list, poll" in str(results[3]["error"])


def test_output_in_pieces_is_whole_text(bench: Bench) -> None:
    command = r"printf '\303'; sleep 0.4; printf '\251\033['; sleep 0.4; printf '31mred'; read x"
    results = run(
        bench,
        ("terminal", {"command": command, "background": True}),
        *[("process", {"action": "write", "session_id": "proc_1", "data": " "})] * 8,
        ("process", {"action": "log", "session_id": "proc_1"}),
    )
    assert "".join(str(result["output"]) for result in results[1:-1]) == "éred"
    assert results[-1]["output"] == "éred"


def test_cleanup_kills_what_still_runs(bench: Bench) -> None:
    run(bench, ("terminal", {"command": "sleep 2; touch late", "background": True}))
    asyncio.run(asyncio.sleep(2.2))
    assert not (bench.work / "late").exists()
