"""The tools over the real local backend: what the plain sandbox of the other tests cannot show."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.registry import create_backend
from environments.tools.base import ToolSettings, ToolState
from environments.tools.registry import all_tools
from environments.tools.toolbox import Toolbox, ToolOutcome


class LocalBench:
    """A toolbox over a local sandbox, called from plain test functions."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        runner.run(self._open())

    async def _open(self) -> None:
        self.backend = create_backend("local", HermesAgentEnvConfig(), "tools-test")
        self.sandbox = await self.backend.create(SandboxSpec())
        self.state = ToolState(self.sandbox, ToolSettings(default_result_size_chars=5_000))
        self.toolbox = Toolbox(list(all_tools().values()), self.state)

    async def close(self) -> None:
        await self.toolbox.cleanup()
        await self.backend.close()

    def turn(self, *calls: tuple[str, Any]) -> list[ToolOutcome]:
        return self.runner.run(self.toolbox.call_turn([("id", name, arguments) for name, arguments in calls]))

    def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.turn((name, arguments))[0].content)
        return result


def wait_for_output(local: LocalBench, session: str, text: str) -> str:
    """The log of a background session once ``text`` is in it."""
    log = ""
    for _ in range(200):
        log = local("process", action="log", session_id=session)["output"]
        if text in log:
            break
        time.sleep(0.05)
    return log


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBench]:
    with asyncio.Runner() as runner:
        bench = LocalBench(runner)
        try:
            yield bench
        finally:
            runner.run(bench.close())


def test_files_written_patched_and_read(local: LocalBench) -> None:
    local("write_file", path="src/a.py", content="def f():\n    return 1\n")
    result = local("patch", mode="replace", path="src/a.py", old_string="return 1", new_string="return 2")
    assert result["success"], result
    assert local("read_file", path="src/a.py")["content"] == "     1|def f():\n     2|    return 2"
    text = (
        "*** Begin Patch\n*** Update File: src/a.py\n*** Move to: src/b.py\n-    return 2\n+    return 3\n"
        "*** Add File: src/c.py\n+c\n*** End Patch"
    )
    result = local("patch", mode="patch", patch=text)
    assert len(result["files_created"]) == 2, result
    found = local("search_files", pattern=r"return \d", path="src")
    assert [(match["path"], match["line"]) for match in found["matches"]] == [("src/b.py", 2)]
    assert local("search_files", pattern="*.py", target="files")["files"] == ["src/b.py", "src/c.py"]
    assert "does not exist" in local("read_file", path="src/a.py")["error"]


def test_home_links_and_what_may_not_be_written(local: LocalBench) -> None:
    local("write_file", path="~/greeting.txt", content="Grüße\n")
    assert local("read_file", path="~/greeting.txt")["content"] == "     1|Grüße"
    local("terminal", command="ln -s greeting.txt ~/link")
    local("write_file", path="~/link", content="new\n")
    assert local("terminal", command="readlink ~/link; cat ~/greeting.txt")["output"] == "greeting.txt\nnew\n"
    assert local("write_file", path="/proc/version", content="x")["error"]
    assert local("read_file", path="/etc")["error"].startswith("/etc is a directory")
    assert "Linux" in local("read_file", path="/proc/version")["content"]


def test_the_shell_is_one_for_all_tools(local: LocalBench) -> None:
    outcomes = local.turn(
        ("terminal", {"command": "mkdir -p ~/deep && cd ~/deep && export NAME=value && f() { echo f; }"}),
        ("terminal", {"command": "pwd; echo $NAME; f"}),
        ("write_file", {"path": "here.txt", "content": "x"}),
        ("terminal", {"command": "ls; cd"}),
    )
    results = [json.loads(outcome.content) for outcome in outcomes]
    assert results[1]["output"] == f"{local.sandbox.home}/deep\nvalue\nf\n"
    assert results[3]["output"] == "here.txt\n"


def test_background_processes_start_with_the_state_of_the_shell(local: LocalBench) -> None:
    local("terminal", command="mkdir -p ~/other; cd ~/other; export NAME=value; f() { echo function; }")
    here = local("terminal", command="echo $NAME; f; pwd; read end", background=True)
    there = local("terminal", command="pwd; echo $PWD; read end", background=True, workdir="~")
    log = wait_for_output(local, here["session_id"], "/other")
    assert log == f"value\nfunction\n{local.sandbox.home}/other"
    log = wait_for_output(local, there["session_id"], f"\n{local.sandbox.home}")
    assert log == f"{local.sandbox.home}\n{local.sandbox.home}"
    local("process", action="submit", session_id=here["session_id"])
    ended = local("process", action="wait", session_id=here["session_id"], timeout=20)
    assert (ended["status"], ended["exit_code"]) == ("exited", 0)


def test_time_outs_long_output_and_stored_results(local: LocalBench) -> None:
    result = local("terminal", command="echo before; sleep 60", timeout=1)
    assert (result["exit_code"], result["output"]) == (124, "before\n")
    stored = local("terminal", command="seq 1 20000; exit 3")
    assert stored["exit_code"] == 3
    page = local("read_file", path=stored["result_path"], offset=2, limit=2)
    assert page["content"] == "     2|1\n     3|2"


def test_a_pseudo_terminal_and_input(local: LocalBench) -> None:
    command = "test -t 0 && read -p 'name? ' x; echo hello $x; sleep 60"
    session = local("terminal", command=command, background=True, pty=True)["session_id"]
    wait_for_output(local, session, "name? ")
    local("process", action="submit", session_id=session, data="you")
    assert "hello you" in wait_for_output(local, session, "hello you")
    assert local("process", action="kill", session_id=session)["status"] == "exited"
    assert local("terminal", command="test -t 1 && exit 3", pty=True)["exit_code"] == 3


def test_background_processes_end_with_cleanup(local: LocalBench) -> None:
    started = local("terminal", command="sleep 1000", background=True)
    assert local("process", action="poll", session_id=started["session_id"])["status"] == "running"
    local.runner.run(local.toolbox.cleanup())
    ended = local("process", action="wait", session_id=started["session_id"], timeout=20)
    assert ended["status"] == "exited"


def test_a_large_file_is_read_in_part(local: LocalBench) -> None:
    local("terminal", command="seq 1 1000000 > big")
    page = local("read_file", path="big", offset=900_000, limit=2)
    assert page["content"] == "900000|900000\n900001|900001"
    assert page["total_lines"] == 1_000_000


def test_code_calls_tools_without_network(local: LocalBench) -> None:
    code = "import hermes_tools as t\nt.write_file('w', 'x')\nprint(t.terminal('cat w')['output'])"
    result = local("execute_code", code=code)
    assert (result["status"], result["output"], result["tool_calls_made"]) == ("success", "x\n", 2)


def test_code_ends_when_its_call_is_cancelled(local: LocalBench) -> None:
    code = "open('pid', 'w').close()\nimport os, time\nos.system('setsid sleep 1234 &')\ntime.sleep(1234)"

    async def scenario() -> None:
        call = asyncio.create_task(local.toolbox.call("execute_code", {"code": code}))
        while (await local.sandbox.exec("test -e pid; pgrep -f 'sleep 1234'")).exit_code:
            await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.wait([call])

    local.runner.run(scenario())
    gone = local(
        "terminal", command="for n in $(seq 100); do pgrep -f '[s]leep.1234' || exit 0; sleep 0.1; done"
    )
    assert gone["exit_code"] == 0
    assert local("execute_code", code="print(1)")["output"] == "1\n"
