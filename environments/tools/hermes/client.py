"""One process with Hermes Agent in it, started when it is first needed and again after it was lost."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from environments.tools.base import JSON
from environments.tools.guarded import Tail, end_guarded, start_guarded
from environments.tools.hermes.settings import HermesSettings

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer; the worker keeps itself to less."""

_WORKER = str(Path(__file__).with_name("worker.py"))
_SETTLING = 3.0


class WorkerFailure(Exception):
    """The process cannot be used, ended, or answers no sense. The text says what is known."""


class HermesWorker:
    """A process whose Hermes Agent has its home in ``home``. It takes one request at a time."""

    def __init__(self, settings: HermesSettings, home: Path) -> None:
        self.settings, self.home = settings, home
        self.version = ""
        """Of Hermes Agent, once the process has started."""
        self.starts = 0
        """How often a process was started."""
        self._process: asyncio.subprocess.Process | None = None
        self._tail = Tail()
        self._listener: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()

    async def ask(self, request: JSON, timeout: float) -> JSON:
        """The answer to a request. Raises ``WorkerFailure``; ``TimeoutError`` after ``timeout`` seconds.

        Whatever goes wrong ends the process: the next request gets a new one.
        """
        async with self._busy:
            try:
                process = await self._started()
                try:
                    async with asyncio.timeout(timeout):
                        return await self._exchange(process, request)
                except TimeoutError:
                    raise TimeoutError(f"Hermes Agent did not answer within {timeout:g} seconds") from None
            except BaseException:  # cancelled, too: its answer would be taken for the next one's
                await asyncio.shield(self._end(at_once=True))
                raise

    async def close(self) -> None:
        """End the process and all that it started. Idempotent."""
        async with self._busy:
            await self._end(at_once=False)

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end(at_once=True)
        self.starts += 1
        self._tail = Tail()
        process = self._process = await start_guarded(
            [self.settings.python, "-I", _WORKER],
            env=self._variables(),
            cwd=str(self.home),
            limit=ANSWER_LIMIT,
        )
        self._listener = asyncio.create_task(self._tail.listen(process))
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                first = await self._answer(process)
        except TimeoutError:
            raise WorkerFailure(
                self._explain(f"was not ready within {self.settings.start_timeout:g} seconds")
            ) from None
        if "ready" not in first:
            raise WorkerFailure(f"cannot be imported there ({first.get('failed', first)})")
        self.version = str(first["ready"])
        return process

    def _variables(self) -> dict[str, str]:
        """Of the process: those of its virtual environment, its home, and what the user lists."""
        directory = str(Path(self.settings.python).parent)
        variables = {
            "PATH": f"{directory}:{os.environ.get('PATH', os.defpath)}",
            "VIRTUAL_ENV": str(Path(directory).parent),
            "HERMES_HOME": self.settings.home or str(self.home / ".hermes"),
            "HERMES_DISABLE_LAZY_INSTALLS": "1",  # a rollout must not change the environment that others use
        }
        if self.settings.home is None:
            variables["HOME"] = str(self.home)
        return {**variables, **self.settings.variables}

    async def _exchange(self, process: asyncio.subprocess.Process, request: JSON) -> JSON:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass  # why it is gone shows where it is read from
        return await self._answer(process)

    async def _answer(self, process: asyncio.subprocess.Process) -> JSON:
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
            answer = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            raise WorkerFailure(self._explain("gave an answer that is none")) from None
        if answer is None:
            await self._settle(process)
            raise WorkerFailure(self._explain("ended before it answered"))
        if not isinstance(answer, dict):
            raise WorkerFailure(self._explain("gave an answer that is none"))
        return answer

    async def _settle(self, process: asyncio.subprocess.Process) -> None:
        """It closes its output as it ends: wait until all is known of that."""
        try:
            async with asyncio.timeout(_SETTLING):
                await process.wait()
                if self._listener is not None:
                    await asyncio.shield(self._listener)
        except TimeoutError:
            return

    def _explain(self, what: str) -> str:
        parts = []
        if self._process is not None and self._process.returncode is not None:
            parts.append(f"exit code {self._process.returncode}")
        if said := self._tail.quote():
            parts.append(f"on standard error: {self._without_values(said)}")
        return what + (f" ({'; '.join(parts)})" if parts else "")

    def _without_values(self, text: str) -> str:
        """Without what the variables hold that the user gave it: they are keys, mostly."""
        for value in self.settings.variables.values():
            if len(value) >= 4:
                text = text.replace(value, "***")
        return text

    async def _end(self, *, at_once: bool) -> None:
        process, self._process = self._process, None
        listener, self._listener = self._listener, None
        if process is not None:
            await end_guarded(process, at_once=at_once)
        if listener is not None:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
