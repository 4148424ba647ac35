"""Tools of MCP servers, each server a real process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from environments.errors import ConfigError
from environments.tools.base import Tool
from environments.tools.definitions import select_tools
from environments.tools.mcp.settings import parse_servers
from environments.tools.mcp.tools import load_tools
from environments.tools.shared import SharedResources
from environments.tools.toolbox import Toolbox
from tools.processes import alive, wait_for
from tools.rollouts import ForeignRollouts

pytest.importorskip("mcp")

SERVERS = str(Path(__file__).with_name("servers.py"))


def program(kind: str, *arguments: str, **options: Any) -> dict[str, Any]:
    return {"command": [sys.executable, SERVERS, kind, *arguments], **options}


class Rollouts(ForeignRollouts):
    """The tools of some servers, and rollouts that use them."""

    def __init__(self, root: Path, servers: dict[str, Any]) -> None:
        super().__init__(root)
        self.servers = servers

    async def load(self) -> list[Tool]:
        return await load_tools(self.servers, self.shared)


async def call(box: Toolbox, name: str, **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((await box.call(name, arguments)).content)
    return result


def test_tools_results_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "sk-hidden")

    async def scenario() -> None:
        server = program("good", env={"GIVEN": "yes"})
        async with Rollouts(tmp_path, {"good": server}) as rollouts:
            box = rollouts.begin()
            assert "mcp_good_add" in box.names
            add = next(tool for tool in rollouts.tools if tool.name == "mcp_good_add")
            assert (add.description, add.toolset) == ("Add two numbers.", "mcp-good")
            assert add.parameters["properties"]["a"]["type"] == "integer"
            assert await call(box, "mcp_good_add", a=1, b=2) == {"result": "3"}
            assert await call(box, "mcp_good_add", a="41") == {"result": "42"}
            assert await call(box, "mcp_good_state_with_strange_name", state="s", self="t") == {
                "result": "s t"
            }
            assert "a is missing" in (await call(box, "mcp_good_add"))["error"]
            assert "a must be an integer" in (await call(box, "mcp_good_add", a="x"))["error"]
            assert "moon is not up" in (await call(box, "mcp_good_fail"))["error"]
            seen = json.loads((await call(box, "mcp_good_environment"))["result"])
            assert seen["GIVEN"] == "yes"
            assert "SECRET_API_KEY" not in seen
            picture = (await call(box, "mcp_good_picture"))["result"]
            path = picture.rpartition(" in ")[2].rstrip("]")
            assert Path(path).read_bytes().startswith(b"\x89PNG")

    asyncio.run(scenario())


def test_each_rollout_has_its_own_server_unless_shared(tmp_path: Path) -> None:
    async def scenario() -> None:
        servers = {"own": program("good"), "all": program("good", shared=True)}
        async with Rollouts(tmp_path, servers) as rollouts:
            first, second = rollouts.begin(), rollouts.begin()
            own = [await call(box, "mcp_own_counted") for box in (first, first, second)]
            together = [await call(box, "mcp_all_counted") for box in (first, first, second)]
        assert [result["result"] for result in own] == ["1", "2", "1"]
        assert [result["result"] for result in together] == ["1", "2", "3"]

    asyncio.run(scenario())


def test_a_server_that_dies_is_told_of_and_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Rollouts(tmp_path, {"good": program("good")}) as rollouts:
            box = rollouts.begin()
            assert await call(box, "mcp_good_counted") == {"result": "1"}
            error = (await call(box, "mcp_good_die"))["error"]
            assert "'good' ended during the call" in error
            assert "exit code 3" in error
            assert "out of cheese" in error
            assert await call(box, "mcp_good_counted") == {"result": "1"}

    asyncio.run(scenario())


def test_a_call_that_takes_too_long(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Rollouts(tmp_path, {"good": program("good", timeout=1)}) as rollouts:
            box = rollouts.begin()
            await call(box, "mcp_good_add", a=1)
            outcome = await box.call("mcp_good_sleep", {"seconds": 600})
        assert outcome.error == "timeout"
        assert "'good' did not answer within 1 seconds" in outcome.content

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["stuck", "endless"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_server_that_answers_no_more_is_started_again(tmp_path: Path, way: str, shared: bool) -> None:
    async def scenario() -> None:
        server = program("misbehaving", timeout=1, shared=shared)
        async with Rollouts(tmp_path, {"m": server}) as rollouts:
            box = rollouts.begin()
            before = await call(box, "mcp_m_well")
            assert await call(box, "mcp_m_well") == before
            assert "it is started again at the next one" in (await call(box, f"mcp_m_{way}"))["error"]
            assert (await call(box, "mcp_m_well"))["result"] != before["result"]
            assert not alive(int(before["result"]))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (program("garbage", start_timeout=3), r"'bad' did not get ready in time.*no MCP messages, such as"),
        (program("dead"), r"'bad' cannot be used.*exit code 7; on standard error: no licence found"),
        ({"command": ["no-such-program-anywhere"]}, r"no-such-program-anywhere cannot be started"),
        ({"url": "http://127.0.0.1:9/mcp", "start_timeout": 20}, r"'bad' cannot be used"),
    ],
    ids=["garbage", "dead", "missing", "nobody listens"],
)
def test_a_server_that_cannot_be_used_is_an_error_at_start(server: dict[str, Any], message: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match=message):
            await load_tools({"bad": server}, SharedResources())

    asyncio.run(scenario())


def test_all_processes_of_a_server_end_with_the_rollout(tmp_path: Path) -> None:
    file = tmp_path / "processes"

    async def scenario() -> list[int]:
        async with Rollouts(tmp_path, {"c": program("clinging", str(file))}) as rollouts:
            await call(rollouts.begin(), "mcp_c_add", a=1)
            processes = [int(word) for word in file.read_text().split()]
            assert all(map(alive, processes))
        return processes

    assert not any(map(alive, asyncio.run(scenario())))


def test_all_processes_of_a_server_end_when_the_run_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "processes"
    code = f"""
        import asyncio
        from environments.tools.mcp.tools import load_tools
        from environments.tools.shared import SharedResources

        async def main():
            await load_tools({{"c": {program("clinging", str(file), shared=True)}}}, SharedResources())
            print("ready", flush=True)
            await asyncio.sleep(1000)

        asyncio.run(main())
    """
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    processes = [int(word) for word in file.read_text().split()]
    assert all(map(alive, processes))
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert wait_for(lambda: not any(map(alive, processes)))


def test_names_of_two_servers_never_clash(tmp_path: Path) -> None:
    async def scenario() -> None:
        same = program("good")
        async with Rollouts(tmp_path, {"a-b": same, "a_b": same, "x" * 40: same}) as rollouts:
            names = [tool.name for tool in rollouts.tools]
        assert len(names) == len(set(names))
        assert max(map(len, names)) <= 64

    asyncio.run(scenario())


def test_a_toolset_of_a_server_can_be_disabled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Rollouts(tmp_path, {"good": program("good")}) as rollouts:
            selection = select_tools(["terminal"], None, brought=rollouts.tools)
            assert "mcp_good_add" in [tool.name for tool in selection.tools]
            selection = select_tools(["terminal"], ["mcp-good"], brought=rollouts.tools)
            assert [tool.name for tool in selection.tools] == ["terminal", "process"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ({"a": "x"}, "must be a mapping"),
        ({"a": {}}, "needs either command"),
        ({"a": {"command": ["x"], "url": "http://x"}}, "needs either command"),
        ({"a": {"command": [1]}}, "must be a list of texts"),
        ({"a": {"command": "x 'y"}}, "command cannot be read"),
        ({"a": {"comand": ["x"]}}, "no option 'comand'; did you mean command"),
        ({"a": {"url": "x"}}, "must begin with http"),
        ({"a": {"command": ["x"], "timeout": "5"}}, "timeout must be a number of seconds"),
        ({"a": {"command": ["x"], "shared": 1}}, "shared must be true or false"),
        ({"a": {"command": ["x"], "env": {"K": ["secret"]}}}, "env: K must be a text"),
        ({"a b": {"command": ["x"]}}, "a name has letters"),
    ],
)
def test_settings_that_mean_nothing_say_so(servers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_servers(servers)


def test_commands_as_other_clients_write_them() -> None:
    entries = {"a": {"command": "npx", "args": ["-y", "x"]}, "b": {"command": "uvx 'a b'"}}
    assert [one.command for one in parse_servers(entries)] == [("npx", "-y", "x"), ("uvx", "a b")]


def test_a_server_behind_an_address(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [sys.executable, SERVERS, "over_http", str(port)]
    server = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)

    def listens() -> bool:
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", port)) == 0

    async def scenario() -> None:
        settings = {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Key": "1"}, "timeout": 5}
        async with Rollouts(tmp_path, {"far": settings}) as rollouts:
            box = rollouts.begin()
            assert await call(box, "mcp_far_add", a=1, b=2) == {"result": "3"}
            assert "moon is not up" in (await call(box, "mcp_far_fail"))["error"]
            server.kill()
            server.wait()
            assert "'far'" in (await call(box, "mcp_far_add", a=1))["error"]
            again = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
            try:
                assert wait_for(listens)
                assert await call(box, "mcp_far_add", a=1, b=2) == {"result": "3"}
            finally:
                again.kill()
                again.wait()

    try:
        assert wait_for(listens)
        asyncio.run(scenario())
    finally:
        server.kill()
        server.wait()


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("mcp-server-time") is None, reason="mcp-server-time is not installed")
def test_a_server_from_the_package_index(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Rollouts(tmp_path, {"time": {"command": ["mcp-server-time"]}}) as rollouts:
            box = rollouts.begin()
            shown = json.loads(
                (await call(box, "mcp_time_get_current_time", timezone="Europe/Berlin"))["result"]
            )
            assert shown["timezone"] == "Europe/Berlin"
            error = (await call(box, "mcp_time_get_current_time", timezone="Nowhere"))["error"]
            assert "Nowhere" in error

    asyncio.run(scenario())
