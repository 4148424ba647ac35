"""What counts as a reward."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import VerifierError
from environments.verification.reward import parse_json, parse_text

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(-(10**6), 10**6)


@given(st.dictionaries(st.text(min_size=1, max_size=8), FINITE, min_size=1, max_size=5))
def test_every_object_of_finite_numbers_is_a_reward(numbers: dict[str, float]) -> None:
    score = parse_json(json.dumps(numbers).encode())
    if "reward" in numbers:
        assert (score.key, score.value) == ("reward", numbers["reward"])
    elif len(numbers) == 1:
        assert {score.key: score.value} == numbers
    else:
        assert score.key == "mean" and math.isclose(score.value, math.fsum(numbers.values()) / len(numbers))
    assert set(score.metrics) == set(numbers) - {score.key}


@given(st.binary(max_size=40))
def test_any_bytes_are_a_finite_number_or_refused(data: bytes) -> None:
    for parse in (parse_json, parse_text):
        with contextlib.suppress(VerifierError):
            assert math.isfinite(parse(data).value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]",
        b"{}",
        b"null",
        b'{"reward": null}',
        b'{"reward": NaN}',
        b'{"reward": 1e999}',
        b'{"a": "1"}',
    ],
)
def test_what_is_no_reward_in_json(data: bytes) -> None:
    with pytest.raises(VerifierError, match=r"reward\.json"):
        parse_json(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"one",
        b"nan",
        b"inf",
        b"-inf",
        b"1 1",
        b"1e999",
        b"1e308",
        b"-1e101",
        b"1_0",
        "\uff11".encode(),
        "\u0661".encode(),
    ],
)
def test_what_is_no_reward_in_text(data: bytes) -> None:
    with pytest.raises(VerifierError, match=r"reward\.txt"):
        parse_text(data)


@pytest.mark.parametrize(("data", "value"), [(b"1\n", 1.0), (b" 0.25 ", 0.25), (b"-3", -3.0)])
def test_numbers_in_text(data: bytes, value: float) -> None:
    assert parse_text(data).value == value
