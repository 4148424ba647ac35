"""Sampling tokens over SGLang's ``/generate``, from a server of its protocol (SGLang needs a GPU)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import BadRequest, ConfigError, ContextOverflow, ServerUnavailable
from environments.inference.replies import MalformedReply
from environments.inference.server_manager import ServerManager
from environments.inference.sglang import SGLangGenerate
from environments.inference.token_wire import TokenAsk
from environments.records import PolicySpan
from tests.inference.token_calls import EOS, PROMPT, answer, sample, spoilt, using
from tests.servers.token_server import TokenServer


def sglang(**options: Any) -> TokenServer:
    return TokenServer(answer, offers=["/generate"], **options)


def test_ids_and_log_probabilities_come_with_the_policy_version() -> None:
    server = sglang()
    server.version = "12"
    reply = sample(server, "sglang")
    assert reply.tokens == [13, 14, 15, 16, 17, EOS]
    assert reply.logprobs == [-(1.0 + t % 7) for t in reply.tokens]
    assert (reply.finish_reason, reply.stop_token) == ("stop", EOS)
    assert reply.policy_versions == [PolicySpan(0, 6, "12")]
    body = server.requests[-1]
    assert body["input_ids"] == PROMPT and body["return_logprob"] is True
    assert body["sampling_params"]["skip_special_tokens"] is False
    assert body["sampling_params"]["no_stop_trim"] is True
    assert body["sampling_params"]["max_new_tokens"] == 50


def test_a_reply_at_its_limit_and_a_seed_that_it_does_not_know() -> None:
    reply = sample(sglang(), "sglang", max_tokens=3, seed=4)
    assert (reply.tokens, reply.finish_reason, reply.stop_token) == ([13, 14, 15], "length", None)


def test_its_context_has_one_token_less_than_it_says() -> None:
    reply = sample(sglang(context=8), "sglang", max_tokens=None)
    assert len(reply.tokens) == 4
    with pytest.raises(ContextOverflow):
        sample(sglang(context=8), "sglang", prompt=[1] * 7)


def test_an_abort_is_gone_on_with_and_an_abort_that_is_an_error_is_none() -> None:
    server = sglang()
    server.cut = [2]
    assert sample(server, "sglang").tokens == [13, 14, 15, 16, 17, EOS]

    def aborted(status: int, message: str) -> Any:
        def change(payload: dict[str, Any]) -> dict[str, Any]:
            reason = {"type": "abort", "message": message, "status_code": status}
            payload["meta_info"]["finish_reason"] = reason
            return payload

        return change

    server = sglang()
    server.broken = [None, aborted(503, 'the "queue" is full')]  # type: ignore[list-item]
    assert sample(server, "sglang").timing.retries == 1
    server = sglang()
    server.broken = [None, aborted(400, "bad input")]  # type: ignore[list-item]
    with pytest.raises(BadRequest, match="bad input"):
        sample(server, "sglang")


def test_ids_that_contradict_the_log_probabilities_are_asked_for_again() -> None:
    def changed(payload: dict[str, Any]) -> dict[str, Any]:
        payload["output_ids"] = payload["output_ids"][:-1]
        return payload

    server = sglang()
    server.broken = [None, changed]  # type: ignore[list-item]
    assert sample(server, "sglang").timing.retries == 1
    server = sglang()
    server.broken = [None, *[changed] * 9]  # type: ignore[list-item]
    with pytest.raises(ServerUnavailable, match="different tokens"):
        sample(server, "sglang")


def test_a_stop_token_in_the_place_of_what_could_not_be_sampled_is_none() -> None:
    def changed(payload: dict[str, Any]) -> dict[str, Any]:
        payload["meta_info"]["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
        return payload

    server = sglang()
    server.broken = [None, changed]  # type: ignore[list-item]
    assert sample(server, "sglang").timing.retries == 1


def test_a_server_without_log_probabilities_is_refused() -> None:
    server = sglang()
    server.broken = [lambda payload: {"text": "hello", "meta_info": {"completion_tokens": 1}}]
    with pytest.raises(ConfigError, match="output_token_logprobs"):
        sample(server, "sglang")


def test_its_log_probabilities_know_of_temperature_but_not_of_filters() -> None:
    async def work(manager: ServerManager) -> list[str]:
        found = manager.unaccounted({"temperature": 0.5, "top_p": 0.9})
        return sorted(next(iter(found.values())))

    assert using(sglang(), "sglang", work) == ["top_p"]
    assert using(sglang(raw=True), "sglang", work) == ["temperature", "top_p"]


@given(data=st.data())
def test_a_reply_that_is_spoiled_anywhere_is_refused_or_still_whole(data: st.DataObject) -> None:
    wire, ask = SGLangGenerate(), TokenAsk(PROMPT, stop_token_ids=[EOS], max_tokens=3)
    payload = spoilt(data, sglang()._sglang(wire.body("m", ask)))
    try:
        reply = wire.read(payload, ask)
    except MalformedReply:
        return
    assert len(reply.tokens) == len(reply.logprobs)
