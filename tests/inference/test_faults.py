"""What the error texts of real servers mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from environments.errors import AccessDenied, BadRequest, ContextOverflow, ModelError, ServerUnavailable
from environments.inference.faults import (
    ModelNotFound,
    error_from_payload,
    error_from_reply,
    parse_retry_after,
    room_for_reply,
    scrub,
)


def kind(status: int, payload: Any) -> type[ModelError]:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return type(error_from_reply("server", status, text))


OVERFLOWS = [
    (400, {"error": {"message": "x", "code": "context_length_exceeded"}}),
    (400, {"error": {"message": "Your input exceeds the context window of this model."}}),
    (400, {"object": "error", "message": "This model's maximum context length is 2048 tokens. However"}),
    (
        400,
        {"error": {"message": "The decoder prompt (length 9) is longer than the maximum model length of 8."}},
    ),
    (
        400,
        {"error": {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}},
    ),
    (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "request (9 tokens)"}}),
    (500, {"error": {"code": 500, "message": "the request exceeds the available context size"}}),
    (
        400,
        {"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"}},
    ),
    (400, {"error": {"message": "input length and `max_tokens` exceed context limit: 9 + 9 > 8"}}),
    (
        400,
        [
            {
                "error": {
                    "message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."
                }
            }
        ],
    ),
    (
        400,
        {"error": {"message": "Provider returned error", "metadata": {"raw": "maximum prompt length is 8"}}},
    ),
    (413, "too large"),
]


@pytest.mark.parametrize(("status", "payload"), OVERFLOWS)
def test_context_overflow(status: int, payload: Any) -> None:
    assert kind(status, payload) is ContextOverflow


@pytest.mark.parametrize(
    ("status", "payload", "expected"),
    [
        (429, {"error": {"code": "insufficient_quota", "message": "You exceeded your quota"}}, AccessDenied),
        (429, {"error": {"message": "slow down, too many tokens per minute"}}, ServerUnavailable),
        (403, {"error": {"message": "flagged", "metadata": {"reasons": ["x"]}}}, BadRequest),
        (400, {"error": {"message": "Incorrect API key provided"}}, AccessDenied),
        (400, {"error": {"message": "foo/bar is not a valid model ID"}}, ModelNotFound),
        (404, {"error": {"message": "The model `m` does not exist."}}, ModelNotFound),
        (404, {"detail": "Not Found"}, AccessDenied),
        (400, {"error": "bad"}, BadRequest),
        (422, {"detail": [{"msg": "field required"}]}, BadRequest),
        (503, "<html>", ServerUnavailable),
        (301, "", AccessDenied),
    ],
)
def test_other_kinds(status: int, payload: Any, expected: type[ModelError]) -> None:
    assert kind(status, payload) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"code": 429, "message": "x"}, ServerUnavailable),
        ({"code": "502", "message": "x"}, ServerUnavailable),
        ({"type": "overloaded_error", "message": "x"}, ServerUnavailable),
        ({"code": "context_length_exceeded", "message": "x"}, ContextOverflow),
        ({"type": "invalid_request_error", "message": "x"}, BadRequest),
        ({"code": "invalid_api_key", "message": "x"}, AccessDenied),
        ("just text", ServerUnavailable),
    ],
)
def test_errors_inside_good_replies(error: Any, expected: type[ModelError]) -> None:
    assert type(error_from_payload("server", {"error": error})) is expected


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:00 GMT"}, 50.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"retry-after-ms": "x"}, None),
        ({"Retry-After": "-3"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, now=10.0) == seconds


def test_room_for_a_reply() -> None:
    said = "maximum context length is 100 tokens and your request has 40 input tokens"
    assert room_for_reply(said) == 60
    assert room_for_reply("maximum context length is 100 tokens. (140 in the messages, 5 in") is None
    assert room_for_reply("something else") is None


def test_scrubbing() -> None:
    assert "abc" not in scrub("key abc-def-1 and Bearer abc-xyz.123", "abc-def-1")
    assert scrub("maximum context length", "x") == "maximum context length", "a stand-in is no secret"


def test_a_long_text_is_shortened_in_the_message_and_whole_in_the_body() -> None:
    error = error_from_reply("server", 500, "x" * 5000)
    assert len(str(error)) < 1000
    assert len(error.body) == 5000
