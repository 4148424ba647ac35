"""Background sessions: processes that the model started and comes back to.

They belong to one rollout. Output is kept as text, the newest million characters of it.
"""

from __future__ import annotations

import codecs
import time
from contextlib import suppress
from dataclasses import dataclass, field

from environments.errors import SandboxError
from environments.sandboxes.base import Process
from environments.tools.base import JSON, ToolInputError, ToolState
from environments.tools.text import INCOMPLETE_ESCAPE, strip_escapes

LOG_LIMIT = 1_000_000
"""Characters of output kept per session."""

_SLOT = "processes"
_LONGEST_ESCAPE = 4096


@dataclass(slots=True)
class Session:
    """One background process and what it has printed."""

    id: str
    command: str
    process: Process
    started_at: float = field(default_factory=time.time)
    log: str = ""
    dropped: int = 0
    """Characters that no longer fit the log; they were the oldest."""
    _seen: int = 0
    _pending: str = ""
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return self.process.exit_code is None

    async def refresh(self) -> None:
        """Learn whether it has ended and take over its new output."""
        ended = self.process.exit_code is not None or await self.process.wait(0) is not None
        text = self._pending + self._decoder.decode(await self.process.read(), final=ended)
        self._pending = ""
        cut = INCOMPLETE_ESCAPE.search(text, max(0, len(text) - _LONGEST_ESCAPE))
        if cut is not None and not ended:
            text, self._pending = text[: cut.start()], cut.group()
        self.log += strip_escapes(text)
        excess = len(self.log) - LOG_LIMIT
        if excess > 0:
            self.log = self.log[excess:]
            self.dropped += excess

    def news(self) -> str:
        """Output since the last time this was asked."""
        start = max(0, self._seen - self.dropped)
        self._seen = self.dropped + len(self.log)
        return self.log[start:]

    def status(self) -> JSON:
        """Id, command and state, as tool results show them."""
        result: JSON = {
            "session_id": self.id,
            "command": self.command if len(self.command) <= 200 else self.command[:200] + "...",
            "status": "running" if self.running else "exited",
            "uptime_seconds": round(time.time() - self.started_at, 1),
        }
        if not self.running:
            result["exit_code"] = self.process.exit_code
        return result


def sessions_of(state: ToolState) -> dict[str, Session]:
    """The rollout's sessions by id, oldest first."""
    sessions: dict[str, Session] = state.slots.setdefault(_SLOT, {})
    return sessions


def add_session(state: ToolState, command: str, process: Process) -> Session:
    """Keep a process that was just started."""
    sessions = sessions_of(state)
    session = Session(f"proc_{len(sessions) + 1}", command, process)
    sessions[session.id] = session
    return session


def get_session(state: ToolState, session_id: str) -> Session:
    """One session; an error for the model names those that exist."""
    sessions = sessions_of(state)
    if session_id not in sessions:
        known = ", ".join(sessions) or "none; terminal with background=true starts one"
        raise ToolInputError(f"there is no session {session_id!r}. Sessions: {known}")
    return sessions[session_id]


async def kill_sessions(state: ToolState) -> None:
    """Kill every session that still runs. Where the sandbox is gone, so are its processes."""
    for session in sessions_of(state).values():
        if session.running:
            with suppress(SandboxError):
                await session.process.kill()
