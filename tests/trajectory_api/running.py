"""A real server process on loopback, a plain client, and a trainer like the example of the original."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REGISTRATION: dict[str, Any] = {
    "wandb_group": "group",
    "wandb_project": "project",
    "batch_size": 4,
    "max_token_len": 128,
    "checkpoint_dir": "checkpoints",
    "save_checkpoint_interval": 0,
    "starting_step": 0,
    "num_steps": 1000,
}


def free_port() -> int:
    """A port that no one listens on, below those that the system gives to outgoing connections: a server
    that is killed and started again must find it free.
    """
    choice = random.SystemRandom()  # the common generator is seeded alike in parallel runs
    while True:
        port = choice.randrange(12_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class Server:
    """``run-api`` as its own process. ``kill`` is SIGKILL; ``start`` goes on with the same data."""

    def __init__(self, data: Path, *options: str, port: int | None = None) -> None:
        self.data, self.options, self.port = data, options, port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        command = [sys.executable, "-m", "environments.trajectory_api.main", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--data", str(self.data), "--log-level", "warning", *self.options],
            cwd=Path(__file__).parents[2],
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if call(self.url, "GET", "/healthz")[0] == 200:
                    return self
            assert self.process.poll() is None, "the server did not start"
            time.sleep(0.05)
        raise AssertionError("the server did not answer")

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(120)

    def memory(self) -> int:
        """Resident bytes of the process."""
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def peak_memory(self) -> int:
        """Most resident bytes that the process has had."""
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) << 10


@contextlib.contextmanager
def server(data: Path, *options: str) -> Iterator[Server]:
    running = Server(data, *options).start()
    try:
        yield running
    finally:
        running.stop()


def call(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and decoded body of one request; ``body`` may be bytes or anything that JSON carries."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url + path,
        data=data,
        method=method,
        headers={"Content-Type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, _decoded(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, _decoded(error.read())
    except http.client.HTTPException as error:
        raise ConnectionError(f"the reply was cut off: {error}") from error


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()


def group(number: int = 0, rows: int = 2, **fields: Any) -> dict[str, Any]:
    """A group of ``rows`` sequences that carries its number in every token row."""
    tokens = [[number, row, 7] for row in range(rows)]
    return {
        "tokens": tokens,
        "masks": [[-100, *row[1:]] for row in tokens],
        "scores": [float(row) for row in range(rows)],
        "inference_logprobs": [[1.0, -0.5, -0.25] for _ in range(rows)],
        **fields,
    }


class Trainer:
    """Reads batches as the original's example trainer does: every field that it indexes, until null."""

    def __init__(self, url: str, **registration: Any) -> None:
        self.url = url
        self.registration = {**REGISTRATION, **registration}
        self.groups: list[int] = []
        self.steps = 0

    def register(self) -> dict[str, Any]:
        status, reply = call(self.url, "POST", "/register", self.registration)
        assert status == 200, reply
        assert isinstance(reply["uuid"], int)
        return dict(reply)

    def fetch(self) -> list[dict[str, Any]] | None:
        status, reply = call(self.url, "GET", "/batch")
        assert status == 200, reply
        assert reply.get("status") != "error", reply
        if reply["batch"] is None:
            return None
        for one in reply["batch"]:
            self._read(one)
        self.steps += 1
        return list(reply["batch"])

    def _read(self, one: dict[str, Any]) -> None:
        for override in one["overrides"] or []:
            override.get("set_advantage_to_zero", False)
        for row, tokens in enumerate(one["tokens"]):
            assert len(one["masks"][row]) == len(tokens)
            assert row < len(one["scores"])
            assert len(one["inference_logprobs"][row]) == len(tokens)
        assert "generation_params" in one and "group_overrides" in one
        self.groups.append(one["tokens"][0][0])

    def run(self, steps: int, *, patience: float = 200.0, pause: float = 0.1) -> None:
        """Fetch batches until there are ``steps``, over restarts of the server."""
        deadline = time.monotonic() + patience
        while self.steps < steps:
            assert time.monotonic() < deadline, f"only {self.steps} of {steps} batches came"
            try:
                if self.fetch() is None:
                    time.sleep(pause)
            except OSError:
                time.sleep(pause)
