"""What happens when the server is killed: nothing that was acknowledged is lost or comes twice."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trajectory_api.running import Server, Trainer, call, group

pytestmark = pytest.mark.timeout(300)

GROUPS = 120
KILLS = 5


def post_all(url: str, groups: int) -> None:
    """Send each group until it is confirmed, as a client with keys does."""
    for number in range(groups):
        while True:
            try:
                key = {"Idempotency-Key": f"k{number}"}
                if call(url, "POST", "/scored_data", group(number), key)[0] == 200:
                    break
            except OSError:
                time.sleep(0.02)


def consume(url: str, groups: int, seen: Counter[int], deadline: float) -> None:
    """Fetch with acknowledgements until every group has come."""
    acknowledged = ""
    while sum(seen.values()) < groups:
        assert time.monotonic() < deadline, f"only {len(seen)} of {groups} came"
        try:
            reply = call(url, "GET", f"/batch?consumer=t{acknowledged}")[1]
        except (OSError, ValueError):
            time.sleep(0.02)
            continue
        if not isinstance(reply, dict) or reply.get("batch") is None:
            time.sleep(0.02)
            continue
        if f"&acknowledge={reply['batch_id']}" == acknowledged:
            continue  # the same again: the server died before it had taken the acknowledgement
        acknowledged = f"&acknowledge={reply['batch_id']}"
        seen.update(one["tokens"][0][0] for one in reply["batch"])


def test_each_group_comes_exactly_once_over_kills(tmp_path: Path) -> None:
    server = Server(tmp_path).start()
    try:
        call(server.url, "POST", "/register", Trainer(server.url).registration)
        seen: Counter[int] = Counter()
        threads = [
            threading.Thread(target=post_all, args=(server.url, GROUPS)),
            threading.Thread(target=consume, args=(server.url, GROUPS, seen, time.monotonic() + 300)),
        ]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            time.sleep(0.15)
            server.kill()
            server.start()
        for thread in threads:
            thread.join(300)
        assert seen == Counter(range(GROUPS))
    finally:
        server.stop()


def test_an_old_trainer_gets_each_group_at_most_once_and_the_rest_is_listed(tmp_path: Path) -> None:
    server = Server(tmp_path).start()
    try:
        trainer = Trainer(server.url)
        trainer.register()
        sender = threading.Thread(target=post_all, args=(server.url, GROUPS))
        sender.start()
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                try:
                    if trainer.fetch() is None:
                        time.sleep(0.02)
                except (OSError, ValueError):
                    time.sleep(0.02)

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(KILLS):
            time.sleep(0.15)
            server.kill()
            server.start()
        sender.join(300)
        deadline = time.monotonic() + 120
        while call(server.url, "GET", "/status")[1]["queue_size"] >= 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        stop.set()
        reader.join(120)
        listed = call(server.url, "GET", "/batches")[1]["batches"]
        undelivered = sum(len(b["groups"]) for b in listed if b["state"] == "undelivered")
        came = Counter(trainer.groups)
        assert max(came.values()) == 1
        assert GROUPS - len(came) <= undelivered + call(server.url, "GET", "/status")[1]["queue_size"]
    finally:
        server.stop()


def test_state_survives_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path).start()
    try:
        trainer = Trainer(server.url)
        first = trainer.register()
        trainer.fetch()
        join = {"max_token_length": 9, "desired_name": "e", "weight": 1.0, "group_size": 2}
        call(server.url, "POST", "/register-env", join)
        for number in range(5):
            call(server.url, "POST", "/scored_data", group(number, env_id=0))
        trainer.fetch()
        server.kill()
        server.start()
        assert trainer.register()["uuid"] == first["uuid"]
        assert call(server.url, "GET", "/status")[1] == {"current_step": 1, "queue_size": 3}
        assert call(server.url, "GET", "/status-env", {"env_id": 0})[1]["self_queue_size"] == 3
        assert call(server.url, "POST", "/register-env", join)[1]["env_id"] == 1
        trainer.fetch()
        assert trainer.groups == [0, 1, 2, 3]
    finally:
        server.stop()


def test_memory_does_not_grow_with_the_queue(tmp_path: Path) -> None:
    server = Server(tmp_path).start()
    try:
        trainer = Trainer(server.url, batch_size=64, max_token_len=4096)
        trainer.register()
        row = list(range(50_000, 54_000))
        large = {
            "tokens": [row] * 4,
            "masks": [row] * 4,
            "scores": [0.0, 1.0, 0.0, 1.0],
            "inference_logprobs": [[-0.123456789] * len(row)] * 4,
        }
        for _ in range(10):
            call(server.url, "POST", "/scored_data", large)
        before = server.memory()
        for _ in range(70):
            call(server.url, "POST", "/scored_data", large)
        while trainer.fetch() is not None:
            pass
        assert trainer.steps == 5
        assert server.memory() - before < 30 << 20  # the payloads are 40 MB
    finally:
        server.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=False)


def test_a_full_disk_refuses_groups_and_hands_out_what_is_there(small_disk: Path) -> None:
    server = Server(small_disk / "data").start()
    row = list(range(50_000, 70_000))

    def post(number: int) -> int:
        large = {"tokens": [[number, *row]] * 4, "masks": [[number, *row]] * 4, "scores": [0.0, 1.0] * 2}
        status, _ = call(server.url, "POST", "/scored_data", large, {"Idempotency-Key": f"{number}"})
        return status

    try:
        trainer = Trainer(server.url, batch_size=8, max_token_len=99_999)
        trainer.register()
        trainer.fetch()
        number = 0
        while post(number) == 200:
            number += 1
            assert number < 500
        assert post(number) == 503 and number > 20
        server.kill()
        server.start()
        seen = []
        while (batch := call(server.url, "GET", "/batch")[1]["batch"]) is not None:
            seen += [one["tokens"][0][0] for one in batch]
        assert seen == list(range(number // 2 * 2))
        assert post(number) == 200  # there is room again
    finally:
        server.stop()
