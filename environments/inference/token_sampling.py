"""Sampling token by token: what a trainer needs of a model server, whatever the server speaks.

A ``TokenSampler`` gets the ids of a prompt and gives the ids that the model sampled, with the
log-probability of each. It knows nothing of messages; a managed session stands above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from environments.inference.types import CallTiming
from environments.records import PolicySpan, Usage


@dataclass(slots=True)
class TokenReply:
    """What the model sampled after a prompt.

    ``tokens`` includes the stop token that ended them, where one did. ``logprobs`` has one natural
    logarithm per token, of the distribution that it was sampled from. ``finish_reason`` is ``stop``,
    ``length`` or ``abort``. ``prompt_tokens`` is the prompt as the server saw it, None where it does
    not tell. The offsets of ``policy_versions`` count within ``tokens``.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    stop_token: int | None = None
    prompt_tokens: list[int] | None = None
    policy_versions: list[PolicySpan] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    timing: CallTiming = field(default_factory=CallTiming)
    server: str | None = None
    model: str = ""


class TokenSampler(Protocol):
    """Whatever continues a sequence of token ids."""

    async def sample(
        self,
        prompt: Sequence[int],
        *,
        stop_token_ids: Sequence[int],
        max_tokens: int | None,
        temperature: float = 1.0,
        **sampling: Any,
    ) -> TokenReply:
        """The model's continuation of ``prompt``, until a stop token or ``max_tokens``.

        ``max_tokens`` None means as many as the context has room for. Raises ``ModelError``;
        ``ContextOverflow`` where the prompt leaves no room.
        """
