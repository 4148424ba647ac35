"""``execute_code``: Python in the rollout's sandbox, which may call the rollout's other tools.

The code runs where everything of the model runs; its calls come to us through the standard streams of its
supervisor (``code_runner.py``), so that a sandbox without network can make them too. They are checked and
counted here: code in a sandbox can ask for no more than the model itself could.
"""

from __future__ import annotations

import asyncio
import json
import keyword
import posixpath
import shlex
import time
from pathlib import Path

from environments.sandboxes.base import Process
from environments.tools.base import JSON, OtherTools, Tool, ToolInputError, ToolState
from environments.tools.shell_state import after_shell_state, current_directory
from environments.tools.text import OUTPUT_LIMIT, shorten, strip_escapes

TIME_LIMIT = 300
"""Seconds that the code may run, its tool calls included."""

CALL_LIMIT = 50
"""Tool calls of one execution."""

REQUEST_LIMIT = 5_000_000
"""Bytes of the arguments of one call."""

_NO_PYTHON = 127
_NO_PROGRAM = 121
_STOPPING = 5.0
_LONGEST_WAIT = 5.0
_ENDING = 0.5
"""Seconds in which the program ends that has said that it is done."""

_SLOT = "execute_code"
_PROGRAM_SLOT = "execute_code.program"

DESCRIPTION = (
    "Run Python code in the sandbox. Your other tools are functions of the module hermes_tools, with the "
    "same parameters, and return their results as dicts: from hermes_tools import read_file, terminal. "
    "Print what you want to see. Use it for loops and for filtering large results. At most "
    f"{TIME_LIMIT} seconds, {CALL_LIMIT} tool calls and {OUTPUT_LIMIT:,} characters of output; nothing is "
    "kept between two executions but files."
)


async def execute_code(state: ToolState, code: str, *, others: OtherTools) -> JSON:
    """Run ``code`` to its end; ``output`` is what it printed on both streams."""
    if not code.strip():
        raise ToolInputError("code is empty; give the Python code to run")
    try:
        return await _execute(state, code, others)
    except _ProgramGone:  # somebody tidied up; nothing has run
        state.slots.pop(_PROGRAM_SLOT, None)
        return await _execute(state, code, others)


class _ProgramGone(OSError):
    """The program that runs the code is no longer in the sandbox."""


async def _execute(state: ToolState, code: str, others: OtherTools) -> JSON:
    started = time.monotonic()
    job = await _prepare(state, code, others)
    directory = current_directory(state)
    # Until the code calls a tool, nothing else uses the shell, so that the state needs no copy.
    command = after_shell_state(state, _command(state, job), directory)
    process = await state.sandbox.spawn(command, cwd=directory)
    execution = _Execution(state, process, job, others)
    try:
        timed_out = False
        try:
            async with asyncio.timeout(TIME_LIMIT):
                await execution.follow()
        except TimeoutError:
            timed_out = True
            await execution.stop()
        report = await execution.report()
        await process.wait(_ENDING)
    finally:
        # Also when we are cancelled: the code must not outlive its call.
        if process.exit_code is None:
            await process.kill()
    result = _result(report, timed_out)
    result["tool_calls_made"] = execution.calls
    result["duration_seconds"] = round(time.monotonic() - started, 2)
    return result


async def _prepare(state: ToolState, code: str, others: OtherTools) -> str:
    """Put the program and the job into the sandbox; the job's path."""
    number = state.slots[_SLOT] = state.slots.get(_SLOT, 0) + 1
    if _PROGRAM_SLOT not in state.slots:
        program = Path(__file__).with_name("code_runner.py").read_bytes()
        await state.sandbox.write_bytes(_path(state, "code_runner.py"), program)
        state.slots[_PROGRAM_SLOT] = True
    tools = {name: names for name, names in others.parameters.items() if _can_be_a_function(name)}
    job = _path(state, f"job_{number}")
    await state.sandbox.write_bytes(job, f"{json.dumps(tools)}\n{code}".encode())
    return job


def _path(state: ToolState, name: str) -> str:
    return posixpath.join(state.sandbox.scratch, "execute_code", name)


def _can_be_a_function(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _command(state: ToolState, job: str) -> str:
    program = shlex.quote(_path(state, "code_runner.py"))
    return (
        f"[ -e {program} ] || exit {_NO_PROGRAM}; "
        "for python in python3 python; do command -v $python >/dev/null 2>&1 && "
        f"exec $python -u {program} {shlex.quote(job)}; done; exit {_NO_PYTHON}"
    )


class _Execution:
    """Code that runs, and the calls that it makes."""

    def __init__(self, state: ToolState, process: Process, job: str, others: OtherTools) -> None:
        self.state, self.process, self.job, self.others = state, process, job, others
        self.calls = 0
        self._said = b""
        self._code: int | None = None

    async def follow(self) -> None:
        """Answer calls until the code has ended."""
        while True:
            # Once more around after the end: what it said last may still be unread.
            ended = self.process.exit_code is not None
            self._said += await self.process.read_soon(_LONGEST_WAIT)
            while b"\n" in self._said:
                line, self._said = self._said.split(b"\n", 1)
                if line.strip() == b"done":
                    return
                if line.startswith(b"call "):
                    await self._answer()
                if line.startswith(b"code ") and line[5:].isdigit():
                    self._code = int(line[5:])
            if ended:
                return

    async def _answer(self) -> None:
        try:
            data = await self.state.sandbox.read_bytes(f"{self.job}.call", length=REQUEST_LIMIT + 1)
            reply = await self._call(data)
        except OSError as error:  # the code can do as it likes with its files
            reply = {"refused": f"the call cannot be read: {error}"}
        try:
            await self.process.write(json.dumps(reply, default=str).encode("ascii") + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return  # it ended in the meantime, which the next look shows

    async def _call(self, data: bytes) -> JSON:
        if self.calls >= CALL_LIMIT:
            return {"refused": f"at most {CALL_LIMIT} tool calls are possible in one execution"}
        self.calls += 1
        if len(data) > REQUEST_LIMIT:
            return {"refused": f"the arguments of one call may have at most {REQUEST_LIMIT:,} bytes"}
        try:
            request = json.loads(data)
            name, arguments = request["name"], request["arguments"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"refused": "the call cannot be read"}
        if name not in self.others.parameters:
            return {"refused": f"{name!r} cannot be called from code"}
        return {"result": await self.others.call(name, arguments)}

    async def stop(self) -> None:
        """End the code, and hear what it had printed if that can be done soon."""
        try:
            async with asyncio.timeout(_STOPPING):
                await self.process.write(b"stop\n")
                await self.follow()
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            return

    async def report(self) -> JSON | None:
        """What the supervisor wrote down at the end; None if there is nothing of the kind."""
        if self.process.exit_code == _NO_PYTHON:
            raise ToolInputError("there is no python3 in this sandbox; install it or use the terminal tool")
        if self.process.exit_code == _NO_PROGRAM:
            raise _ProgramGone(f"{_path(self.state, 'code_runner.py')} was removed")
        try:
            data = await self.state.sandbox.read_bytes(f"{self.job}.result", length=REQUEST_LIMIT)
            report = json.loads(data)
        except (OSError, ValueError, RecursionError):
            await self._end_code()
            return None
        return report if isinstance(report, dict) else None

    async def _end_code(self) -> None:
        """End code whose supervisor is gone: it would go on with nobody to count its calls or its time."""
        if self._code is not None:
            command = ["sh", "-c", 'kill -9 "-$1"', "sh", str(self._code)]
            await self.state.sandbox.exec(command, timeout=_STOPPING)


def _result(report: JSON | None, timed_out: bool) -> JSON:
    report = report or {}
    lost = report.get("lost")
    output = strip_escapes(str(report.get("output", "")))
    result: JSON = {
        "status": "success",
        "output": shorten(output, lost=lost if isinstance(lost, int) else 0),
    }
    code = report.get("exit_code")
    result["exit_code"] = 124 if timed_out else code
    if timed_out:
        result |= {"status": "timeout", "error": f"the code was stopped after {TIME_LIMIT} seconds"}
    elif code is None:
        result |= {
            "status": "error",
            "error": "the code ended its supervisor and was ended itself; its output is lost",
        }
    elif code != 0:
        last = output.rstrip().rpartition("\n")[2]
        cause = f"killed by signal {-code}" if isinstance(code, int) and code < 0 else last[:500]
        result |= {"status": "error", "error": cause or f"the code ended with exit code {code}"}
    return result


TOOLS = (
    Tool(
        name="execute_code",
        description=DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code."}},
            "required": ["code"],
        },
        function=execute_code,
        toolset="code_execution",
        calls_tools=True,
    ),
)
