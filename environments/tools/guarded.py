"""Programs of others that run beside the framework and end with it, whatever happens to either.

Each runs under ``guardian.py``, so that nothing of it outlives us, and without our environment, in which
there may be keys.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TMPDIR")
"""Variables of ours that every program gets."""

_TAIL = 2_000
_CLOSING = 10.0


class Tail:
    """The end of what a program says on standard error; errors quote it."""

    def __init__(self) -> None:
        self._said = b""

    async def listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep up with the program until it closes its standard error."""
        assert process.stderr is not None
        while data := await process.stderr.read(65536):
            self._said = (self._said + data)[-_TAIL:]

    def quote(self) -> str:
        """Its last lines in one, empty where it said nothing."""
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return " | ".join(lines[-4:])[-500:]


async def start_guarded(
    command: Sequence[str], *, env: Mapping[str, str], cwd: str | None, limit: int
) -> asyncio.subprocess.Process:
    """Start a program with pipes for its standard streams; ``limit`` is the longest line to be read.

    ``env`` comes to the few inherited variables. What is wrong with ``command`` shows in the process: exit
    code 127 and a line on standard error.
    """
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    guardian = str(Path(__file__).with_name("guardian.py"))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", guardian, *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**environment, **env},
        cwd=cwd,
        start_new_session=True,
        limit=limit,
    )  # fmt: skip


async def end_guarded(process: asyncio.subprocess.Process, *, at_once: bool = False) -> None:
    """Close its input, on which it ends or its guardian ends it. ``at_once`` leaves it no time for that."""
    assert process.stdin is not None
    process.stdin.close()
    if at_once:
        with suppress(ProcessLookupError):
            process.terminate()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _CLOSING)
        return
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
