"""What is taken as a group, and what of it is forwarded."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.trajectory_api.bodies import decode_body
from environments.trajectory_api.refusals import Refused
from environments.trajectory_api.wire import FIELDS, read_group, read_groups
from tests.trajectory_api.running import group


def test_payload_is_the_text_as_it_came_with_nulls_added() -> None:
    text = b' {"tokens": [[1, 2]], "masks":[[-100,2]], "scores":[1e-3], "extra": {"a": "\xc3\xa4"} }\n'
    read = read_group(text)
    assert read.payload.startswith(text.strip()[:-1])
    value = json.loads(read.payload)
    assert set(FIELDS) <= set(value)
    assert value["tokens"] == [[1, 2]] and value["overrides"] is None and value["extra"] == {"a": "ä"}
    assert (read.rows, read.members, read.tokens) == (1, 1, 2)


def test_rows_of_one_rollout_are_one_member() -> None:
    read = read_group(json.dumps(group(rows=3, rollout_ids=["a", "a", "b"])).encode())
    assert (read.rows, read.members) == (3, 2)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tokens": None}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [[], [1]]}, "tokens.0"),
        ({"tokens": [[1, 2.5, 3], [1, 2, 3]]}, "tokens.0.1"),
        ({"tokens": [[1, True, 3], [1, 2, 3]]}, "tokens.0.1"),
        ({"masks": [[1, 2, 3]]}, "masks"),
        ({"masks": [[1, 2, 3], [1, 2]]}, "masks.1"),
        ({"masks": "no"}, "masks"),
        ({"scores": [1.0]}, "scores"),
        ({"scores": [1.0, None]}, "scores.1"),
        ({"scores": [1.0, "2"]}, "scores.1"),
        ({"inference_logprobs": [[0.0], [0.0]]}, "inference_logprobs.0"),
        ({"ref_logprobs": [[0.0] * 3]}, "ref_logprobs"),
        ({"advantages": [[0.0, 1.0], [0.0]]}, "advantages.0"),
        ({"distill_token_ids": [[[1]], [[1]]]}, "distill_token_ids.0"),
        ({"messages": [[{"role": "user"}], []]}, "messages.0.0"),
        ({"messages": [[]]}, "messages"),
        ({"overrides": [{}]}, "overrides"),
        ({"overrides": [{}, 1]}, "overrides.1"),
        ({"group_overrides": []}, "group_overrides"),
        ({"generation_params": 3}, "generation_params"),
        ({"env_id": "0"}, "env_id"),
        ({"rollout_ids": ["a"]}, "rollout_ids"),
        ({"policy_version": 1.5}, "policy_version"),
        ({"policy_version": 2**63}, "policy_version"),
        ({"idempotency_key": ""}, "idempotency_key"),
    ],
)
def test_refusals_name_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        read_group(json.dumps({**group(), **change}).encode())
    assert ".".join(map(str, refused.value.path)) == field


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_what_json_cannot_carry_is_refused_by_name(text: str) -> None:
    body = json.dumps(group()).replace("1.0]}", f"{text}]}}").replace("[0.0, 1.0]", f"[0.0, {text}]")
    with pytest.raises(Refused) as refused:
        read_group(body.encode())
    assert refused.value.path == ("scores", 1)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"tokens"', b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_group(body: bytes) -> None:
    with pytest.raises(Refused):
        read_group(body)


def test_lists_name_the_group_too() -> None:
    with pytest.raises(Refused) as refused:
        read_groups(json.dumps([group(), {**group(), "masks": []}]).encode())
    assert refused.value.path == (1, "masks")
    assert len(read_groups(json.dumps([group(1), group(2)]).encode())) == 2


rows = st.lists(st.lists(st.integers(-(2**31), 2**53), min_size=1, max_size=6), min_size=1, max_size=4)


@given(rows, st.randoms(use_true_random=False))
def test_tokens_and_floats_come_out_as_they_went_in(tokens: list[list[int]], random: Any) -> None:
    logprobs = [[random.uniform(-50, 0) for _ in row] for row in tokens]
    sent = {"tokens": tokens, "masks": tokens, "scores": [0.1] * len(tokens), "inference_logprobs": logprobs}
    for payload in (read_group(json.dumps(sent).encode()), read_groups(json.dumps([sent]).encode())[0]):
        value = json.loads(payload.payload)
        assert {name: value[name] for name in sent} == sent


def test_gzip_of_several_members_and_its_faults() -> None:
    assert decode_body(gzip.compress(b"a") + gzip.compress(b"b"), "gzip", 10) == b"ab"
    assert decode_body(b"abc", "", 10) == b"abc"
    for body, status in ((b"garbage", 400), (gzip.compress(b"a" * 1000)[:-12], 400)):
        with pytest.raises(Refused) as refused:
            decode_body(body, "gzip", 10_000)
        assert refused.value.status == status
    with pytest.raises(Refused) as refused:
        decode_body(b"a", "br", 10)
    assert refused.value.status == 415


def test_a_bomb_is_found_before_it_swells() -> None:
    bomb = gzip.compress(b"\0" * (200 << 20), 1)
    with pytest.raises(Refused) as refused:
        decode_body(bomb, "gzip", 4 << 20)
    assert refused.value.status == 413
    with pytest.raises(Refused):
        decode_body(gzip.compress(bomb), "gzip, gzip", 4 << 20)


def test_zstd_and_its_bombs() -> None:
    zstandard = pytest.importorskip("zstandard")
    assert decode_body(zstandard.compress(b"abc"), "zstd", 10) == b"abc"
    with pytest.raises(Refused) as refused:
        decode_body(zstandard.compress(b"\0" * (200 << 20)), "zstd", 4 << 20)
    assert refused.value.status == 413
    with pytest.raises(Refused) as refused:
        decode_body(b"garbage", "zstd", 100)
    assert refused.value.status == 400


def test_more_values_than_memory_is_spent_on() -> None:
    body = b'{"tokens":[[' + b"1," * 2000 + b"1]]}"
    with pytest.raises(Refused, match="values") as refused:
        decode_body(gzip.compress(body), "gzip", 8000)
    assert refused.value.status == 413
