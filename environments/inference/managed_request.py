"""One call of a managed session: what of it is for the chat template, and what for the sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.dialects.base import Dialect
from environments.errors import BadRequest
from environments.inference.managed_history import tools_key

_OURS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "messages",
        "return_assistant_tokens_mask",
        "return_dict",
        "tokenize",
        "tools",
    }
)
"""What the session itself gives to the chat template, or does in its place."""

_ONLY: dict[str, tuple[Any, ...]] = {"tool_choice": ("auto",), "response_format": ({"type": "text"},)}
"""Parameters of chat calls that could only be had by changing what is sampled, and what is no change."""


@dataclass(frozen=True, slots=True)
class ManagedRequest:
    """One call, with the parameters that are not for the sampler taken out."""

    dialect: Dialect
    context: str
    n: int
    max_tokens: int | None
    stop_token_ids: tuple[int, ...]
    sampling: dict[str, Any]


def read_request(
    dialect: Dialect, tools: Sequence[Mapping[str, Any]] | None, sampling: Mapping[str, Any]
) -> ManagedRequest:
    """The call of ``sampling``. Raises ``BadRequest``."""
    given = {name: value for name, value in sampling.items() if value is not None}
    given |= _mapping(given, "extra_body")
    options = _mapping(given, "chat_template_kwargs")
    if taken := _OURS & options.keys():
        raise BadRequest(f"chat_template_kwargs cannot have {', '.join(sorted(taken))}: the session's own")
    if "reasoning_effort" in given:
        options.setdefault("reasoning_effort", given.pop("reasoning_effort"))
    for name, same in _ONLY.items():
        value = given.pop(name, same[0])
        if value not in same:
            raise BadRequest(f"{name} {value!r} cannot be had with exact tokens, only {same[0]!r}")
    limits = [_integer(given, name) for name in ("max_tokens", "max_completion_tokens") if name in given]
    stops = given.pop("stop_token_ids", ())
    if not isinstance(stops, list | tuple) or not all(type(stop) is int for stop in stops):
        raise BadRequest(f"stop_token_ids {stops!r} is no list of token ids")
    return ManagedRequest(
        dialect=dialect.with_options(options),
        context=tools_key(tools, options),
        n=_integer(given, "n") if "n" in given else 1,
        max_tokens=min(limits, default=None),
        stop_token_ids=tuple(dict.fromkeys((*dialect.stop_token_ids, *stops))),
        sampling=given,
    )


def _mapping(given: dict[str, Any], name: str) -> dict[str, Any]:
    value = given.pop(name, None)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadRequest(f"{name} {value!r} is no mapping of names to values")
    return dict(value)


def _integer(given: dict[str, Any], name: str) -> int:
    value = given.pop(name)
    if type(value) is not int or value < 1:
        raise BadRequest(f"{name} must be a whole number above 0, not {value!r}")
    return value
