"""The trajectory API beside the original's ``run-api``: throughput, CPU, memory, latency.

    python perf/trajectory_api.py --atropos PYTHON

``PYTHON`` is that of an environment with ``atroposlib``; without it only ours is measured. A group is
8 sequences of 4,096 tokens with masks and log-probabilities (about 1.5 MB of JSON).
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROWS, LENGTH, BATCH_GROUPS = 8, 4096, 8
REGISTRATION = {
    "wandb_group": "g",
    "wandb_project": "p",
    "batch_size": ROWS * BATCH_GROUPS,
    "max_token_len": LENGTH,
    "checkpoint_dir": "",
    "save_checkpoint_interval": 0,
    "starting_step": 0,
    "num_steps": 10**6,
}


def group() -> bytes:
    """One group as an environment sends it."""
    numbers = random.Random(0)
    tokens = [[numbers.randrange(150_000) for _ in range(LENGTH)] for _ in range(ROWS)]
    logprobs = [[round(-numbers.expovariate(2), 6) for _ in range(LENGTH)] for _ in range(ROWS)]
    value = {"tokens": tokens, "masks": tokens, "scores": [0.0, 1.0] * (ROWS // 2)}
    return json.dumps({**value, "inference_logprobs": logprobs}).encode()


class Server:
    """A server process and one kept-alive connection to it."""

    def __init__(self, command: list[str], directory: Path) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        filled = [part.format(port=self.port, directory=directory) for part in command]
        self.process = subprocess.Popen(filled, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connection = self.connect()
                self.call("GET", "/")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        sent = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        self.connection.request(method, path, body, sent)
        reply = self.connection.getresponse()
        data = reply.read()
        assert reply.status == 200, (reply.status, data[:200])
        return gzip.decompress(data) if reply.headers.get("Content-Encoding") == "gzip" else data

    def cpu(self) -> float:
        """CPU seconds of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident MB of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def running(command: list[str]) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory:
        server = Server(command, Path(directory))
        try:
            server.call("POST", "/register", json.dumps(REGISTRATION).encode())
            server.call("GET", "/batch")
            yield server
        finally:
            server.process.terminate()
            server.process.wait()


def measure(command: list[str], queued: int) -> dict[str, float]:
    """All figures of one server."""
    plain = group()
    packed = gzip.compress(plain, 6)
    result: dict[str, float] = {}
    with running(command) as server:
        result |= posting(server, "POST", 40, lambda: server.call("POST", "/scored_data", plain))
        result |= posting(
            server,
            "POST gzip",
            40,
            lambda: server.call("POST", "/scored_data", packed, Content_Encoding="gzip"),
        )
        result |= fetching(server, "batch (client takes gzip)", "gzip, deflate")
        result |= fetching(server, "batch (identity only)", "identity")
        drain(server)
        for _ in range(queued):
            server.call("POST", "/scored_data", packed, Content_Encoding="gzip")
        result[f"RSS at {queued} groups, MB"] = server.memory()
        result |= latency(server)
    return result


def posting(server: Server, name: str, count: int, post: Any) -> dict[str, float]:
    began, cpu = time.monotonic(), server.cpu()
    for _ in range(count):
        post()
    seconds = time.monotonic() - began
    return {
        f"{name}, groups/s": count / seconds,
        f"{name}, server CPU ms/group": 1000 * (server.cpu() - cpu) / count,
    }


def fetching(server: Server, name: str, accept: str) -> dict[str, float]:
    began, cpu, groups = time.monotonic(), server.cpu(), 0
    for _ in range(4):
        batch = json.loads(server.call("GET", "/batch", Accept_Encoding=accept))["batch"]
        groups += len(batch or [])
    seconds = time.monotonic() - began
    return {
        f"{name}, groups/s": groups / seconds,
        f"{name}, server CPU ms/group": 1000 * (server.cpu() - cpu) / max(1, groups),
    }


def drain(server: Server) -> None:
    while json.loads(server.call("GET", "/batch"))["batch"] is not None:
        pass


def latency(server: Server) -> dict[str, float]:
    """How long ``/status`` takes while batches are served."""
    took: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        connection = server.connect()
        while not stop.is_set():
            began = time.monotonic()
            connection.request("GET", "/status")
            connection.getresponse().read()
            took.append(1000 * (time.monotonic() - began))
            time.sleep(0.005)

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(6):
        server.call("GET", "/batch", Accept_Encoding="gzip, deflate")
    stop.set()
    thread.join()
    return {
        "/status while serving, median ms": statistics.median(took),
        "/status while serving, max ms": max(took),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--atropos", metavar="PYTHON", help="Python of an environment with atroposlib")
    options.add_argument("--queued", type=int, default=500, help="groups queued for the memory figure")
    arguments = options.parse_args()
    os.chdir(Path(__file__).parents[1])
    ours = [sys.executable, "-m", "environments.trajectory_api.main", "--port", "{port}"]
    columns = {"ours": measure([*ours, "--data", "{directory}"], arguments.queued)}
    if arguments.atropos:
        theirs = [arguments.atropos, "-m", "uvicorn", "atroposlib.api:app", "--host", "127.0.0.1"]
        columns["original"] = measure([*theirs, "--port", "{port}"], arguments.queued)
    print(f"{'':45}" + "".join(f"{name:>12}" for name in columns) + "       ratio")
    for name, value in columns["ours"].items():
        other = columns.get("original", {}).get(name)
        better = "" if other is None else f"{value / other if name.endswith('/s') else other / value:11.1f}x"
        values = "".join(f"{column[name]:12.1f}" for column in columns.values())
        print(f"{name:45}{values}{better}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
