"""``terminal``: run shell commands in the rollout's one shell, or in the background."""

from __future__ import annotations

import asyncio

from environments.sandboxes.base import ExecResult, Process
from environments.tools.background import add_session
from environments.tools.base import JSON, Tool, ToolInputError, ToolState
from environments.tools.paths import is_directory, not_found, resolve
from environments.tools.shell_state import current_directory, shell_of, with_shell_state
from environments.tools.text import decode, shorten, strip_escapes

LONGEST_TIMEOUT = 600
"""Seconds a model may ask for: longer waits belong in the background, where it can look in between."""

TIMED_OUT = 124

DESCRIPTION = (
    "Run a command with bash in the sandbox. The current directory, exported variables and functions "
    "persist between calls. Output is stdout and stderr together; long output is cut in the middle. "
    "Use background=true for servers and long jobs, and the process tool to follow them. "
    "Standard input is empty; there is nobody to answer prompts."
)


async def terminal(
    state: ToolState,
    command: str,
    background: bool = False,
    timeout: int | None = None,
    workdir: str | None = None,
    pty: bool = False,
) -> JSON:
    """Run a command; ``timeout`` in seconds, by default the configured ``terminal_timeout``."""
    if not command.strip():
        raise ToolInputError("command is empty; give the shell command to run")
    if "\0" in command:
        raise ToolInputError("command has a NUL character in it, which no shell can read")
    limit = _timeout(state, timeout)
    cwd = await _directory(state, workdir)
    if background:
        return await _start(state, command, cwd, pty)
    if pty:
        return await _run_in_terminal(state, command, cwd, limit)
    result = await shell_of(state).run(command, timeout=limit, cwd=cwd)
    return _result(result, limit)


def _timeout(state: ToolState, wanted: int | None) -> int:
    setting = state.settings.terminal_timeout
    longest = max(LONGEST_TIMEOUT, setting)
    if wanted is None:
        return setting
    if wanted > longest:
        raise ToolInputError(
            f"timeout may be at most {longest} seconds, not {wanted}; run longer jobs with background=true "
            "and follow them with the process tool"
        )
    return wanted


async def _directory(state: ToolState, workdir: str | None) -> str | None:
    if workdir is None or not workdir.strip():
        return None
    path = resolve(state, workdir)
    if not await is_directory(state.sandbox, path):
        raise ToolInputError(f"workdir is not a directory: {await not_found(state.sandbox, path)}")
    return path


async def _start(state: ToolState, command: str, cwd: str | None, pty: bool) -> JSON:
    process = await _spawn(state, command, cwd, pty)
    session = add_session(state, command, process)
    return {
        "output": f"started in the background; follow it with process(action='poll', "
        f"session_id='{session.id}')",
        "session_id": session.id,
        "exit_code": 0,
        "error": None,
    }


async def _run_in_terminal(state: ToolState, command: str, cwd: str | None, limit: int) -> JSON:
    """With a pseudo-terminal the command has a process of its own: it cannot change the shell."""
    process = await _spawn(state, command, cwd, pty=True)
    try:
        code = await process.wait(limit)
    finally:
        # Also when we are cancelled: a command must not outlive its call.
        if process.exit_code is None:
            await process.kill()
    output = await process.read()
    # What was printed last may still be on its way when the exit code is known.
    await asyncio.sleep(0.05)
    output += await process.read()
    timed_out = code is None
    return _result(ExecResult(TIMED_OUT if code is None else code, output, timed_out=timed_out), limit)


async def _spawn(state: ToolState, command: str, cwd: str | None, pty: bool) -> Process:
    directory = cwd or current_directory(state)
    text = await with_shell_state(state, command, directory, state.settings.terminal_timeout)
    return await state.sandbox.spawn(text, cwd=directory, pty=pty)


def _result(result: ExecResult, limit: int) -> JSON:
    # The shell merges both streams; what comes apart all the same is shown after it.
    text = strip_escapes(decode(result.stdout))
    if result.stderr:
        text += strip_escapes(decode(result.stderr))
    lost = max(0, result.stdout_bytes - len(result.stdout))
    error = None
    if result.timed_out:
        error = (
            f"the command was stopped after {limit} seconds; give a larger timeout (up to {LONGEST_TIMEOUT}) "
            "or run it with background=true"
        )
    code = TIMED_OUT if result.timed_out else result.exit_code
    return {"output": shorten(text, lost=lost), "exit_code": code, "error": error}


TOOLS = (
    Tool(
        name="terminal",
        description=DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "Shell command."},
                "background": {
                    "type": "boolean",
                    "default": False,
                    "description": "Start it and return a session_id at once.",
                },
                "timeout": {
                    "type": "integer",
                    "minimum": 1,
                    "description": f"Seconds until it is stopped, at most {LONGEST_TIMEOUT}.",
                },
                "workdir": {
                    "type": "string",
                    "description": "Directory for this command; default: where the shell is.",
                },
                "pty": {
                    "type": "boolean",
                    "default": False,
                    "description": "Give it a pseudo-terminal, for programs that insist on one; it then "
                    "runs apart from the shell.",
                },
            },
            "required": ["command"],
        },
        function=terminal,
        toolset="terminal",
    ),
)
