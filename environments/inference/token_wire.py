"""What the raw token endpoints of model servers have in common: what is asked, and honest answers.

A ``TokenWire`` is one such endpoint: it writes the request and reads the reply. An answer that a trainer
must not learn from (missing ids, made-up log-probabilities, a stop token that was left out) is a
``MalformedReply`` and never a shorter or emptier sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from environments.inference.replies import MalformedReply
from environments.inference.token_sampling import TokenReply
from environments.records import PolicySpan

NO_LOGPROB = -9999.0
"""What vLLM writes where it has no log-probability."""

TOLERANCE = 1e-3
"""How far above zero rounding may lift a log-probability."""

NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sent where the caller says nothing: servers fill gaps from the model's ``generation_config``, and then
what is sampled is no longer what the log-probabilities say."""

_CONSTRAINTS = frozenset({"allowed_token_ids", "bad_words", "logit_bias", "min_tokens"})

SHAPING = frozenset(NEUTRAL) | {"temperature"} | _CONSTRAINTS
"""Parameters that change the distribution that is sampled from."""

_OF_MESSAGES = frozenset(
    {
        "chat_template",
        "chat_template_kwargs",
        "max_completion_tokens",
        "max_reasoning_tokens",
        "n",
        "parallel_tool_calls",
        "provider",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
        "usage",
    }
)
"""Parameters of chat calls that mean nothing once the prompt is made of tokens."""


@dataclass(frozen=True, slots=True)
class TokenAsk:
    """What is asked of a server: continue ``prompt``. ``top`` is how many likely tokens come with each."""

    prompt: Sequence[int]
    stop_token_ids: Sequence[int] = ()
    max_tokens: int | None = None
    temperature: float = 1.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    top: int = 0

    @property
    def shaping(self) -> frozenset[str]:
        """Those of ``SHAPING`` that are not neutral here."""
        neutral = {**NEUTRAL, "temperature": 1.0}
        given = self.sampling()
        found = {name for name in neutral if given[name] != neutral[name]}
        found |= {name for name in _CONSTRAINTS if given.get(name)}
        return frozenset(found - {"top_k"} if given["top_k"] in (0, -1) else found)

    def sampling(self) -> dict[str, Any]:
        """Sampling parameters by the names that vLLM and SGLang share."""
        return {**NEUTRAL, **self.parameters, "temperature": self.temperature}


class TokenWire(Protocol):
    """One raw endpoint of one kind of server."""

    path: ClassVar[str]
    """Where it is, from the root of the server."""
    spare: ClassVar[int]
    """Tokens of the context that it does not let us use."""

    def body(self, model: str, ask: TokenAsk) -> dict[str, Any]:
        """The JSON to send."""

    def read(self, payload: Mapping[str, Any], ask: TokenAsk) -> TokenReply:
        """The reply. Raises ``MalformedReply``."""

    def probe(self) -> TokenAsk:
        """A question for one token, whose answer shows what the log-probabilities account for."""

    def accounted(self, payload: Mapping[str, Any], reply: TokenReply) -> frozenset[str]:
        """Which of ``SHAPING`` the log-probabilities account for, from the answer to ``probe``."""


def own_parameters(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that a raw endpoint knows; ``extra_body`` stands above the others."""
    merged = {**sampling, **(sampling.get("extra_body") or {})}
    return {
        name: value
        for name, value in merged.items()
        if value is not None and name not in _OF_MESSAGES and name != "extra_body"
    }


def checked_reply(
    ask: TokenAsk,
    tokens: Any,
    logprobs: Sequence[Any],
    finish_reason: str,
    *,
    matched: Any = None,
    prompt_tokens: Any = None,
    policy_versions: Sequence[PolicySpan] = (),
    **fields: Any,
) -> TokenReply:
    """A reply to ``ask`` whose parts fit each other and what was asked. ``matched`` is the stop token or
    text that the server names.

    Raises ``MalformedReply``.
    """
    ids = token_ids(tokens, "token ids")
    if len(logprobs) != len(ids):
        raise MalformedReply(f"{len(ids)} token ids but {len(logprobs)} log-probabilities")
    if finish_reason not in ("stop", "length", "abort"):
        raise MalformedReply(f"unknown finish_reason {finish_reason!r}")
    stop_token = None
    if finish_reason == "stop" and not isinstance(matched, str):
        if not ids or (_is_id(matched) and ids[-1] != matched):
            raise MalformedReply("the stop token is missing at the end of the token ids")
        stop_token = ids[-1]
    _check_against(ask, ids, matched)
    if prompt_tokens is not None and token_ids(prompt_tokens, "prompt token ids") != list(ask.prompt):
        raise MalformedReply(
            f"the server saw another prompt: {len(prompt_tokens)} tokens instead of {len(ask.prompt)}"
        )
    return TokenReply(
        tokens=ids,
        logprobs=[_checked_logprob(value) for value in logprobs],
        finish_reason=finish_reason,
        stop_token=stop_token,
        prompt_tokens=prompt_tokens,
        policy_versions=list(policy_versions),
        **fields,
    )


def _check_against(ask: TokenAsk, ids: Sequence[int], matched: Any) -> None:
    """Raise ``MalformedReply`` for what cannot come of ``ask``."""
    if ask.max_tokens is not None and len(ids) > ask.max_tokens:
        raise MalformedReply(f"{len(ids)} token ids where {ask.max_tokens} were asked for")
    if not ask.parameters.get("ignore_eos") and not set(ask.stop_token_ids).isdisjoint(ids[:-1]):
        raise MalformedReply("the reply goes on behind a stop token")
    if isinstance(matched, str) and not (ask.parameters.get("stop") or ask.parameters.get("stop_regex")):
        # SGLang says so of a token that it could not sample, and puts a stop token in its place.
        raise MalformedReply(f"the server stopped at {matched[:80]!r}, which was not asked for")


def token_ids(value: Any, what: str) -> list[int]:
    """A list of token ids. Raises ``MalformedReply``."""
    if not isinstance(value, list) or not all(_is_id(entry) for entry in value):
        raise MalformedReply(f"the reply has no {what}")
    return value


def entries(value: Any, what: str) -> list[dict[str, Any]]:
    """A list of objects. Raises ``MalformedReply``."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise MalformedReply(f"the reply has no {what}")
    return value


def part(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object inside another; empty where it is missing or something else."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def version_spans(value: Any, length: int) -> list[PolicySpan]:
    """Spans ``[start, end)`` of a reply of that many tokens and the policy version that sampled them."""
    spans = []
    for entry in entries(value, "policy versions") if value is not None else []:
        start: Any = entry.get("start")
        end: Any = entry.get("end")
        if not (_is_id(start) and _is_id(end) and start <= end <= length):
            raise MalformedReply(f"a span of policy versions does not fit: {entry!r:.100}")
        spans.append(PolicySpan(start, end, str(entry.get("version"))))
    return spans


def _checked_logprob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MalformedReply(f"a log-probability is {value!r}")
    if value <= NO_LOGPROB or value > TOLERANCE:
        raise MalformedReply(f"a log-probability is {value!r}, which none can be")
    return min(float(value), 0.0)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
