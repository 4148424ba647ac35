"""A long training through everything that goes wrong: servers killed, environments killed, a trainer that
stops reading, a network that is cut. Each group arrives exactly once, and memory stays flat.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.trajectory_api.running import Server, Trainer, call, free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

GROUPS = 500
BATCH = 4
STEPS = GROUPS * 2 // BATCH
ROOT = Path(__file__).parents[2]

SCRIPT = """
import asyncio, resource, sys
from pathlib import Path
from typing import Any
from tests.workflows.training import TokenEnv, make, serve

class Long(TokenEnv):
    pause = 0.05

    async def collect_trajectory(self, item: Any) -> Any:
        row, backlog = await super().collect_trajectory(item)
        number = item["number"]
        tokens = [number] * 2000
        return {
            **row,
            "tokens": tokens,
            "masks": [-100, *tokens[1:]],
            "inference_logprobs": [1.0, *[-0.5] * 1999],
        }, backlog

options = {"total_steps": int(sys.argv[3]), "max_batches_offpolicy": 8}
environment = make(Path(sys.argv[1]), sys.argv[2], Long, **options)
report = serve(environment, timeout=500)
print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
sys.exit(report.exit_code)
"""


def environment(directory: Path, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(directory), url, str(STEPS)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


class Reader(threading.Thread):
    """A trainer that acknowledges, until it has the groups it wants; ``pause`` makes it stop reading."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.seen, self.pause = url, Counter[int](), threading.Event()
        self.stop = threading.Event()

    def run(self) -> None:
        acknowledged = ""
        while not self.stop.is_set() and sum(self.seen.values()) < GROUPS:
            if self.pause.is_set():
                time.sleep(0.1)
                continue
            try:
                reply = call(self.url, "GET", f"/batch?consumer=t{acknowledged}")[1]
            except (OSError, ValueError):
                time.sleep(0.05)
                continue
            if not isinstance(reply, dict) or not reply.get("batch"):
                time.sleep(0.05)
            elif f"&acknowledge={reply['batch_id']}" != acknowledged:
                acknowledged = f"&acknowledge={reply['batch_id']}"
                for one in reply["batch"]:
                    assert one["tokens"] == [[one["tokens"][0][0]] * 2000] * 2
                    self.seen[one["tokens"][0][0]] += 1


def wait_for(reader: Reader, groups: int) -> None:
    deadline = time.monotonic() + 400
    while sum(reader.seen.values()) < groups:
        assert time.monotonic() < deadline, f"{sum(reader.seen.values())} of {groups} groups came"
        assert reader.is_alive()
        time.sleep(0.1)


def started(directory: Path) -> tuple[Server, Reader]:
    api = Server(directory / "api").start()
    registration = Trainer(api.url, num_steps=STEPS, max_token_len=4096).registration
    assert call(api.url, "POST", "/register", registration)[0] == 200
    return api, Reader(api.url)


def test_five_hundred_groups_over_ten_kills_of_the_server(tmp_path: Path) -> None:
    api, reader = started(tmp_path)
    reader.start()
    start = api.memory() >> 20
    process = environment(tmp_path, api.url)
    memory, peaks = [], []
    try:
        for number in range(10):
            wait_for(reader, (number + 1) * GROUPS // 12)
            memory.append(api.memory() >> 20)
            peaks.append(api.peak_memory() >> 20)
            api.kill()
            time.sleep(random.uniform(0, 1))
            api.start()
        wait_for(reader, GROUPS)
        output, _ = process.communicate(timeout=120)
        memory.append(api.memory() >> 20)
        peaks.append(api.peak_memory() >> 20)
        assert process.returncode == 0
        assert reader.seen == Counter(range(GROUPS))
        peak = int(output.rpartition("PEAK ")[2]) >> 10
        print(
            f"\n{GROUPS} groups over 10 kills, memory of the server (RSS): {start} MB at the start, "
            f"{max(peaks)} MB at most, {memory[-1]} MB at the end; before each kill {memory[:-1]} MB; "
            f"environment at most {peak} MB"
        )
        assert max(memory) < 2 * min(memory)
    finally:
        reader.stop.set()
        process.kill()
        process.wait()
        api.stop()


def test_an_environment_killed_again_and_again(tmp_path: Path) -> None:
    api, reader = started(tmp_path)
    reader.start()
    try:
        for number in range(5):
            process = environment(tmp_path, api.url)
            wait_for(reader, (number + 1) * GROUPS // 7)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        process = environment(tmp_path, api.url)
        wait_for(reader, GROUPS)
        assert process.wait(120) == 0
        assert reader.seen == Counter(range(GROUPS))
    finally:
        reader.stop.set()
        process.kill()
        process.wait()
        api.stop()


def test_a_trainer_that_stops_reading_for_a_minute(tmp_path: Path) -> None:
    api, reader = started(tmp_path)
    reader.start()
    process = environment(tmp_path, api.url)
    try:
        wait_for(reader, GROUPS // 3)
        before = api.memory() >> 20
        reader.pause.set()
        time.sleep(3)
        waiting = []
        for _ in range(19):
            time.sleep(3)
            status = call(api.url, "GET", "/status-env?env_id=0")[1]
            waiting.append(status["queued_sequences"] + status["outstanding_sequences"])
        during = api.memory() >> 20
        spooled = len(list(tmp_path.glob("groups.run/spool-1/*.json")))
        reader.pause.clear()
        wait_for(reader, GROUPS)
        assert process.wait(120) == 0
        assert reader.seen == Counter(range(GROUPS))
        print(f"\nserver memory {before} MB, after a minute {during} MB; {max(waiting)} sequences waited")
        assert max(waiting) <= 8 * BATCH + 2 and spooled == 0  # the bound: max_batches_offpolicy
        assert during < before + 20
    finally:
        reader.stop.set()
        process.kill()
        process.wait()
        api.stop()


class CutLine:
    """A TCP relay to the server. It cuts every connection at random: in a request, or in a reply."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.target, self.random = free_port(), port, random.Random(seed)
        self.cuts: Counter[str] = Counter()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.target)) as there,
        ):
            ends = (client, there)
            in_reply = self.random.random() < 0.5
            most = self.random.randrange(3000 if in_reply else 400_000)
            back = threading.Thread(
                target=self._pass, args=("reply", ends[::-1], most if in_reply else None), daemon=True
            )
            back.start()
            self._pass("request", ends, None if in_reply else most)
            back.join()

    def _pass(self, name: str, ends: tuple[socket.socket, socket.socket], left: int | None) -> None:
        """Pass on from the first to the second, so many bytes; then nothing passes any more."""
        source, target = ends
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data if left is None else data[:left])
                if left is not None and (left := left - len(data)) <= 0:
                    self.cuts[name] += 1
                    break
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_a_network_that_is_cut_again_and_again(tmp_path: Path) -> None:
    api, reader = started(tmp_path)
    reader.start()
    line = CutLine(api.port, seed=7)
    process = environment(tmp_path, f"http://127.0.0.1:{line.port}")
    try:
        wait_for(reader, GROUPS)
        assert process.wait(120) == 0
        duplicates = _metric(api, "groups_duplicate_total")
        print(f"\ncuts: {dict(line.cuts)}; {duplicates} groups came again and were known by their key")
        assert min(line.cuts["request"], line.cuts["reply"]) > 10 and reader.seen == Counter(range(GROUPS))
    finally:
        reader.stop.set()
        process.kill()
        process.wait()
        line.close()
        api.stop()


def _metric(api: Server, name: str) -> int:
    text = call(api.url, "GET", "/metrics")[1]
    values = (
        line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"trajectory_api_{name}{{")
    )
    return int(next(values, "0"))
