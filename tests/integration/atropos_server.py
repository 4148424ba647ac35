"""The original ``run-api`` as a process, for tests that compare and for those that use it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.trajectory_api.running import call, free_port

PYTHON = os.environ.get("HERMES_TEST_ATROPOS_PYTHON", "")
WHY_NOT = "HERMES_TEST_ATROPOS_PYTHON names no Python with atroposlib 0.4.0"


@contextmanager
def started(command: list[str], cwd: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed at the end; what it prints goes to ``log``."""
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=cwd, stdout=output, stderr=subprocess.STDOUT, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextmanager
def their_api(directory: Path) -> Iterator[str]:
    """Their ``run-api`` on loopback; its URL."""
    port = free_port()
    command = [PYTHON, "-m", "uvicorn", "atroposlib.api:app", "--host", "127.0.0.1", "--port", str(port)]
    with started(command, directory, directory / "api.log"):
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                assert call(url, "GET", "/")[0] == 200
                break
            except OSError:
                assert time.monotonic() < deadline, (directory / "api.log").read_text()
                time.sleep(0.2)
        yield url
