from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from environments.tools import execute_code as module
from environments.tools.base import ToolState
from environments.tools.custom import tool
from environments.tools.registry import all_tools
from environments.tools.toolbox import Toolbox

from .bench import Bench


def run(bench: Bench, code: str) -> dict[str, Any]:
    result = bench("execute_code", code=code)
    assert {"status", "output", "exit_code", "tool_calls_made", "duration_seconds"} <= set(result), result
    return result


def test_what_is_printed_comes_back(bench: Bench) -> None:
    result = run(bench, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('Grüße')")
    assert (result["status"], result["output"], result["tool_calls_made"]) == (
        "success",
        "out\nerr\nGrüße\n",
        0,
    )
    assert "error" not in result


def test_code_runs_as_a_script_where_the_shell_is(bench: Bench) -> None:
    (bench.work / "sub").mkdir()
    (bench.work / "sub" / "mine.py").write_text("x = 42\n")
    bench("terminal", command="cd sub; export WORD=word")
    code = "import os, mine\nif __name__ == '__main__': print(mine.x, os.environ['WORD'], os.getcwd()[-3:])"
    assert run(bench, code)["output"] == "42 word sub\n"


def test_other_tools_are_functions(bench: Bench) -> None:
    code = """
from hermes_tools import *
import hermes_tools, json
print(hermes_tools.write_file("a.txt", "one\\ntwo\\n")["bytes_written"])
print(hermes_tools.read_file("a.txt", limit=1)["content"])
print(hermes_tools.terminal(command="cat a.txt | wc -l")["output"].strip())
print(hermes_tools.patch(mode="replace", path="a.txt", old_string="one", new_string="1")["success"])
print(hermes_tools.search_files("two")["total_count"])
print(hermes_tools.json_parse('{"a": "b\\nc"}'))
print(hermes_tools.shell_quote("a b"))
print(hermes_tools.retry(lambda: 7))
"""
    result = run(bench, code)
    assert result["output"].splitlines() == [
        "8",
        "     1|one",
        "2",
        "True",
        "1",
        "{'a': 'b\\nc'}",
        "'a b'",
        "7",
    ]
    assert result["tool_calls_made"] == 5


def test_bad_calls_are_results_that_help(bench: Bench) -> None:
    code = """
import hermes_tools as t
print(t.read_file("nowhere")["error"])
print(t.read_file(pth="x")["error"])
calls = (lambda: t.read_file(1, 2, 3, 4), lambda: t.read_file("x", path="y"), lambda: t.execute_code("1"))
for call in calls:
    try: call()
    except Exception as error: print(type(error).__name__, error)
"""
    lines = run(bench, code)["output"].splitlines()
    assert "does not exist" in lines[0]
    assert "did you mean path?" in lines[1]
    assert lines[2] == "TypeError read_file takes at most 3 arguments"
    assert lines[3] == "TypeError read_file got path twice"
    assert lines[4].startswith("AttributeError")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("print('before')\n1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "the code ended with exit code 3"),
        ("import sys; sys.exit('no luck')", "no luck"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9"),
        ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", "ended its supervisor"),
    ],
)
def test_errors_say_what_happened(bench: Bench, code: str, error: str) -> None:
    result = run(bench, code)
    assert result["status"] == "error"
    assert error in result["error"]


def test_code_that_ends_its_supervisor_does_not_go_on_without_it(bench: Bench) -> None:
    tick = "open('ticks', 'a').write('x'); time.sleep(0.02)"
    code = f"import os, time\nos.kill(os.getppid(), 9)\nwhile True: {tick}"
    assert "was ended itself" in run(bench, code)["error"]
    ticks = bench.work / "ticks"
    before = ticks.read_text() if ticks.exists() else ""
    time.sleep(0.3)
    assert (ticks.read_text() if ticks.exists() else "") == before


def test_it_goes_on_where_its_files_were_tidied_away(bench: Bench) -> None:
    assert run(bench, "print(1)")["output"] == "1\n"
    shutil.rmtree(bench.state.sandbox.scratch)
    assert run(bench, "print(2)")["output"] == "2\n"


def test_a_traceback_shows_the_models_lines_alone(bench: Bench) -> None:
    output = run(bench, "def f():\n    raise ValueError('x')\n\nf()")["output"]
    assert 'File "script.py", line 4' in output
    assert "raise ValueError('x')" in output
    assert "code_runner" not in output


def test_calls_time_and_output_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_LIMIT", 3)
    monkeypatch.setattr(module, "TIME_LIMIT", 3)
    code = "from hermes_tools import todo\nfor n in range(5): todo(); print(n, flush=True)"
    result = run(bench, code)
    assert result["tool_calls_made"] == 3
    assert result["output"].startswith("0\n1\n2\n")
    assert "at most 3 tool calls" in result["error"]
    begun = time.monotonic()
    outcome = bench.outcome(
        "execute_code", {"code": "print('begun', flush=True)\nimport time\ntime.sleep(600)"}
    )
    assert time.monotonic() - begun < 60
    assert (outcome.error, outcome.result["status"], outcome.result["output"]) == (
        "timeout",
        "timeout",
        "begun\n",
    )  # type: ignore[index]
    outcome = bench.outcome("execute_code", {"code": "print('start')\nprint('x' * 3_000_000)\nprint('end')"})
    output = outcome.result["output"]  # type: ignore[index]
    assert len(output) <= 50_000
    assert output.startswith("start\nxxx")
    assert output.endswith("xxx\nend\n")


def test_calls_of_several_threads_do_not_mix(bench: Bench) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
from hermes_tools import terminal
with ThreadPoolExecutor(4) as pool:
    print(sorted(r["output"].strip() for r in pool.map(lambda n: terminal(f"echo {n}"), range(8))))
"""
    assert run(bench, code)["output"] == f"{[str(n) for n in range(8)]}\n"


def test_large_arguments_and_results_pass(bench: Bench) -> None:
    code = """
from hermes_tools import write_file, terminal
text = "ü" * 400_000
print(write_file("big", text)["bytes_written"])
print(len(terminal("head -c 40000 /dev/zero | tr '\\\\0' x")["output"]))
"""
    assert run(bench, code)["output"] == "800000\n40000\n"


def test_forged_requests_get_no_further_than_the_model_itself(bench: Bench) -> None:
    code = """
import os
parent = os.getppid()
for text in ("call 1\\n", "call x\\n", "\\xff\\n", "nonsense\\n"):
    with open(f"/proc/{parent}/fd/1", "w") as out: out.write(text)
print("still here")
"""
    result = run(bench, code)
    assert result["status"] in ("success", "error")


def test_only_the_tools_of_the_rollout_can_be_called(bench: Bench) -> None:
    @tool
    async def own(first: int, second: str = "x") -> str:
        """A tool of the environment."""
        return f"{first} {second}"

    box = Toolbox([all_tools()["execute_code"], own], ToolState(bench.sandbox))
    code = (
        "import hermes_tools as t\nprint(t.own(1)['result'], [n for n in dir(t) if n in ('terminal', 'own')])"
    )
    result = asyncio.run(box.call("execute_code", {"code": code})).result
    assert result is not None
    assert result["output"] == "1 x ['own']\n"


def test_without_python_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to("/bin/bash")
    bench = Bench(tmp_path, str(tmp_path / "bin"))
    outcome = bench.outcome("execute_code", {"code": "1"})
    assert outcome.error == "bad_arguments"
    assert "no python3" in outcome.content
