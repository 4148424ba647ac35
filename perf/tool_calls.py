"""Cost of each tool call on the local backend, beside a bare equivalent without any sandbox.

    python perf/tool_calls.py [ROUNDS]

Bare is what one would write by hand for the same answer: an asyncio subprocess for `true`, plain file calls
of this very process for files (with the diff that `patch` answers), `grep -rn` in a subprocess for a search,
and for code that calls one tool, a Python process that asks for it and reads the result in JSON over its
pipes. That is the ratio; the target is 2. The last column is CPU
of the same across a process, which no sandbox can do without: a shell for `true`, for files a Python process
that is already there and does by request what bare does here, the sandbox's own Python for code.

All take turns, as the load of a machine varies. CPU is that of this process and all that it starts, wherever
it may count by a control group (root, version 1), else without what detaches itself. It prints medians in
milliseconds.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_exec import Meter

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.registry import create_backend
from environments.tools.base import ToolState
from environments.tools.registry import all_tools
from environments.tools.toolbox import Toolbox

BATCH = 10
FILES = 200
ASKING = "import json; print(json.dumps({'tool': 'todo'}), flush=True); print(json.loads(input()))"
CODE = "import hermes_tools\nprint(hermes_tools.todo())"
TEXT = "".join(f"line {number}\n" for number in range(200))

Call = Callable[[], Awaitable[Any]]


async def process(*argv: str, directory: Path) -> bytes:
    """A command as a plain asyncio subprocess."""
    made = await asyncio.create_subprocess_exec(
        *argv, cwd=directory, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    return (await made.communicate())[0]


def bare_calls(directory: Path) -> dict[str, Call]:
    """What each call does, by hand."""
    file = directory / "a.txt"
    other = iter(range(10**9))

    async def read() -> None:
        "\n".join(f"{n:6d}|{line}" for n, line in enumerate(file.read_text().splitlines()[:500], 1))

    async def write() -> None:
        (directory / "w.txt").write_text(TEXT)

    async def patch() -> str:
        before = file.read_text()
        line = next(line for line in before.splitlines(keepends=True) if line.startswith("line 7"))
        after = before.replace(line, f"line 7 {next(other)}\n", 1)
        file.write_text(after)
        lines = [text.splitlines(keepends=True) for text in (before, after)]
        return "".join(difflib.unified_diff(*lines, "a.txt", "a.txt"))

    return {
        "terminal true": lambda: process("true", directory=directory),
        "read_file": read,
        "write_file": write,
        "patch": patch,
        "search_files": lambda: process("grep", "-rn", "line 199", ".", directory=directory),
        "search_files names": lambda: process("find", ".", "-name", "*1.txt", directory=directory),
        "execute_code": lambda: code_that_asks(directory),
    }


async def code_that_asks(directory: Path) -> bytes:
    """Python code that has one call done by us, and prints its result."""
    made = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ASKING,
        cwd=directory,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert made.stdout is not None
    asked = json.loads(await made.stdout.readline())
    return (await made.communicate(json.dumps({"result": asked}).encode() + b"\n"))[0]


WORKER = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "text" in request:
        with open(request["path"], "w") as file:
            file.write(request["text"])
        answer = "written"
    else:
        with open(request["path"]) as file:
            answer = file.read()
    print(json.dumps(answer), flush=True)
"""


class Worker:
    """A process that is already there, and reads and writes files by request over its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, directory: Path) -> Worker:
        """The worker, with its files in a directory."""
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-c", WORKER)
        return cls(await asyncio.create_subprocess_exec(*command, cwd=directory, stdin=pipe, stdout=pipe))

    async def ask(self, **request: str) -> str:
        """The text of a file, or that it is written."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        await self._process.stdin.drain()
        return str(json.loads(await self._process.stdout.readline()))

    async def patch(self, line: str) -> str:
        """One line replaced, and the difference."""
        before = await self.ask(path="a.txt")
        after = before.replace(
            next(each for each in before.splitlines(True) if each.startswith("line 9")), line, 1
        )
        await self.ask(path="a.txt", text=after)
        lines = [text.splitlines(keepends=True) for text in (before, after)]
        return "".join(difflib.unified_diff(*lines, "a.txt", "a.txt"))

    async def close(self) -> None:
        """End it."""
        self._process.kill()
        await self._process.wait()


def across_calls(directory: Path, worker: Worker) -> dict[str, Call]:
    """The same, each across a process."""
    other = iter(range(10**9))

    def run(*argv: str) -> Call:
        return lambda: process(*argv, directory=directory)

    async def read() -> None:
        text = await worker.ask(path="a.txt")
        "\n".join(f"{n:6d}|{line}" for n, line in enumerate(text.splitlines()[:500], 1))

    return {
        "terminal true": run("bash", "-c", "true"),
        "read_file": read,
        "write_file": lambda: worker.ask(path="w.txt", text=TEXT),
        "patch": lambda: worker.patch(f"line 9 {next(other)}\n"),
        "search_files": run("grep", "-rn", "line 199", "."),
        "search_files names": run("find", ".", "-name", "*1.txt"),
        "execute_code": run("/usr/bin/python3", "-c", "print(1)"),
    }


def tool_calls(box: Toolbox) -> dict[str, Call]:
    """The same by the tools."""
    other = iter(range(10**9))

    def call(name: str, **arguments: Any) -> Call:
        async def run() -> None:
            outcome = await box.call(name, arguments)
            assert outcome.error is None, outcome.content

        return run

    async def patch() -> None:
        old = getattr(patch, "last", "line 7\n")
        new = f"line 7 {next(other)}\n"
        patch.last = new  # type: ignore[attr-defined]
        await call("patch", mode="replace", path="a.txt", old_string=old, new_string=new)()

    return {
        "terminal true": call("terminal", command="true"),
        "read_file": call("read_file", path="a.txt"),
        "write_file": call("write_file", path="w.txt", content=TEXT),
        "patch": patch,
        "search_files": call("search_files", pattern="line 199"),
        "search_files names": call("search_files", pattern="*1.txt", target="files"),
        "execute_code": call("execute_code", code=CODE),
    }


async def cost(meter: Meter, call: Call) -> tuple[float, float]:
    """Wall and CPU milliseconds of one call, over a few in a row."""
    used, begun = meter.read(), time.perf_counter()
    for _ in range(BATCH):
        await call()
    return (time.perf_counter() - begun) * 1000 / BATCH, (meter.read() - used) * 1000 / BATCH


async def measure(rounds: int) -> None:
    meter = Meter()
    backend = create_backend("local", HermesAgentEnvConfig(), "perf")
    try:
        sandbox = await backend.create(SandboxSpec())
        ours = tool_calls(Toolbox(list(all_tools().values()), ToolState(sandbox)))
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            files = {f"f{number}.txt": TEXT[: 20 * number] for number in range(FILES)} | {"a.txt": TEXT}
            for file, text in files.items():
                (directory / file).write_text(text)
                await sandbox.write_bytes(f"{sandbox.working_directory}/{file}", text.encode())
            worker = await Worker.start(directory)
            try:
                await compare(meter, rounds, ours, bare_calls(directory), across_calls(directory, worker))
            finally:
                await worker.close()
    finally:
        await backend.close()
        meter.close()


async def compare(
    meter: Meter, rounds: int, ours: dict[str, Call], bare: dict[str, Call], across: dict[str, Call]
) -> None:
    """Print a line for each tool."""
    print(f"{'ms of one call':20}{'wall':>9}{'bare':>9}{'ratio':>8}", end="")
    print(f"{'cpu':>11}{'bare':>9}{'ratio':>8}{'across':>11}{'ratio':>8}")
    for name, call in ours.items():
        calls = (call, bare[name], across[name])
        for each in calls:  # warm
            await cost(meter, each)
        rows = [[await cost(meter, each) for each in calls] for _ in range(rounds)]
        print(row(name, rows), flush=True)


def row(name: str, rows: list[list[tuple[float, float]]]) -> str:
    """A line of the table: medians and their ratios."""
    wall, cpu = (
        [statistics.median(costs[side][kind] for costs in rows) for side in range(3)] for kind in (0, 1)
    )
    ratios = [ours / bare for ours, bare, _ in (wall, cpu)]
    line = f"{name:20}{wall[0]:9.2f}{wall[1]:9.2f}{ratios[0]:8.1f}"
    return f"{line}{cpu[0]:11.2f}{cpu[1]:9.2f}{ratios[1]:8.1f}{cpu[2]:11.2f}{cpu[0] / cpu[2]:8.1f}"


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
