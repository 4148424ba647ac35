"""``process``: follow and steer what ``terminal`` started in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from environments.tools.background import Session, get_session, sessions_of
from environments.tools.base import JSON, Tool, ToolInputError, ToolState
from environments.tools.terminal import LONGEST_TIMEOUT
from environments.tools.text import shorten

LOG_LINES = 200
"""Lines of a log that are shown where no limit is given."""

ACTIONS = ("list", "poll", "log", "wait", "kill", "write", "submit", "close")

DESCRIPTION = (
    "Manage background sessions that terminal(background=true) started. Actions: list (all sessions), "
    "poll (state and new output), log (all output, by lines), wait (until it ends or timeout), kill, "
    "write (data to standard input as it is), submit (data and Enter), close (end of standard input)."
)


async def process(
    state: ToolState,
    action: str,
    session_id: str | None = None,
    data: str | None = None,
    timeout: int | None = None,
    offset: int | None = None,
    limit: int | None = None,
) -> JSON:
    """Do one action; all but ``list`` need a ``session_id``."""
    if action == "list":
        for session in sessions_of(state).values():
            await session.refresh()
        return {"processes": [session.status() for session in sessions_of(state).values()]}
    session = get_session(state, (session_id or "").strip())
    if action == "log":
        await session.refresh()
        return {**session.status(), **_page(session, offset, limit)}
    if action == "wait":
        return await _wait(state, session, timeout)
    if action in ("write", "submit"):
        return await _write(session, data, "\n" if action == "submit" else "")
    await _SIMPLE[action](session)
    await session.refresh()
    return {**session.status(), "output": shorten(session.news())}


async def _poll(session: Session) -> None:
    """What every action ends with is all there is to do."""


async def _kill(session: Session) -> None:
    await session.process.kill()
    # Its last output arrives just after; a process that cannot be killed must not block the model.
    await session.process.wait(5)


async def _close(session: Session) -> None:
    await session.process.close_stdin()


async def _wait(state: ToolState, session: Session, timeout: int | None) -> JSON:
    seconds = timeout if timeout is not None else state.settings.terminal_timeout
    longest = max(LONGEST_TIMEOUT, state.settings.terminal_timeout)
    if seconds > longest:
        raise ToolInputError(f"timeout may be at most {longest} seconds, not {seconds}; wait again instead")
    code = await session.process.wait(seconds)
    await session.refresh()
    result = {**session.status(), "output": shorten(session.news())}
    if code is None and session.running:
        result["note"] = f"still running after {seconds} seconds"
    return result


async def _write(session: Session, data: str | None, end: str) -> JSON:
    if data is None and not end:
        raise ToolInputError("write needs data")
    await session.refresh()
    if not session.running:
        return {**session.status(), "error": "the process has ended; nothing was written"}
    text = ((data or "") + end).encode()
    try:
        await session.process.write(text)
    except (BrokenPipeError, ConnectionResetError):
        return {**session.status(), "error": "the process has closed its standard input"}
    # A moment for an answer, so that a prompt does not need a second call.
    await asyncio.sleep(0.2)
    await session.refresh()
    return {**session.status(), "bytes_written": len(text), "output": shorten(session.news())}


def _page(session: Session, offset: int | None, limit: int | None) -> JSON:
    """Lines ``offset`` (from 0) and after; without an offset the last ones, negative from the end."""
    lines = session.log.splitlines()
    count = limit if limit is not None else LOG_LINES
    if offset is None:
        start = max(0, len(lines) - count)
    else:
        start = max(0, len(lines) + offset) if offset < 0 else offset
    shown = lines[start : start + count]
    page: JSON = {
        "output": shorten("\n".join(shown)),
        "offset": start,
        "lines": len(shown),
        "total_lines": len(lines),
    }
    if session.dropped:
        page["note"] = f"the oldest {session.dropped:,} characters are no longer kept"
    return page


_SIMPLE: dict[str, Callable[[Session], Awaitable[None]]] = {"poll": _poll, "kill": _kill, "close": _close}

TOOLS = (
    Tool(
        name="process",
        description=DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": list(ACTIONS), "description": "What to do."},
                "session_id": {"type": "string", "description": "Session; needed by all but list."},
                "data": {"type": "string", "description": "Text for write and submit."},
                "timeout": {"type": "integer", "minimum": 1, "description": "Seconds that wait may take."},
                "offset": {
                    "type": "integer",
                    "description": "First line of log, from 0; negative counts from the end.",
                },
                "limit": {"type": "integer", "minimum": 1, "description": "Number of lines of log."},
            },
            "required": ["action"],
        },
        function=process,
        toolset="terminal",
    ),
)
