"""The server as a process: the replies of the original for good input, and what is better than there."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trajectory_api.running import REGISTRATION, Server, Trainer, call, group, server

JOIN = {"max_token_length": 128, "desired_name": "env", "weight": 1.0, "group_size": 2}
numbers = itertools.count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("api"), "--max-body-mb", "4", "--max-queue", "6") as one:
        yield one


@pytest.fixture
def url(running: Server) -> str:
    """A job of its own for each test."""
    return f"{running.url}/ns/test{next(numbers)}"


def started(url: str, **registration: Any) -> Trainer:
    trainer = Trainer(url, **registration)
    trainer.register()
    assert trainer.fetch() is None
    return trainer


def test_before_anybody_has_registered(running: Server, url: str) -> None:
    assert call(running.url, "GET", "/") == (200, {"message": "AtroposLib API"})
    assert call(url, "GET", "/wandb_info") == (200, {"group": None, "project": None})
    assert call(url, "GET", "/info") == (200, {"batch_size": -1, "max_token_len": -1})
    assert call(url, "GET", "/status") == (200, {"current_step": 0, "queue_size": 0})
    assert call(url, "GET", "/batch")[1] == {
        "status": "error",
        "message": "Trainer not registered. Call /register first.",
        "batch": [],
    }
    assert call(url, "POST", "/register-env", JOIN)[1] == {"status": "wait for trainer to start"}
    assert call(url, "GET", "/latest_example")[1]["tokens"] == []
    assert call(url, "POST", "/scored_data", group())[0] == 409
    assert call(url, "GET", "/status-env", {"env_id": 0})[0] == 404


def test_a_training_from_beginning_to_end(url: str) -> None:
    trainer = Trainer(url, starting_step=5)
    first = trainer.register()
    assert first["uuid"].bit_length() > 64
    assert call(url, "POST", "/register-env", JOIN)[1] == {"status": "wait for trainer to start"}
    assert call(url, "GET", "/batch") == (200, {"batch": None})
    status, joined = call(url, "POST", "/register-env", JOIN)
    expected = {
        "status": "success",
        "env_id": 0,
        "wandb_name": "env_0",
        "checkpoint_dir": "checkpoints",
        "starting_step": 5,
        "checkpoint_interval": 0,
        "num_steps": 1000,
    }
    assert status == 200 and expected.items() <= joined.items()
    assert call(url, "GET", "/wandb_info")[1] == {"group": "group", "project": "project"}
    assert call(url, "GET", "/info")[1] == {"batch_size": 4, "max_token_len": 128}
    for number in range(3):
        assert call(url, "POST", "/scored_data", group(number, env_id=0)) == (200, {"status": "received"})
    assert call(url, "GET", "/status")[1] == {"current_step": 5, "queue_size": 3}
    assert call(url, "GET", "/latest_example")[1]["tokens"] == group(2)["tokens"]
    assert trainer.fetch() is not None and trainer.groups == [0, 1]
    assert trainer.fetch() is None
    assert call(url, "GET", "/status")[1] == {"current_step": 6, "queue_size": 1}
    assert call(url, "POST", "/disconnect-env", {"env_id": 0})[1] == {"status": "success"}
    assert call(url, "POST", "/disconnect-env", {"env_id": 9})[1]["status"] == "failure"
    assert call(url, "GET", "/reset_data") == (200, "Reset successful")
    assert call(url, "GET", "/batch")[1]["status"] == "error"


def test_lists_and_gzip(url: str) -> None:
    trainer = started(url)
    body = gzip.compress(json.dumps([group(1), group(2)]).encode())
    reply = call(url, "POST", "/scored_data_list", body, {"Content-Encoding": "gzip"})
    assert reply == (200, {"status": "received", "groups_processed": 2})
    assert call(url, "POST", "/scored_data_list", [group(3), {**group(4), "env_id": 3}])[0] == 404
    assert trainer.fetch() is not None and trainer.fetch() is None
    assert trainer.groups == [1, 2]


def test_what_was_sent_is_what_arrives(url: str) -> None:
    trainer = started(url)
    sent = group(
        7,
        rows=4,
        messages=[[{"role": "user", "content": "ä\u2028😀"}]] * 4,
        advantages=[[0.1], [0.2], [0.3], [0.4]],
        overrides=[{"set_advantage_to_zero": True}, {}, {}, {"temperature": 0.7}],
        group_overrides={"temperature": 1.0},
        generation_params={"temperature": 0.9},
        images=[None] * 4,
        inference_logprobs=[[1.0, -1e-17, -1.2345678901234567]] * 4,
    )
    assert call(url, "POST", "/scored_data", sent)[0] == 200
    batch = trainer.fetch()
    assert batch is not None
    for name, value in sent.items():
        assert batch[0][name] == value
    assert batch[0]["env_id"] is None and batch[0]["distill_logprobs"] is None


def test_batches_come_first_in_first_out_and_steps_are_those_handed_out(url: str) -> None:
    trainer = started(url)
    for number in range(6):
        call(url, "POST", "/scored_data", group(number))
    for step in range(3):
        assert call(url, "GET", "/status")[1] == {"current_step": step, "queue_size": 6 - 2 * step}
        trainer.fetch()
    assert trainer.groups == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/register", {**REGISTRATION, "batch_size": 0}, 422, "batch_size"),
        ("/register", {**REGISTRATION, "num_steps": "x"}, 422, "num_steps"),
        ("/register-env", {**JOIN, "group_size": 5}, 422, "group_size"),
        ("/register-env", {**JOIN, "min_batch_allocation": 1.5}, 422, "min_batch_allocation"),
        ("/scored_data", {**group(), "masks": [[1]]}, 422, "masks"),
        ("/scored_data", {**group(), "env_id": 99}, 404, "env_id"),
        ("/scored_data", {**group(), "env_id": -3}, 404, "env_id"),
        ("/scored_data", group(rows=5), 422, "tokens"),
        ("/scored_data", b'{"tokens":[[1]],"masks":[[1]],"scores":[NaN]}', 422, "scores"),
        ("/scored_data", b"[" * 200_000, 422, "body"),
        ("/scored_data", b"x" * (5 << 20), 413, "body"),
        ("/batch/acknowledge", {"batch_id": 4}, 404, "batch_id"),
    ],
)
def test_bad_input_is_refused_with_its_field(url: str, path: str, body: Any, status: int, field: str) -> None:
    started(url)
    got, reply = call(url, "POST", path, body)
    assert got == status
    location = reply["detail"][0]["loc"]
    assert location[0] == "body" and field in location


def test_bombs_cost_no_memory(running: Server, url: str) -> None:
    started(url)
    bomb = gzip.compress(b" " * (300 << 20), 1)
    before = running.memory()
    for _ in range(3):
        assert call(url, "POST", "/scored_data", bomb, {"Content-Encoding": "gzip"})[0] == 413
    assert running.memory() - before < 60 << 20


def test_the_same_key_is_taken_once(url: str) -> None:
    trainer = started(url)
    for _ in range(3):
        assert call(url, "POST", "/scored_data", group(1), {"Idempotency-Key": "one"})[0] == 200
    assert call(url, "POST", "/scored_data", group(1, idempotency_key="one"))[1]["duplicate"] is True
    call(url, "POST", "/scored_data", group(2, idempotency_key="two"))
    assert trainer.fetch() is not None and trainer.fetch() is None
    assert trainer.groups == [1, 2]


def test_a_list_is_taken_once_by_its_key(url: str) -> None:
    trainer = started(url)
    for new in (2, 0):
        reply = call(url, "POST", "/scored_data_list", [group(1), group(2)], {"Idempotency-Key": "both"})[1]
        assert reply["groups_processed"] == 2 and reply.get("duplicates", 0) == 2 - new
    assert trainer.fetch() is not None and trainer.fetch() is None
    assert trainer.groups == [1, 2]


def test_a_list_with_one_bad_group_is_not_taken(url: str) -> None:
    started(url)
    for bad in (group(2, env_id=7), group(2, rows=5)):
        status, reply = call(url, "POST", "/scored_data_list", [group(1), bad])
        assert status in (404, 422) and reply["detail"][0]["loc"][:2] == ["body", 1]
    assert call(url, "GET", "/status")[1]["queue_size"] == 0


def test_sizes_beyond_all_measure(url: str) -> None:
    started(url, batch_size=9 * 10**18)
    joined = call(url, "POST", "/register-env", {**JOIN, "group_size": 8 * 10**18})
    assert joined[0] == 200 and "cannot make a batch of exactly" in joined[1]["warning"]


def test_registering_again(url: str) -> None:
    trainer = started(url)
    first = trainer.register()
    call(url, "POST", "/scored_data", group(1))
    again = trainer.register()
    assert again["resumed"] and again["uuid"] == first["uuid"]
    assert call(url, "GET", "/status")[1]["queue_size"] == 1
    other = Trainer(url, batch_size=8).register()
    assert not other["resumed"] and other["uuid"] != first["uuid"]
    assert call(url, "GET", "/status")[1]["queue_size"] == 0


def test_a_finished_training_is_not_gone_on_with(url: str) -> None:
    trainer = started(url, num_steps=1, batch_size=2)
    call(url, "POST", "/scored_data", group(1))
    assert trainer.fetch() is not None
    assert not trainer.register()["resumed"]


def test_a_consumer_keeps_its_batch_until_it_acknowledges(url: str) -> None:
    started(url, batch_size=2)
    for number in range(3):
        call(url, "POST", "/scored_data", group(number))
    first = call(url, "GET", "/batch?consumer=a")[1]
    assert call(url, "GET", "/batch?consumer=a")[1] == first
    other = call(url, "GET", "/batch?consumer=b")[1]
    assert other["batch_id"] != first["batch_id"]
    second = call(url, "GET", f"/batch?consumer=a&acknowledge={first['batch_id']}")[1]
    assert second["batch"][0]["tokens"] == group(2)["tokens"]
    for _ in range(2):
        assert call(url, "POST", "/batch/acknowledge", {"batch_id": second["batch_id"]})[0] == 200
    assert [batch["consumer"] for batch in call(url, "GET", "/batches")[1]["batches"]] == ["b"]
    assert call(url, "POST", "/batches/requeue", {"batch_id": other["batch_id"]})[0] == 200
    assert call(url, "GET", "/batch?consumer=c")[1]["batch"] == other["batch"]


def test_a_trainer_that_crashed_in_its_last_step_goes_on(url: str) -> None:
    trainer = started(url, num_steps=1, batch_size=2)
    call(url, "POST", "/scored_data", group(1))
    last = call(url, "GET", "/batch?consumer=a")[1]
    assert trainer.register()["resumed"]
    assert call(url, "GET", "/batch?consumer=a")[1] == last
    assert call(url, "POST", "/batch/acknowledge", {"batch_id": last["batch_id"]})[0] == 200
    assert not trainer.register()["resumed"]


def test_groups_beyond_the_staleness_are_dropped_and_counted(running: Server, url: str) -> None:
    started(url, batch_size=2, max_staleness=1)
    for number, version in enumerate([3, 5, 4]):
        call(url, "POST", "/scored_data", group(number, policy_version=version))
    batch = call(url, "GET", "/batch?policy_version=5")[1]["batch"]
    assert batch[0]["tokens"][0][0] == 1 and batch[0]["policy_version"] == 5
    assert call(url, "GET", "/status")[1]["queue_size"] == 1
    assert call(url, "GET", "/batch?policy_version=6")[1] == {"batch": None}
    namespace = url.rpartition("/")[2]
    line = f'trajectory_api_groups_stale_total{{namespace="{namespace}"}} 2'
    assert line in call(running.url, "GET", "/metrics")[1]


def test_namespaces_have_nothing_in_common(running: Server, url: str) -> None:
    first, second = f"{url}a", f"{url}b"
    trainers = [started(first, batch_size=2), started(second, batch_size=4, starting_step=7)]
    for number in range(2):
        call(first, "POST", "/scored_data", group(number, idempotency_key=f"{number}"))
        call(second, "POST", "/scored_data", group(10 + number, idempotency_key=f"{number}"))
    assert call(second, "GET", "/status")[1] == {"current_step": 7, "queue_size": 2}
    assert trainers[0].fetch() and trainers[0].groups == [0]
    assert call(first, "GET", "/reset_data")[0] == 200
    assert trainers[1].fetch() and trainers[1].groups == [10, 11]
    assert call(running.url, "GET", "/status")[1] == {"current_step": 0, "queue_size": 0}
    assert call(f"{running.url}/ns/{'x' * 70}", "POST", "/register", REGISTRATION)[0] == 422


def two_with_a_minimum(url: str) -> None:
    """Two environments that each want half of a batch, and groups of the first alone."""
    started(url)
    for _ in range(2):
        join = {**JOIN, "min_batch_allocation": 0.5}
        assert call(url, "POST", "/register-env", join)[1]["status"] == "success"
    for number in range(3):
        call(url, "POST", "/scored_data", group(number, env_id=0))


def test_an_environment_that_is_there_is_waited_for(url: str) -> None:
    two_with_a_minimum(url)
    assert call(url, "GET", "/batch")[1] == {"batch": None}


def test_an_environment_that_is_gone_stops_blocking(tmp_path: Path) -> None:
    with server(tmp_path, "--lease", "1") as running:
        two_with_a_minimum(running.url)
        deadline = time.monotonic() + 60
        while (batch := call(running.url, "GET", "/batch")[1]["batch"]) is None:
            call(running.url, "GET", "/status-env", {"env_id": 0})
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert len(batch) == 2


def test_reading_along_changes_nothing(url: str) -> None:
    trainer = started(url)
    for number in range(5):
        call(url, "POST", "/scored_data", group(number))
    for query in ("limit=0", "after=x", f"after={2**63}"):
        assert call(url, "GET", f"/groups?{query}")[0] == 422
    first = call(url, "GET", "/groups?after=0&limit=2")[1]
    rest = call(url, "GET", f"/groups?after={first['last']}")[1]
    read = [*first["groups"], *rest["groups"]]
    assert [one["tokens"] for one in read] == [group(n)["tokens"] for n in range(5)]
    assert read[-1]["group_id"] == rest["last"]
    assert call(url, "GET", f"/groups?after={rest['last']}")[1]["groups"] == []
    assert call(url, "GET", "/status")[1] == {"current_step": 0, "queue_size": 5}
    trainer.fetch(), trainer.fetch()
    assert trainer.groups == [0, 1, 2, 3]


def test_only_those_who_understand_it_are_asked_to_wait(url: str) -> None:
    started(url)
    codes = [call(url, "POST", "/scored_data", group(n), {"X-Accept-Backpressure": "1"})[0] for n in range(8)]
    assert codes == [200] * 6 + [429] * 2
    assert call(url, "POST", "/scored_data", group(9))[0] == 200


def test_large_answers_are_compressed_where_asked_for(url: str) -> None:
    started(url)
    call(url, "POST", "/scored_data", group(1, rows=4))
    request = urllib.request.Request(f"{url}/batch", headers={"Accept-Encoding": "gzip, identity;q=0"})
    with urllib.request.urlopen(request) as reply:
        assert reply.headers["Content-Encoding"] == "gzip"
        assert json.loads(gzip.decompress(reply.read()))["batch"][0]["tokens"] == group(1, 4)["tokens"]


def test_zstd_both_ways(url: str) -> None:
    zstandard = pytest.importorskip("zstandard")
    started(url)
    body = zstandard.compress(json.dumps(group(1, rows=4)).encode())
    assert call(url, "POST", "/scored_data", body, {"Content-Encoding": "zstd"})[0] == 200
    request = urllib.request.Request(f"{url}/batch", headers={"Accept-Encoding": "zstd, identity;q=0"})
    with urllib.request.urlopen(request) as reply:
        assert reply.headers["Content-Encoding"] == "zstd"
        text = zstandard.ZstdDecompressor().decompressobj().decompress(reply.read())
    assert json.loads(text)["batch"][0]["tokens"] == group(1, 4)["tokens"]


def test_a_batch_whose_reader_goes_away_is_kept_and_listed(running: Server, url: str) -> None:
    started(url, max_token_len=10**6)
    row = list(range(120_000))
    large = {"tokens": [row] * 2, "masks": [row] * 2, "scores": [0.0, 1.0]}
    for _ in range(2):
        assert call(url, "POST", "/scored_data", large)[0] == 200
    path = url.removeprefix(running.url)
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(f"GET {path}/batch HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        connection.recv(100)
    deadline = time.monotonic() + 60
    while not (listed := call(url, "GET", "/batches")[1]["batches"]) or listed[0]["state"] == "out":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert listed[0]["state"] == "undelivered" and len(listed[0]["groups"]) == 2
    assert call(url, "GET", "/batch")[1] == {"batch": None}
    assert call(url, "POST", "/batches/requeue", {"batch_id": listed[0]["batch_id"]})[0] == 200
    assert len(call(url, "GET", "/batch")[1]["batch"]) == 2


def test_clients_that_stop_in_the_middle_are_given_up(tmp_path: Path) -> None:
    with server(tmp_path, "--stall", "1") as running:
        started(running.url, max_token_len=10**6)
        for silence in (b"", b"GET /status HTTP/1.1\r\nHost:"):
            with socket.create_connection(("127.0.0.1", running.port)) as waiting:
                waiting.sendall(silence)
                waiting.settimeout(60)
                assert waiting.recv(1000) == b""
        with socket.create_connection(("127.0.0.1", running.port)) as sending:
            head = "POST /scored_data HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
            sending.sendall(head.encode() + b'{"tokens":')
            sending.settimeout(60)
            assert b" 408 " in sending.recv(1000)
        row = list(range(900_000))
        large = {"tokens": [row] * 2, "masks": [row] * 2, "scores": [0.0, 1.0]}
        for _ in range(2):
            assert call(running.url, "POST", "/scored_data", large)[0] == 200
        with socket.create_connection(("127.0.0.1", running.port)) as reading:
            reading.sendall(b"GET /batch HTTP/1.1\r\nHost: x\r\n\r\n")
            reading.recv(100)
            deadline = time.monotonic() + 60
            while call(running.url, "GET", "/batches")[1]["batches"][0]["state"] == "out":
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert call(running.url, "GET", "/batches")[1]["batches"][0]["state"] == "undelivered"
