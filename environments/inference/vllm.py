"""vLLM's ways to continue token ids.

- ``/inference/v1/generate``: tokens in, tokens out, with policy versions; the server must be started with
  ``--enable-scale-out`` or ``--tokens-only``;
- ``/v1/completions`` with ``return_token_ids`` (vLLM 0.10.2 and later);
- ``/generate`` of the server that came with Atropos' example trainer. vLLM's own demonstration server
  has the same path, but gives text without ids, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from environments.inference.replies import MalformedReply, read_usage
from environments.inference.token_sampling import TokenReply
from environments.inference.token_wire import (
    SHAPING,
    TokenAsk,
    checked_reply,
    entries,
    part,
    token_ids,
    version_spans,
)
from environments.records import Usage

_ID_TEXT = "token_id:"
"""How older servers write an id in a log-probability's ``token``."""


_CERTAIN = 1e-4
"""Log-probabilities above minus this are those of a certainty."""


class _VLLMWire:
    """What the endpoints share."""

    def probe(self) -> TokenAsk:
        """See ``TokenWire``."""
        return TokenAsk((0,), max_tokens=1, parameters={"top_k": 1})

    def accounted(self, payload: Mapping[str, Any], reply: TokenReply) -> frozenset[str]:
        """All or nothing, by ``--logprobs-mode``: of one candidate the probability is 1, unless it is raw."""
        return SHAPING if reply.logprobs and reply.logprobs[0] > -_CERTAIN else frozenset()


class VLLMGenerate(_VLLMWire):
    """``POST /inference/v1/generate``."""

    path: ClassVar[str] = "/inference/v1/generate"
    spare: ClassVar[int] = 0

    def body(self, model: str, ask: TokenAsk) -> dict[str, Any]:
        """See ``TokenWire``."""
        parameters: dict[str, Any] = {
            **ask.sampling(),
            "stop_token_ids": list(ask.stop_token_ids),
            "logprobs": ask.top,
        }
        if ask.max_tokens is not None:
            parameters["max_tokens"] = ask.max_tokens
        return {
            "model": model,
            "token_ids": list(ask.prompt),
            "sampling_params": parameters,
            "return_token_ids": True,
        }

    def read(self, payload: Mapping[str, Any], ask: TokenAsk) -> TokenReply:
        """See ``TokenWire``."""
        choice = _only_choice(payload)
        tokens = token_ids(choice.get("token_ids"), "token ids")
        content = self._content(choice)
        for token, entry in zip(tokens, content, strict=False):
            if _id_of(entry) != token:
                raise MalformedReply("the log-probabilities are of other tokens")
        return checked_reply(
            ask,
            tokens,
            [entry.get("logprob") for entry in content],
            _finish_reason(choice),
            matched=choice.get("stop_reason"),
            prompt_tokens=payload.get("prompt_token_ids"),
            policy_versions=version_spans(choice.get("weight_versions"), len(tokens)),
            usage=_usage(payload, ask, tokens),
            model=str(payload.get("model") or ""),
        )

    def _content(self, choice: Mapping[str, Any]) -> list[dict[str, Any]]:
        return entries(part(choice, "logprobs").get("content"), "log-probabilities")


class VLLMCompletions(_VLLMWire):
    """``POST /v1/completions`` with token ids both ways."""

    path: ClassVar[str] = "/v1/completions"
    spare: ClassVar[int] = 0

    def body(self, model: str, ask: TokenAsk) -> dict[str, Any]:
        """See ``TokenWire``."""
        return {
            "model": model,
            "prompt": list(ask.prompt),
            **ask.sampling(),
            "stop_token_ids": list(ask.stop_token_ids),
            # Left out, 16 would be meant.
            **({"max_tokens": ask.max_tokens} if ask.max_tokens is not None else {}),
            "logprobs": ask.top,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "add_special_tokens": False,
        }

    def read(self, payload: Mapping[str, Any], ask: TokenAsk) -> TokenReply:
        """See ``TokenWire``."""
        choice = _only_choice(payload)
        tokens = token_ids(choice.get("token_ids"), "token ids")
        logprobs = part(choice, "logprobs").get("token_logprobs")
        if not isinstance(logprobs, list):
            raise MalformedReply("the reply has no log-probabilities")
        return checked_reply(
            ask,
            tokens,
            logprobs,
            _finish_reason(choice),
            matched=choice.get("stop_reason"),
            prompt_tokens=choice.get("prompt_token_ids"),
            usage=_usage(payload, ask, tokens),
            model=str(payload.get("model") or ""),
        )


class ExampleServerGenerate(_VLLMWire):
    """``POST /generate`` of the server of Atropos' example trainer."""

    path: ClassVar[str] = "/generate"
    spare: ClassVar[int] = 0

    def body(self, model: str, ask: TokenAsk) -> dict[str, Any]:
        """See ``TokenWire``."""
        return {
            "prompt": {"prompt_token_ids": list(ask.prompt)},
            **ask.sampling(),
            "stop_token_ids": list(ask.stop_token_ids),
            **({"max_tokens": ask.max_tokens} if ask.max_tokens is not None else {}),
            "logprobs": ask.top,
            "n": 1,
        }

    def read(self, payload: Mapping[str, Any], ask: TokenAsk) -> TokenReply:
        """See ``TokenWire``."""
        positions = self._positions(payload)
        given = payload.get("token_ids")
        # Older versions give no ids but as keys of the log-probabilities, the sampled one first.
        tokens = (
            token_ids(given[0], "token ids")
            if isinstance(given, list) and given
            else [next(iter(position)) for position in positions]
        )
        if len(tokens) != len(positions) or any(t not in p for t, p in zip(tokens, positions, strict=True)):
            raise MalformedReply("the log-probabilities are of other tokens")
        reasons = payload.get("finish_reasons")
        if not isinstance(reasons, list) or not reasons:
            raise MalformedReply("the reply has no finish_reasons")
        return checked_reply(
            ask,
            tokens,
            [position[token] for token, position in zip(tokens, positions, strict=True)],
            str(reasons[0]),
            prompt_tokens=payload.get("prompt_token_ids"),
            usage=_usage(payload, ask, tokens),
        )

    def _positions(self, payload: Mapping[str, Any]) -> list[dict[int, Any]]:
        """Per position the log-probabilities by token id."""
        logprobs = payload.get("logprobs")
        if not isinstance(logprobs, list) or not logprobs or not isinstance(logprobs[0], list):
            raise MalformedReply(
                "the reply has neither token ids nor log-probabilities (vLLM's demonstration server gives "
                "text only)"
            )
        return [_by_id(position) for position in logprobs[0]]


VLLM_WIRES = (VLLMGenerate(), VLLMCompletions(), ExampleServerGenerate())
"""The best one first."""


def _only_choice(payload: Mapping[str, Any]) -> dict[str, Any]:
    choices = entries(payload.get("choices"), "choices")
    if len(choices) != 1:
        raise MalformedReply(f"the reply has {len(choices)} choices instead of one")
    return choices[0]


def _finish_reason(choice: Mapping[str, Any]) -> str:
    reason = choice.get("finish_reason")
    # vLLM ends what repeats itself for ever, where that is switched on; nothing was left out then.
    return "length" if reason == "repetition" else str(reason)


def _id_of(entry: Mapping[str, Any]) -> int | None:
    """The id in a log-probability's entry: a number, or ``token_id:N`` of older servers."""
    number = entry.get("token_id")
    if isinstance(number, int):
        return number
    text = entry.get("token")
    digits = text.removeprefix(_ID_TEXT) if isinstance(text, str) else ""
    return int(digits) if text != digits and digits.isdecimal() else None


def _by_id(position: Any) -> dict[int, Any]:
    """One position of the example server: ``[{"17": -0.5, ...}]``, or without the list."""
    entry = position[0] if isinstance(position, list) and position else position
    if not isinstance(entry, dict) or not entry or not all(str(key).isdecimal() for key in entry):
        raise MalformedReply("a log-probability is not given by token id")
    return {int(key): value for key, value in entry.items()}


def _usage(payload: Mapping[str, Any], ask: TokenAsk, tokens: list[int]) -> Usage:
    """What the server says, else what is known anyway."""
    usage = read_usage(payload.get("usage"))
    usage.prompt_tokens = usage.prompt_tokens or len(ask.prompt)
    usage.completion_tokens = len(tokens)
    return usage
