"""Tools on every engine, where what they need of a sandbox could differ: code that calls other tools."""

from __future__ import annotations

from typing import Any

import pytest
from docker_engines import IMAGE, use_engine
from real_backends import RealWorld, singularity_settings, ssh_settings

from environments.tools.base import ToolState
from environments.tools.registry import all_tools
from environments.tools.toolbox import Toolbox

pytestmark = pytest.mark.integration


@pytest.fixture(params=["docker", "podman", "ssh", "singularity"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RealWorld:
    if request.param == "ssh":
        return RealWorld("ssh", ssh_settings())
    if request.param == "singularity":
        return RealWorld("singularity", singularity_settings())
    use_engine(request.param, monkeypatch)
    return RealWorld("docker", {"docker_image": IMAGE})


CODE = """
import hermes_tools as t
print(t.write_file("kept.txt", "ü" * 100_000)["bytes_written"])
print(t.terminal("cd /tmp; export WORD=hello; wc -c < ~-/kept.txt")["output"].strip())
print(t.search_files("ü+", output_mode="count", path=".")["total_count"] >= 0)
print(t.read_file("/nowhere")["error"])
"""


def test_code_calls_other_tools_without_network(world: RealWorld) -> None:
    async def body(sandbox: Any) -> None:
        box = Toolbox(list(all_tools().values()), ToolState(sandbox))
        result = (await box.call("execute_code", {"code": CODE})).result
        assert result is not None
        assert result["status"] == "success", result
        assert result["tool_calls_made"] == 4
        written, counted, searched, missing = result["output"].splitlines()
        assert (written, counted, searched) == ("200000", "200000", "True")
        assert "does not exist" in missing
        # The shell is the model's own: what its code did there stays.
        result = (
            await box.call("execute_code", {"code": "import os; print(os.getcwd(), os.environ['WORD'])"})
        ).result
        assert result is not None
        assert result["output"] == "/tmp hello\n"
        failed = (await box.call("execute_code", {"code": "print('x' * 200_000)\n1 / 0"})).result
        assert failed is not None
        assert failed["status"] == "error"
        assert "ZeroDivisionError" in failed["error"]
        assert len(failed["output"]) <= 50_000

    world.run(body)
