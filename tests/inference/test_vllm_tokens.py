"""Sampling tokens over vLLM's endpoints: found by asking, read strictly, gone on with after an abort."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import AccessDenied, ConfigError, ContextOverflow, ServerUnavailable
from environments.inference.pooled_sampler import PooledSampler
from environments.inference.replies import MalformedReply
from environments.inference.server_manager import ServerManager
from environments.inference.token_sampling import TokenReply
from environments.inference.token_wire import TokenAsk
from environments.inference.vllm import VLLM_WIRES, VLLMGenerate
from environments.records import PolicySpan
from tests.inference.scripted_server import fails, serving
from tests.inference.token_calls import EOS, PROMPT, answer, closing, manager_of, sample, spoilt, using
from tests.servers.token_server import TokenServer

GENERATE, COMPLETIONS, EXAMPLE = "/inference/v1/generate", "/v1/completions", "/generate"
EVERY = [
    {"offers": [GENERATE, COMPLETIONS]},
    {"offers": [GENERATE], "old_shape": True},
    {"offers": [COMPLETIONS]},
    {"offers": [EXAMPLE, "example"]},
    {"offers": [EXAMPLE, "example"], "old_shape": True},
]


@pytest.mark.parametrize("options", EVERY)
def test_every_endpoint_gives_ids_and_log_probabilities(options: dict[str, Any]) -> None:
    server = TokenServer(answer, **options)
    reply = sample(server, "vllm")
    assert reply.tokens == [13, 14, 15, 16, 17, EOS]
    assert reply.logprobs == [-(1.0 + t % 7) for t in reply.tokens]
    assert (reply.finish_reason, reply.stop_token) == ("stop", EOS)
    assert reply.usage.prompt_tokens == 3 and reply.usage.completion_tokens == 6
    assert reply.model == "m" and reply.server == f"127.0.0.1:{server.port}"
    assert server.prompts == [PROMPT]


@pytest.mark.parametrize("options", EVERY)
def test_a_reply_at_its_limit_has_no_stop_token(options: dict[str, Any]) -> None:
    reply = sample(TokenServer(answer, **options), "vllm", max_tokens=2)
    assert (reply.tokens, reply.finish_reason, reply.stop_token) == ([13, 14], "length", None)


def test_the_policy_version_comes_with_the_tokens() -> None:
    server = TokenServer(answer)
    server.version = "7"
    assert sample(server, "vllm").policy_versions == [PolicySpan(0, 6, "7")]


def test_what_the_caller_leaves_open_is_neutral_and_not_the_servers_default() -> None:
    server = TokenServer(answer)
    sample(server, "vllm", top_p=0.9, seed=5, reasoning_effort="low", extra_body={"top_k": 3, "n": 4})
    parameters = server.requests[-1]["sampling_params"]
    shaping = {"temperature": 1.0, "top_p": 0.9, "top_k": 3, "min_p": 0.0, "repetition_penalty": 1.0}
    penalties = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    rest = {"seed": 5, "logprobs": 0, "max_tokens": 50, "stop_token_ids": [EOS]}
    assert parameters == shaping | penalties | rest


def test_a_server_that_gives_no_ids_is_refused_with_what_each_endpoint_said() -> None:
    for offers in ([], [EXAMPLE, "example"]):
        server = TokenServer(answer, offers=offers)
        if offers:  # vLLM's demonstration server has the path, and gives the prompt and the text back
            server.broken = [lambda payload: {"text": ["prompt and output"]}] * 2
        with pytest.raises(ConfigError) as raised:
            sample(server, "vllm")
        said = str(raised.value)
        assert (
            "--enable-scale-out" in said and "vLLM 0.10.2" in said and "--openai.server_type openai" in said
        )
        assert ("text only" in said) == bool(offers)


@pytest.mark.parametrize(
    ("server_type", "owner", "said", "unsaid"),
    [
        ("vllm", "llamacpp", ["is llama.cpp", "server_type openai", "start vLLM or SGLang"], "scale-out"),
        ("sglang", "library", ["is Ollama", "server_type openai", "start vLLM or SGLang"], "scale-out"),
        ("vllm", "sglang", ["is SGLang", "Use --openai.server_type sglang"], "server_type openai"),
        ("sglang", "vllm", ["is vLLM", "Use --openai.server_type vllm"], "server_type openai"),
        ("vllm", "vllm", ["is vLLM", "--enable-scale-out", "server_type openai"], "start vLLM or SGLang"),
    ],
)
def test_what_kind_of_server_it_is_instead_is_said(
    server_type: str, owner: str, said: list[str], unsaid: str
) -> None:
    server = TokenServer(answer, offers=[])
    server.owner = owner
    with pytest.raises(ConfigError) as raised:
        sample(server, server_type)
    assert all(part in str(raised.value) for part in said) and unsaid not in str(raised.value)


def restarted(**changes: Any) -> tuple[TokenServer, list[TokenReply]]:
    """A server that is changed between two rounds of three replies, and the replies."""
    server = TokenServer(answer, offers=[GENERATE])

    async def work(manager: ServerManager) -> list[TokenReply]:
        call = {"stop_token_ids": [EOS], "max_tokens": 50}
        samplers = [PooledSampler(manager, "train", {}) for _ in range(3)]
        first = [await sampler.sample(PROMPT, **call) for sampler in samplers]
        for name, value in changes.items():
            setattr(server, name, value)
        return first + await asyncio.gather(*(sampler.sample(PROMPT, **call) for sampler in samplers))

    return server, using(server, "vllm", work)


def test_a_server_that_comes_back_with_another_endpoint_is_asked_over_that() -> None:
    server, replies = restarted(offers=[COMPLETIONS])
    assert len({tuple(reply.tokens) for reply in replies}) == 1
    asked = ["token_ids" in body for body in server.requests if PROMPT in body.values()]
    assert asked == [True] * 3 + [False] * 3


def test_a_server_that_comes_back_without_tokens_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"is vLLM and gives no token ids .*--enable-scale-out"):
        restarted(offers=[], owner="vllm")
    with pytest.raises(AccessDenied, match="has no model 'm'; it offers: other"):
        restarted(offers=[], model="other")
    with pytest.raises(ConfigError, match="start it as it was before"):
        restarted(offers=[COMPLETIONS], raw=True)


def test_a_server_that_ignores_the_wish_for_ids_is_passed_over() -> None:
    server = TokenServer(answer, offers=[COMPLETIONS])

    def without_ids(payload: dict[str, Any]) -> dict[str, Any]:
        payload["choices"][0].pop("token_ids", None)
        return payload

    server.broken = [without_ids]
    with pytest.raises(ConfigError, match="the reply has no token ids"):
        sample(server, "vllm")


def test_a_wrong_model_is_named_with_those_that_there_are() -> None:
    server = TokenServer(answer, offers=[])
    with pytest.raises(AccessDenied, match="has no model 'other'; it offers: m"):
        sample(server, "vllm", config={"model_name": "other"})


def test_a_wrong_key_is_said_to_be_one() -> None:
    async def run() -> None:
        async with serving(fails(401, "invalid api key")) as server:
            config = server.config(server_type="vllm", api_key="wrong")
            async with closing(ServerManager([config])) as manager:
                await manager.find_token_endpoint(manager.servers[0])

    with pytest.raises(AccessDenied, match="invalid api key"):
        asyncio.run(run())


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_not_ready_is_not_called_unfit(status: int) -> None:
    async def run() -> None:
        async with (
            serving(fails(status, "loading")) as server,
            closing(ServerManager([server.config(server_type="vllm")])) as manager,
        ):
            await manager.find_token_endpoint(manager.servers[0])

    with pytest.raises(ServerUnavailable):
        asyncio.run(run())


def test_no_address_is_an_error_of_the_configuration() -> None:
    async def run() -> None:
        async with ServerManager([{"server_type": "vllm", "model_name": "m", "api_key": "k"}]):
            pass

    with pytest.raises(ConfigError, match="base_url"):
        asyncio.run(run())


def test_the_context_is_known_before_the_call() -> None:
    server = TokenServer(answer, context=8)
    reply = sample(server, "vllm", max_tokens=None, prompt=[1] * 5 + [10])
    assert reply.finish_reason == "length" and len(reply.tokens) == 2
    server = TokenServer(answer, context=8)
    with pytest.raises(ContextOverflow, match="8 tokens leave no room"):
        sample(server, "vllm", prompt=[1] * 8)
    assert not server.prompts


def spoil(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A change of the reply's only choice."""

    def spoiled(payload: dict[str, Any]) -> dict[str, Any]:
        change(payload["choices"][0])
        return payload

    return spoiled


def _set_logprob(value: Any) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        choice["logprobs"]["content"][0]["logprob"] = value

    return change


def _sampled(*tokens: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        entries = [{"token_id": token, "logprob": -1.0} for token in tokens]
        choice.update(token_ids=list(tokens), logprobs={"content": entries}, stop_reason=None, **fields)

    return change


SPOILED: list[Callable[[dict[str, Any]], Any]] = [
    _set_logprob(-9999.0),
    _set_logprob(None),
    _set_logprob(0.5),
    _set_logprob("-1"),
    lambda choice: choice["logprobs"]["content"].pop(),
    lambda choice: choice["logprobs"]["content"][0].update(token_id=999),
    lambda choice: choice["token_ids"].pop(),
    lambda choice: choice.update(stop_reason=77),
    lambda choice: choice.update(finish_reason="tool_calls"),
    lambda choice: choice.update(token_ids=None),
    _sampled(13, EOS, 14, EOS),
    _sampled(*[13] * 2_000, finish_reason="length"),
    lambda choice: choice.update(stop_reason="NaN happened"),
    lambda choice: choice.update(weight_versions=[{"version": "1", "start": 0, "end": 99}]),
]


@pytest.mark.parametrize("change", SPOILED)
def test_a_reply_that_nobody_must_learn_from_is_asked_for_again(
    change: Callable[[dict[str, Any]], Any],
) -> None:
    server = TokenServer(answer)
    server.broken = [None, spoil(change)]  # type: ignore[list-item] # the first one is the probe's
    reply = sample(server, "vllm")
    assert reply.tokens == [13, 14, 15, 16, 17, EOS]
    assert reply.timing.retries == 1


def test_another_prompt_than_ours_is_never_accepted() -> None:
    server = TokenServer(answer)

    def changed(payload: dict[str, Any]) -> dict[str, Any]:
        payload["prompt_token_ids"] = [1, *payload["prompt_token_ids"]]
        return payload

    server.broken = [None, *[changed] * 9]  # type: ignore[list-item]
    with pytest.raises(ServerUnavailable, match="another prompt"):
        sample(server, "vllm")


def test_a_reply_that_the_server_broke_off_is_gone_on_with() -> None:
    server = TokenServer(answer)
    server.cut = [2, 0, 1]
    reply = sample(server, "vllm", max_tokens=20)
    assert reply.tokens == [13, 14, 15, 16, 17, EOS] and reply.finish_reason == "stop"
    assert server.prompts == [PROMPT, [*PROMPT, 13, 14], [*PROMPT, 13, 14], [*PROMPT, 13, 14, 15]]
    assert [r["sampling_params"]["max_tokens"] for r in server.requests[1:]] == [20, 18, 18, 17]
    assert [(s.start, s.end) for s in reply.policy_versions] == [(0, 2), (2, 2), (2, 3), (3, 6)]
    assert reply.usage.completion_tokens == 6 and reply.prompt_tokens == PROMPT


def test_a_reply_that_was_broken_off_where_the_context_ends_is_complete() -> None:
    server = TokenServer(answer, context=5)
    server.cut = [2]
    reply = sample(server, "vllm", max_tokens=None)
    assert (reply.tokens, reply.finish_reason) == ([13, 14], "length")


def test_a_server_that_breaks_off_for_ever_is_a_failure() -> None:
    server = TokenServer(answer)
    server.cut = [0] * 100
    with pytest.raises(ServerUnavailable, match="broke a reply off"):
        sample(server, "vllm")


def test_cancelling_ends_the_request_at_the_server() -> None:
    server = TokenServer(answer)

    async def work(manager: ServerManager) -> int:
        server.delay = 60
        sampler = PooledSampler(manager, "train", {})
        task = asyncio.ensure_future(sampler.sample(PROMPT, stop_token_ids=[EOS], max_tokens=9))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        end = time.monotonic() + 10
        while not server.cancelled and time.monotonic() < end:
            await asyncio.sleep(0.02)
        assert manager.servers[0].slots.in_flight["train"] == 0
        return server.cancelled

    assert using(server, "vllm", work) == 1


def test_one_conversation_stays_on_one_server_and_moves_when_it_fails() -> None:
    async def run() -> tuple[list[int], str | None, str]:
        servers = [TokenServer(answer), TokenServer(answer)]
        for server in servers:
            await server.start()
        async with closing(manager_of(*servers, server_type="vllm")) as manager:
            sampler = PooledSampler(manager, "train", {})
            for _ in range(4):
                await sampler.sample(PROMPT, stop_token_ids=[EOS], max_tokens=9)
            counts = sorted(len(server.prompts) for server in servers)
            first = next(server for server in servers if server.prompts)
            other = next(server for server in servers if server is not first)
            await first.stop()
            reply = await sampler.sample(PROMPT, stop_token_ids=[EOS], max_tokens=9)
            await sampler.close()
            assert all(server.slots.sessions == 0 for server in manager.servers)
            await other.stop()
            return counts, reply.server, f"127.0.0.1:{other.port}"

    counts, served, other = asyncio.run(run())
    assert counts == [0, 4]
    assert served == other


def test_which_sampling_the_log_probabilities_leave_out_is_known() -> None:
    async def work(manager: ServerManager) -> list[Any]:
        found = [
            manager.unaccounted({"temperature": 1.0}),
            manager.unaccounted({"temperature": 0.7, "extra_body": {"top_k": 20}}),
            manager.unaccounted(
                {"temperature": 1.0, "extra_body": {"logit_bias": {"5": 9}, "min_tokens": 0}}
            ),
        ]
        return [sorted(next(iter(names.values()))) if names else None for names in found]

    assert using(TokenServer(answer, raw=True), "vllm", work) == [
        None,
        ["temperature", "top_k"],
        ["logit_bias"],
    ]
    assert using(TokenServer(answer), "vllm", work) == [None, None, None]


def answers(server: TokenServer) -> list[dict[str, Any]]:
    """A good answer of each endpoint."""
    ask = TokenAsk(PROMPT, stop_token_ids=[EOS], max_tokens=3)
    bodies = [wire.body("m", ask) for wire in VLLM_WIRES]
    endpoints = (server._generate, server._completions, server._example)
    return [endpoint(body) for endpoint, body in zip(endpoints, bodies, strict=True)]


@pytest.mark.parametrize("index", range(len(VLLM_WIRES)))
@given(data=st.data())
def test_a_reply_that_is_spoiled_anywhere_is_malformed_or_still_whole(
    index: int, data: st.DataObject
) -> None:
    payload = spoilt(data, answers(TokenServer(answer))[index])
    try:
        reply = VLLM_WIRES[index].read(payload, TokenAsk(PROMPT))
    except MalformedReply:
        return
    assert len(reply.tokens) == len(reply.logprobs)


def test_the_generate_endpoint_is_preferred() -> None:
    server = TokenServer(answer)

    async def work(manager: ServerManager) -> Any:
        return manager.servers[0].token_endpoint

    endpoint = using(server, "vllm", work)
    assert isinstance(endpoint.wire, VLLMGenerate)
    assert endpoint.context_length == 512 and endpoint.model_path == "some/model"
