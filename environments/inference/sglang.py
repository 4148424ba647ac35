"""SGLang's ``POST /generate`` with ``input_ids``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from environments.inference.faults import error_from_reply
from environments.inference.replies import MalformedReply
from environments.inference.token_sampling import TokenReply
from environments.inference.token_wire import SHAPING, TokenAsk, checked_reply, token_ids
from environments.records import PolicySpan, Usage

_UNKNOWN = frozenset({"seed", "logprobs", "top_logprobs"})
"""Parameters that its ``sampling_params`` refuse."""

_FILTERS = frozenset({"top_p", "top_k", "min_p"})
"""Applied after the log-probabilities have been taken."""

_HOT = 1e4
"""A temperature at which all tokens are alike, for log-probabilities that know of it."""

_CANDIDATES = 5
_EVEN = 0.02
"""Nats between the likeliest and the least likely candidate below which a distribution counts as even."""


class SGLangGenerate:
    """The native endpoint: everything is read from the ids, never from ``text``, which lacks stop tokens."""

    path: ClassVar[str] = "/generate"
    spare: ClassVar[int] = 1

    def body(self, model: str, ask: TokenAsk) -> dict[str, Any]:
        """See ``TokenWire``."""
        parameters = {name: value for name, value in ask.sampling().items() if name not in _UNKNOWN}
        parameters |= {
            "stop_token_ids": list(ask.stop_token_ids),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
        }
        if ask.max_tokens is not None:
            parameters["max_new_tokens"] = ask.max_tokens
        body = {
            "input_ids": list(ask.prompt),
            "sampling_params": parameters,
            "return_logprob": True,
            "logprob_start_len": -1,
            "return_text_in_logprobs": False,
        }
        if ask.top:
            body["top_logprobs_num"] = ask.top
        return body

    def read(self, payload: Mapping[str, Any], ask: TokenAsk) -> TokenReply:
        """See ``TokenWire``. Raises what an abort with a status means, too."""
        meta = _meta(payload)
        found = _output_logprobs(meta)
        tokens = [entry[1] for entry in found]
        if "output_ids" in payload and token_ids(payload["output_ids"], "output_ids") != tokens:
            raise MalformedReply("output_ids and output_token_logprobs are of different tokens")
        reason, matched = _finish_reason(meta.get("finish_reason"))
        version = meta.get("weight_version")
        spans = [PolicySpan(0, len(tokens), str(version))] if version is not None and tokens else []
        return checked_reply(
            ask,
            tokens,
            [entry[0] for entry in found],
            reason,
            matched=matched,
            policy_versions=spans,
            usage=Usage(
                prompt_tokens=_count(meta.get("prompt_tokens"), len(ask.prompt)),
                cached_tokens=_count(meta.get("cached_tokens"), 0),
                completion_tokens=len(tokens),
            ),
        )

    def probe(self) -> TokenAsk:
        """See ``TokenWire``."""
        return TokenAsk((0,), max_tokens=1, temperature=_HOT, top=_CANDIDATES)

    def accounted(self, payload: Mapping[str, Any], reply: TokenReply) -> frozenset[str]:
        """Temperature and penalties, unless the server was told to give the model's own."""
        top = _meta(payload).get("output_top_logprobs")
        rivals = top[0] if isinstance(top, list) and top and isinstance(top[0], list) else []
        values = [*reply.logprobs[:1], *(float(entry[0]) for entry in rivals)]
        even = len(values) > 1 and max(values) - min(values) < _EVEN
        return SHAPING - _FILTERS if even else frozenset()


SGLANG_WIRES = (SGLangGenerate(),)


def _meta(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = payload.get("meta_info")
    if not isinstance(meta, dict):
        raise MalformedReply("the reply has no meta_info")
    return meta


def _output_logprobs(meta: Mapping[str, Any]) -> list[Any]:
    """``[log-probability, token id, text]`` of each sampled token."""
    found = meta.get("output_token_logprobs")
    if found is None and meta.get("completion_tokens") == 0:
        return []
    if not isinstance(found, list) or not all(isinstance(e, list) and len(e) >= 2 for e in found):
        raise MalformedReply("the reply has no output_token_logprobs")
    return found


def _finish_reason(reason: Any) -> tuple[str, Any]:
    """``stop``, ``length`` or ``abort``, and what matched. Raises for an abort that is an error."""
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind != "abort" or not isinstance(reason, dict):
        return str(kind), reason.get("matched") if isinstance(reason, dict) else None
    message, status = str(reason.get("message") or "aborted"), reason.get("status_code")
    if isinstance(status, int) and status >= 400:
        raise error_from_reply("sglang", status, orjson.dumps({"message": message}))
    return "abort", None


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
