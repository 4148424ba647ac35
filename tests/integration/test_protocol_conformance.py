"""The protocol, asked of both servers: the real atroposlib 0.4.0 and ours.

``SAME`` are conversations that must go alike. ``DIFFERENCES`` are those that go otherwise on purpose,
each with what either server does; the table in ``docs/trajectory-api.md`` names every one of them.
"""

from __future__ import annotations

import gzip
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.atropos_server import PYTHON, WHY_NOT, their_api
from tests.trajectory_api.running import REGISTRATION, call, group, server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not PYTHON, reason=WHY_NOT),
]

JOIN = {"max_token_length": 64, "desired_name": "e", "weight": 1.0, "group_size": 2}
DOCS = Path(__file__).parents[2] / "docs" / "trajectory-api.md"


@pytest.fixture(scope="module", params=["original", "ours"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "original":
        with their_api(directory) as url:
            yield request.param, url
    else:
        with server(directory) as ours:
            yield request.param, ours.url


@pytest.fixture
def url(running: tuple[str, str]) -> str:
    assert call(running[1], "GET", "/reset_data")[0] == 200
    return running[1]


@pytest.fixture
def which(running: tuple[str, str]) -> str:
    return running[0]


def ready(url: str, *environments: dict[str, Any], **registration: Any) -> None:
    """A trainer that has asked for its first batch, and environments."""
    assert call(url, "POST", "/register", {**REGISTRATION, **registration})[0] == 200
    assert call(url, "GET", "/batch") == (200, {"batch": None})
    for environment in environments:
        assert call(url, "POST", "/register-env", {**JOIN, **environment})[1]["status"] == "success"


def post(url: str, *groups: dict[str, Any]) -> list[Any]:
    return [call(url, "POST", "/scored_data", one) for one in groups]


def fetch(url: str) -> list[int] | None:
    """Numbers of the groups of the next batch."""
    batch = call(url, "GET", "/batch")[1]["batch"]
    return None if batch is None else [one["tokens"][0][0] for one in batch]


# What is the same.


def nobody_registered(url: str) -> None:
    assert call(url, "GET", "/") == (200, {"message": "AtroposLib API"})
    assert call(url, "POST", "/register-env", JOIN)[1] == {"status": "wait for trainer to start"}


def registering(url: str) -> None:
    status, reply = call(url, "POST", "/register", {})
    assert status == 422
    assert {entry["loc"][-1] for entry in reply["detail"]} == set(REGISTRATION)
    assert isinstance(call(url, "POST", "/register", REGISTRATION)[1]["uuid"], int)
    assert call(url, "GET", "/info")[1] == {"batch_size": 4, "max_token_len": 128}
    assert call(url, "GET", "/wandb_info")[1] == {"group": "group", "project": "project"}


def joining(url: str) -> None:
    call(url, "POST", "/register", {**REGISTRATION, "starting_step": 3, "save_checkpoint_interval": 7})
    assert call(url, "POST", "/register-env", JOIN)[1] == {"status": "wait for trainer to start"}
    assert call(url, "GET", "/batch") == (200, {"batch": None})
    expected = {
        "status": "success",
        "env_id": 0,
        "wandb_name": "e_0",
        "starting_step": 3,
        "checkpoint_dir": "checkpoints",
        "checkpoint_interval": 7,
        "num_steps": 1000,
    }
    assert expected.items() <= call(url, "POST", "/register-env", JOIN)[1].items()
    second = call(url, "POST", "/register-env", JOIN)[1]
    assert (second["env_id"], second["wandb_name"]) == (1, "e_1")
    other = call(url, "POST", "/register-env", {**JOIN, "desired_name": "f"})[1]
    assert (other["env_id"], other["wandb_name"]) == (2, "f_0")
    assert call(url, "POST", "/register-env", {"desired_name": "x"})[0] == 422


def posting(url: str) -> None:
    ready(url, {})
    assert post(url, group(1), group(2, env_id=0)) == [(200, {"status": "received"})] * 2
    reply = call(url, "POST", "/scored_data_list", [group(3), group(4)])
    assert reply == (200, {"status": "received", "groups_processed": 2})
    body = gzip.compress(json.dumps(group(5)).encode())
    reply = call(url, "POST", "/scored_data", body, {"Content-Encoding": "gzip"})
    assert reply == (200, {"status": "received"})
    assert call(url, "GET", "/status")[1] == {"current_step": 0, "queue_size": 5}


def a_group_in_a_batch(url: str) -> None:
    ready(url, {})
    sent = group(
        7,
        env_id=0,
        advantages=[[0.5], [-0.5]],
        ref_logprobs=[[-0.1, -0.2, -0.3]] * 2,
        messages=[[{"role": "user", "content": "ä😀"}, {"role": "assistant", "content": "b"}]] * 2,
        generation_params={"temperature": 0.7, "top_p": 0.9},
        overrides=[{"set_advantage_to_zero": True}, {}],
        group_overrides={"temperature": 0.5},
        distill_token_ids=[[[1, 2]] * 3] * 2,
        distill_logprobs=[[[-0.1, -2.5]] * 3] * 2,
        inference_logprobs=[[1.0, -1e-12, -1.2345678901234567]] * 2,
    )
    post(url, sent, group(8))
    first, second = call(url, "GET", "/batch")[1]["batch"]
    assert {name: first[name] for name in sent} == sent
    optional = {"advantages", "ref_logprobs", "messages", "generation_params", "overrides"}
    optional |= {"group_overrides", "images", "distill_token_ids", "distill_logprobs", "env_id"}
    assert {name for name, value in second.items() if value is None} == optional
    assert set(second) == {*optional, "tokens", "masks", "scores", "inference_logprobs"}


def one_batch_after_the_other(url: str) -> None:
    ready(url, {})
    post(url, group(1), group(2))
    assert fetch(url) == [1, 2] and fetch(url) is None
    assert call(url, "GET", "/status")[1] == {"current_step": 1, "queue_size": 0}
    post(url, group(3))
    assert fetch(url) is None
    post(url, group(4))
    assert fetch(url) == [3, 4]
    assert call(url, "GET", "/status")[1] == {"current_step": 2, "queue_size": 0}


def what_an_environment_sees(url: str) -> None:
    ready(url, {"weight": 3.0}, {"min_batch_allocation": 0.25}, starting_step=2)
    post(url, group(1, env_id=0), group(2, env_id=0))
    expected = {
        "current_step": 2,
        "queue_size": 2,
        "self_queue_size": 2,
        "max_group_size": 2,
        "unallocated_fraction": 0.75,
        "env_weight": 0.75,
    }
    assert expected.items() <= call(url, "GET", "/status-env", {"env_id": 0})[1].items()
    other = call(url, "GET", "/status-env", {"env_id": 1})[1]
    assert (other["self_queue_size"], other["queue_size"], other["env_weight"]) == (0, 2, 0.25)


def minimum_allocations(url: str) -> None:
    ready(url, {}, {"min_batch_allocation": 0.5})
    post(url, group(1, env_id=0), group(2, env_id=0), group(3, env_id=0))
    assert fetch(url) is None
    post(url, group(4, env_id=1))
    assert set(fetch(url) or []) == {1, 4}


def the_latest_example(url: str) -> None:
    ready(url, {})
    post(url, group(1), group(2))
    assert call(url, "GET", "/latest_example")[1]["tokens"] == group(2)["tokens"]


def leaving(url: str) -> None:
    ready(url, {})
    assert call(url, "POST", "/disconnect-env", {"env_id": 0}) == (200, {"status": "success"})
    status, reply = call(url, "POST", "/disconnect-env", {"env_id": 9})
    assert status == 200 and reply["status"] == "failure" and isinstance(reply["error"], str)


def resetting(url: str) -> None:
    ready(url, {})
    post(url, group(1))
    assert call(url, "GET", "/reset_data") == (200, "Reset successful")
    assert call(url, "POST", "/register-env", JOIN)[1] == {"status": "wait for trainer to start"}
    ready(url, batch_size=2)
    assert fetch(url) is None
    post(url, group(2))
    assert fetch(url) == [2]


def bad_bodies(url: str) -> None:
    ready(url, {})
    for body in (
        {"masks": [[1]], "scores": [1.0]},
        {**group(), "scores": [None, 1.0]},
        {**group(), "scores": ["a", "b"]},
        {**group(), "tokens": "x"},
        {**group(), "messages": [[{"role": "user"}], []]},
        b"{",
    ):
        assert call(url, "POST", "/scored_data", body)[0] == 422
    garbage = call(url, "POST", "/scored_data", b"garbage", {"Content-Encoding": "gzip"})
    assert garbage[0] == 400 and "Invalid gzip payload" in json.dumps(garbage[1])
    assert call(url, "GET", "/status")[1]["queue_size"] == 0


SAME = [
    nobody_registered,
    registering,
    joining,
    posting,
    a_group_in_a_batch,
    one_batch_after_the_other,
    what_an_environment_sees,
    minimum_allocations,
    the_latest_example,
    leaving,
    resetting,
    bad_bodies,
]


@pytest.mark.parametrize("conversation", SAME, ids=lambda one: one.__name__)
def test_both_servers_do_the_same(url: str, conversation: Callable[[str], None]) -> None:
    conversation(url)


# What is otherwise on purpose.


@dataclass(frozen=True)
class Difference:
    """``act`` is done to a server without a job; what it returns is what either server must give."""

    name: str
    documented: str
    """Words of the table in the docs."""
    act: Callable[[str], Any]
    original: Any
    ours: Any


def register_again(url: str) -> Any:
    ready(url)
    call(url, "POST", "/register", {**REGISTRATION, "batch_size": 8})
    return call(url, "GET", "/info")[1]["batch_size"]


def hand_out_order(url: str) -> Any:
    ready(url, {})
    post(url, *(group(number) for number in range(6)))
    first = fetch(url)
    return first, call(url, "GET", "/status")[1]["current_step"], fetch(url)


def groups_of_other_sizes(url: str) -> Any:
    ready(url, {})
    return post(url, group(1, rows=1, env_id=0))[0]


def sizes_that_do_not_divide(url: str) -> Any:
    ready(url, {"group_size": 8}, batch_size=12)
    post(url, *(group(number, rows=8, env_id=0) for number in range(2)))
    return fetch(url)


def after_a_reset(url: str) -> Any:
    ready(url)
    post(url, group(1))
    call(url, "GET", "/reset_data")
    tokens = call(url, "GET", "/latest_example")[1]["tokens"]
    return call(url, "GET", "/info")[1]["max_token_len"], len(tokens)


def a_group_beyond_a_batch(url: str) -> Any:
    ready(url, {})
    return post(url, group(1, rows=6))[0][0]


def nan(url: str) -> Any:
    ready(url, {})
    body = json.dumps({**group(), "scores": [float("nan"), 1.0]}).encode()
    return call(url, "POST", "/scored_data", body)[0]


def lengths(url: str) -> Any:
    ready(url, {})
    return post(url, {**group(), "masks": [[1]]})[0][0]


def unknown_environment(url: str) -> Any:
    ready(url, {})
    codes = [call(url, "POST", "/scored_data", group(env_id=number))[0] for number in (99, -3)]
    return [*codes, call(url, "GET", "/status-env", {"env_id": 9})[0]]


def an_ignored_environment(url: str) -> Any:
    ready(url, {"weight": -1.0})
    return call(url, "GET", "/status-env", {"env_id": 0})[0]


def no_name(url: str) -> Any:
    ready(url)
    return call(url, "POST", "/register-env", {**JOIN, "desired_name": None})[0]


def post_before_registering(url: str) -> Any:
    return post(url, group())[0][0]


def truncated_gzip(url: str) -> Any:
    ready(url, {})
    body = gzip.compress(json.dumps(group()).encode())[:-9]
    return call(url, "POST", "/scored_data", body, {"Content-Encoding": "gzip"})[0]


def foreign_page(url: str) -> Any:
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    request = urllib.request.Request(f"{url}/status", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.headers.get("Access-Control-Allow-Origin")
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Access-Control-Allow-Origin")


def fields_of_ones_own(url: str) -> Any:
    ready(url, {})
    post(url, *(group(number, note="mine") for number in range(2)))
    return call(url, "GET", "/batch")[1]["batch"][0].get("note")


def status_by_query(url: str) -> Any:
    ready(url, {})
    return call(url, "GET", "/status-env?env_id=0")[0]


def batch_before_registering(url: str) -> Any:
    return call(url, "GET", "/batch")[0]


DIFFERENCES = [
    Difference("register again", "`/register` again is ignored", register_again, 4, 8),
    Difference("hand-out", "counts batches formed", hand_out_order, ([4, 5], 3, [2, 3]), ([0, 1], 1, [2, 3])),
    Difference(
        "other sizes",
        "groups of other sizes are buffered",
        groups_of_other_sizes,
        (200, {"status": "buffered", "buffer_size": 1}),
        (200, {"status": "received"}),
    ),
    Difference("odd sizes", "are never handed out", sizes_that_do_not_divide, None, [0]),
    Difference("too large", "a group larger than a batch", a_group_beyond_a_batch, 200, 422),
    Difference("NaN", "NaN", nan, 200, 422),
    Difference("lengths", "mismatched lengths", lengths, 200, 422),
    Difference("unknown", "unknown `env_id`", unknown_environment, [200, 500, 500], [404, 404, 404]),
    Difference("weight -1", "a weight of -1", an_ignored_environment, 500, 200),
    Difference("no name", "`desired_name: null`", no_name, 422, 200),
    Difference("early post", "posts before `/register`", post_before_registering, 200, 409),
    Difference("truncated", "truncated gzip", truncated_gzip, 500, 400),
    Difference("web pages", "every web page", foreign_page, (200, "https://evil.example"), (403, None)),
    Difference("fields", "unknown fields", fields_of_ones_own, None, "mine"),
    Difference("query", "in the query", status_by_query, 422, 200),
    Difference(
        "reset", "`max_token_len` and `/latest_example` of the run before", after_a_reset, (128, 2), (-1, 0)
    ),
    Difference("batch", "`/batch` after a reset", batch_before_registering, 500, 200),
]


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda one: one.name)
def test_what_differs_on_purpose(url: str, which: str, difference: Difference) -> None:
    expected = difference.original if which == "original" else difference.ours
    assert difference.act(url) == expected


def test_the_docs_list_every_difference() -> None:
    text = " ".join(DOCS.read_text().split())
    assert [one.name for one in DIFFERENCES if one.documented not in text] == []
