"""A local model: a llama.cpp server for a GGUF file, as a child process that ends with the run."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import secrets
import signal
import sys
from collections import deque
from pathlib import Path
from typing import Any

from environments.config import APIServerConfig
from environments.errors import ConfigError, MissingExtra
from environments.inference.gguf import find_model, trained_context

SLOTS = 2
"""Conversations that the server works on at the same time."""

DEFAULT_CONTEXT = 8192
"""Longest context where neither the config nor the model asks for less, tokens."""

_MOST_THREADS = 8
_START_TIMEOUT = 900.0
_PROGRESS_INTERVAL = 10.0
_KEPT_LINES = 40
_SHOWN_LINES = 5
_INHERITED = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG")
_OUT_OF_MEMORY = ("failed to allocate", "unable to allocate", "bad_alloc", "out of memory")

logger = logging.getLogger(__name__)


class LlamaCppServer:
    """One child process. ``served_config`` is set once it is ready."""

    def __init__(self, config: APIServerConfig) -> None:
        self.config = config
        self.served_config = config
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._log_reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the model and wait until the server answers.

        Raises ``MissingExtra`` without xllamacpp, ``ConfigError`` for a file that cannot be served.
        """
        path = find_model(self.config.model_name)
        settings = _settings(self.config, path)
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtra("server_type llamacpp", "llamacpp")
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "environments.inference.llamacpp_child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the run, which then stops the server in order
        )
        assert process.stdin is not None
        assert process.stderr is not None
        self._log_reader = asyncio.create_task(self._keep_last_lines(process.stderr))
        try:
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            address = await self._await_address(process, path)
        except BaseException:  # cancelled, too: no server is left
            await self.close()
            raise
        logger.info("%s is served by llama.cpp, context %d tokens", path.name, settings["context"])
        self.served_config = self.config.model_copy(
            update={
                "base_url": f"{address}/v1",
                "api_key": settings["key"],
                "num_max_requests_at_once": min(self.config.num_max_requests_at_once, SLOTS),
                "num_requests_for_eval": min(self.config.num_requests_for_eval, SLOTS),
                "context_length": settings["context"],
            }
        )

    async def close(self) -> None:
        """Stop the server."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        if self._log_reader is not None:
            self._log_reader.cancel()
            await asyncio.gather(self._log_reader, return_exceptions=True)

    def obituary(self) -> str:
        """How the server died and its last words; empty while it lives."""
        process = self._process
        if process is None or process.returncode is None:
            return ""
        return f"the llama.cpp process {_how_it_ended(process.returncode)}{self._last_words()}"

    async def _await_address(self, process: asyncio.subprocess.Process, path: Path) -> str:
        """The address that the child reports; progress goes to the log meanwhile."""
        assert process.stdout is not None
        report = asyncio.ensure_future(process.stdout.readline())
        try:
            for waited in range(0, int(_START_TIMEOUT), int(_PROGRESS_INTERVAL)):
                if waited:
                    logger.info("loading %s (%d s)", path.name, waited)
                done, _ = await asyncio.wait([report], timeout=_PROGRESS_INTERVAL)
                if done:
                    break
            else:
                raise ConfigError(f"{path.name} was not loaded within {_START_TIMEOUT:.0f} s")
        finally:
            report.cancel()
        line = report.result()
        if not line:
            raise await self._death_at_start(process, path)
        return str(json.loads(line)["address"])

    async def _death_at_start(self, process: asyncio.subprocess.Process, path: Path) -> ConfigError:
        code = await process.wait()
        if self._log_reader is not None:
            await asyncio.wait([self._log_reader], timeout=2.0)
        said = " ".join(self._last_lines).lower()
        if code == -signal.SIGKILL or any(text in said for text in _OUT_OF_MEMORY):
            return ConfigError(
                f"not enough memory to serve {path.name}; a smaller openai.context_length or model may fit"
                f"{self._last_words()}"
            )
        return ConfigError(
            f"llama.cpp cannot serve {path.name}: the process {_how_it_ended(code)}{self._last_words()}"
        )

    def _last_words(self) -> str:
        lines = list(self._last_lines)[-_SHOWN_LINES:]
        return "; it last said: " + " | ".join(lines) if lines else ""

    async def _keep_last_lines(self, stream: asyncio.StreamReader) -> None:
        """Read the server's log, so that it never blocks, and keep its end."""
        rest = b""
        while chunk := await stream.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-4096:]
            self._last_lines.extend(line.decode("utf-8", "replace")[:500] for line in lines if line.strip())


def _settings(config: APIServerConfig, path: Path) -> dict[str, Any]:
    trained = trained_context(path)
    context = config.context_length or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    # Half of the cores: llama.cpp's threads wait for each other at every step, so one that has to share
    # its core with a sandbox slows all of them down (20 times, seen with two threads on two busy cores).
    threads = max(1, min(len(os.sched_getaffinity(0)) // 2, _MOST_THREADS))
    return {
        "model": str(path),
        "slots": SLOTS,
        "context": context,
        "threads": threads,
        "key": secrets.token_urlsafe(24),
    }


def _environment() -> dict[str, str]:
    """What the child needs, and none of the run's secrets."""
    root = str(Path(__file__).resolve().parents[2])
    environ = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH"))))
    return environ


def _how_it_ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
