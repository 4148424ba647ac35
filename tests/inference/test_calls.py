"""Calls against a real HTTP server that misbehaves in every way that servers do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

import pytest

from environments.errors import AccessDenied, BadRequest, ContextOverflow, ModelError, ServerUnavailable
from environments.inference.retrying import Backoff
from environments.inference.server_manager import ServerManager
from environments.inference.types import ChatCompletion
from tests.inference.scripted_server import (
    ScriptedServer,
    Step,
    completion,
    delta,
    drops,
    fails,
    hangs,
    replies,
    says,
    serving,
    stream,
)

USER = [{"role": "user", "content": "hi"}]
FAST = Backoff(first=0.01, longest=0.02)


def ask(
    *steps: Step,
    config: dict[str, Any] | None = None,
    models: tuple[str, ...] = (),
    idle_timeout: float = 60.0,
    **call: Any,
) -> tuple[ChatCompletion | ModelError, ScriptedServer]:
    """One call to a server of these steps: the reply or the error, and the server."""

    async def run() -> tuple[ChatCompletion | ModelError, ScriptedServer]:
        async with serving(*steps, models=models) as server:
            manager = ServerManager(
                [server.config(**(config or {}))], backoff=FAST, seed=1, idle_timeout=idle_timeout
            )
            async with manager:
                try:
                    return await manager.chat_completion(USER, **call), server
                except ModelError as error:
                    return error, server

    return asyncio.run(run())


def text_of(reply: ChatCompletion | ModelError) -> Any:
    assert isinstance(reply, ChatCompletion), reply
    return reply.choices[0].message.content


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_statuses_that_a_new_try_may_heal(status: int) -> None:
    reply, server = ask(fails(status), fails(status), says("ok"))
    assert text_of(reply) == "ok"
    assert len(server.requests) == 3
    assert isinstance(reply, ChatCompletion)
    assert reply.timing.retries == 2
    assert reply.timing.waiting > 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, BadRequest), (401, AccessDenied), (402, AccessDenied), (403, AccessDenied), (422, BadRequest)],
)
def test_statuses_that_are_final(status: int, kind: type[ModelError]) -> None:
    error, server = ask(fails(status, "the reason"), says("never"))
    assert type(error) is kind
    assert isinstance(error, ModelError)
    assert error.status == status
    assert "the reason" in str(error)
    assert "the reason" in error.body
    assert len(server.requests) == 1


def test_after_all_retries_the_last_error_is_told() -> None:
    error, server = ask(fails(503, "overloaded today"), config={"max_retries": 2})
    assert isinstance(error, ServerUnavailable)
    assert error.status == 503
    assert "overloaded today" in str(error)
    assert "3 tries" in str(error)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "0.3"},
        {"retry-after-ms": "300"},
        {"Retry-After": formatdate(time.time() + 2, usegmt=True)},
    ],
)
def test_the_servers_wish_to_wait_is_honoured(headers: dict[str, str]) -> None:
    if headers.get("Retry-After", "").endswith("GMT"):
        headers = {"Retry-After": formatdate(time.time() + 2, usegmt=True)}
    started = time.monotonic()
    reply, _ = ask(fails(429, headers=headers), says("ok"))
    assert text_of(reply) == "ok"
    assert isinstance(reply, ChatCompletion)
    assert reply.timing.waiting >= 0.25
    assert time.monotonic() - started >= 0.25


def test_a_wish_longer_than_the_deadline_is_an_error_at_once() -> None:
    error, server = ask(fails(429, headers={"Retry-After": "3600"}), config={"timeout": 5})
    assert isinstance(error, ServerUnavailable)
    assert error.retry_after == 3600
    assert len(server.requests) == 1


def test_one_rate_limit_holds_back_all_calls_of_the_server() -> None:
    async def run() -> tuple[int, int]:
        async with (
            serving(fails(429, headers={"Retry-After": "0.5"}), says("ok")) as server,
            ServerManager([server.config()], backoff=FAST) as manager,
        ):
            first = asyncio.create_task(manager.chat_completion(USER))
            while manager.stats().get("server/errors_http_429", 0) < 1:
                await asyncio.sleep(0.01)
            others = [asyncio.create_task(manager.chat_completion(USER)) for _ in range(5)]
            await asyncio.sleep(0.1)
            during = len(server.requests)
            await asyncio.gather(first, *others)
            return during, len(server.requests)

    assert asyncio.run(run()) == (1, 7)


@pytest.mark.parametrize(
    "bad",
    [
        replies("<html>gateway</html>"),
        replies(""),
        replies("[]"),
        replies({"choices": []}),
        replies({"choices": None}),
        replies({"choices": ["x"]}),
        replies({"choices": [{"finish_reason": "stop"}]}),
        replies({"error": {"message": "provider returned error", "code": 502}}),
        replies({"error": {"message": "something odd"}}),
        replies({"object": "error", "message": "engine dead", "code": 500}),
        replies({"choices": [{"error": {"code": 502, "message": "upstream"}, "message": {"content": ""}}]}),
        replies({"choices": [{"finish_reason": "error", "message": {"content": "half"}}]}),
        drops(),
    ],
)
def test_replies_that_make_no_sense_are_tried_again(bad: Step) -> None:
    reply, server = ask(bad, says("ok"))
    assert text_of(reply) == "ok"
    assert len(server.requests) == 2


@pytest.mark.parametrize("page", ["<html>welcome</html>", "", "[]"])
def test_an_address_that_never_answers_as_a_model_server_is_a_wrong_one(page: str) -> None:
    error, server = ask(*[replies(page)] * 6)
    assert isinstance(error, AccessDenied)
    assert "/v1" in str(error)
    assert len(server.requests) == 3
    reply, _ = ask(replies(page), replies(page), says("ok"))
    assert text_of(reply) == "ok", "such as a gateway that is starting"


@pytest.mark.parametrize(
    "bad",
    [
        stream([delta({"content": "half"})]),
        stream([delta({"content": "half"})], cut=True),
        stream([delta({"content": "half"}), "not json", "[DONE]"]),
        stream([delta({"content": "half"}), {"error": {"code": 502, "message": "upstream"}}]),
        stream([{"choices": [{"index": 0, "delta": {}, "error": {"code": 503, "message": "x"}}]}]),
        stream(["[DONE]"]),
        stream([]),
    ],
)
def test_streams_that_break_are_tried_again(bad: Step) -> None:
    reply, server = ask(bad, says("ok"), config={"stream": True})
    assert text_of(reply) == "ok"
    assert len(server.requests) == 2


def test_a_final_error_inside_a_good_status_is_final() -> None:
    error, server = ask(replies({"error": {"code": 401, "message": "no auth"}}), says("never"))
    assert type(error) is AccessDenied
    assert len(server.requests) == 1


def test_a_stream_that_falls_silent_is_tried_again() -> None:
    silent = stream([delta({"content": "a"}), delta({"content": "b"})], pause=30)
    reply, _ = ask(silent, says("ok"), config={"stream": True}, idle_timeout=0.3)
    assert text_of(reply) == "ok"


def test_a_slow_stream_with_signs_of_life_is_waited_for() -> None:
    events = [": keep-alive", ": keep-alive", delta({"content": "ok"}), delta({}, "stop"), "[DONE]"]
    reply, server = ask(stream(events, pause=0.3), config={"stream": True}, idle_timeout=1.0)
    assert text_of(reply) == "ok"
    assert isinstance(reply, ChatCompletion)
    assert len(server.requests) == 1
    assert reply.timing.first_token_at is not None
    assert reply.timing.started_at < reply.timing.first_token_at <= reply.timing.ended_at


def test_a_hanging_server_ends_with_the_deadline() -> None:
    error, server = ask(hangs(), config={"timeout": 1})
    assert isinstance(error, ServerUnavailable)
    assert len(server.requests) == 1


def test_nobody_listens() -> None:
    async def run() -> None:
        server = ScriptedServer([says("x")])
        await server.start()
        await server.stop()
        async with ServerManager([server.config(max_retries=2)], backoff=FAST) as manager:
            await manager.chat_completion(USER)

    with pytest.raises(ServerUnavailable, match="no connection"):
        asyncio.run(run())


def test_usage_is_as_the_server_says_or_zero() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
        "cost": 0.25,
    }
    reply, _ = ask(says("x", usage=usage))
    assert isinstance(reply, ChatCompletion)
    found = reply.usage
    assert (found.prompt_tokens, found.cached_tokens) == (10, 4)
    assert (found.completion_tokens, found.reasoning_tokens, found.cost) == (5, 3, 0.25)
    without, _ = ask(says("x"))
    assert isinstance(without, ChatCompletion)
    assert (without.usage.prompt_tokens, without.usage.cost) == (0, None)


def test_stream_options_are_dropped_for_a_server_that_refuses_them() -> None:
    async def run() -> list[bool]:
        refusal = fails(400, "unknown field: stream_options")
        async with serving(refusal, says("a")) as server:
            async with ServerManager([server.config(stream=True)]) as manager:
                await manager.chat_completion(USER)
                await manager.chat_completion(USER)
            return ["stream_options" in request for request in server.requests]

    assert asyncio.run(run()) == [True, False, False]


def test_a_reply_limit_that_does_not_fit_is_cut_to_what_is_left() -> None:
    said = (
        "This model's maximum context length is 2048 tokens. However, you requested 5100 tokens "
        "(100 in the messages, 5000 in the completion)."
    )
    reply, server = ask(fails(400, said), says("ok"), max_tokens=5000)
    assert text_of(reply) == "ok"
    assert server.requests[1]["max_tokens"] == 1948


def test_an_overflow_of_the_prompt_is_final() -> None:
    said = (
        "This model's maximum context length is 2048 tokens. However, you requested 5100 tokens "
        "(3000 in the messages, 2100 in the completion)."
    )
    error, server = ask(fails(400, said), says("never"), max_tokens=2100)
    assert type(error) is ContextOverflow
    assert len(server.requests) == 1


def test_an_unknown_model_names_those_that_there_are() -> None:
    error, _ = ask(fails(404, "The model `m` does not exist."), models=("big-one", "small-one"))
    assert isinstance(error, AccessDenied)
    assert "big-one, small-one" in str(error)


def test_the_key_is_sent_and_never_told() -> None:
    key = "sk-very-secret-key"
    error, server = ask(
        fails(401, f"Incorrect API key provided: {key}, Authorization: Bearer {key}"),
        config={"api_key": key},
    )
    assert server.headers[0]["Authorization"] == f"Bearer {key}"
    assert isinstance(error, ModelError)
    assert key not in str(error) + error.body + repr(error)


def several(count: int) -> Step:
    async def step(request: Any, body: dict[str, Any]) -> Any:
        payload = completion({"content": "x"})
        payload["choices"] = payload["choices"] * min(count, body.get("n", 1))
        payload["usage"] = {"prompt_tokens": 10, "completion_tokens": body.get("n", 1)}
        return await replies(payload)(request, body)

    return step


@pytest.mark.parametrize(
    ("config", "step", "requests"),
    [
        ({}, several(8), [4]),
        ({}, several(1), [4, 1, 1, 1]),
        ({"n_kwarg_is_ignored": True}, several(1), [1, 1, 1, 1]),
    ],
)
def test_n_replies_whatever_the_server_makes_of_n(
    config: dict[str, Any], step: Step, requests: list[int]
) -> None:
    reply, server = ask(step, config=config, n=4)
    assert isinstance(reply, ChatCompletion)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [request.get("n", 1) for request in server.requests] == requests
    assert reply.usage.prompt_tokens == 10 * len(requests)


def test_a_server_that_refuses_n_is_asked_one_by_one() -> None:
    reply, server = ask(fails(400, "Field 'n': Value must be at most 2"), several(1), n=3)
    assert isinstance(reply, ChatCompletion)
    assert len(reply.choices) == 3
    assert [request.get("n", 1) for request in server.requests] == [3, 1, 1, 1]


def test_one_reply_is_one_request_although_n_is_ignored() -> None:
    reply, server = ask(several(1), config={"n_kwarg_is_ignored": True})
    assert isinstance(reply, ChatCompletion)
    assert len(server.requests) == 1


def test_text_completions() -> None:
    async def run() -> Any:
        payload = {"choices": [{"text": " world", "finish_reason": "length"}], "model": "served"}
        async with serving(replies(payload)) as server:
            async with ServerManager([server.config()]) as manager:
                reply = await manager.completion("hello", max_tokens=1)
            return reply, server

    reply, server = asyncio.run(run())
    assert reply.choices[0].text == " world"
    assert server.paths == ["/v1/completions"]
    assert server.requests[0]["prompt"] == "hello"


def test_sampling_defaults_stand_below_the_call() -> None:
    async def run() -> dict[str, Any]:
        async with serving() as server:
            defaults = {"temperature": 0.5, "top_p": 0.9}
            async with ServerManager([server.config()], sampling_defaults=defaults) as manager:
                await manager.chat_completion(USER, temperature=0.1, seed=None)
            return server.requests[0]

    body = asyncio.run(run())
    assert (body["temperature"], body["top_p"]) == (0.1, 0.9)
    assert "seed" not in body


def test_a_cancelled_call_gives_its_slot_back() -> None:
    async def run() -> Any:
        async with (
            serving(hangs(), says("ok")) as server,
            ServerManager([server.config(num_max_requests_at_once=1)]) as manager,
        ):
            call = asyncio.create_task(manager.chat_completion(USER))
            while not server.requests:
                await asyncio.sleep(0.01)
            waiting = asyncio.create_task(manager.chat_completion(USER))
            await asyncio.sleep(0.05)
            assert manager.stats()["server/waiting_calls"] == 1
            call.cancel()
            return await asyncio.wait_for(waiting, 10)

    assert text_of(asyncio.run(run())) == "ok"


def test_calls_of_one_manager_in_several_event_loops() -> None:
    server = ScriptedServer([says("ok")])
    manager = ServerManager([{"base_url": "http://127.0.0.1:1/v1"}])

    async def run(make: Callable[[], Awaitable[Any]]) -> Any:
        await server.start()
        try:
            return await make()
        finally:
            await manager.close()
            await server.stop()

    async def first() -> Any:
        nonlocal manager
        manager = ServerManager([server.config()])
        return await manager.chat_completion(USER)

    assert text_of(asyncio.run(run(first))) == "ok"
    assert text_of(asyncio.run(run(lambda: manager.chat_completion(USER)))) == "ok"
