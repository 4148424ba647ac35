"""A ``TokenSampler`` over the servers of a manager, with retries, limits and fail-over as for chat.

One sampler belongs to one conversation and stays with one server, so that its prefix cache is used. A
reply that the server broke off itself (to load new weights, say) is gone on with: what was sampled stays,
with the policy version that sampled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from environments.errors import ConfigError, ContextOverflow, ServerUnavailable
from environments.inference.pinning import Pin
from environments.inference.pool import Split
from environments.inference.token_sampling import TokenReply
from environments.inference.token_wire import TokenAsk, own_parameters
from environments.records import PolicySpan
from environments.waiting import waiting

if TYPE_CHECKING:
    from environments.inference.model_server import ModelServer
    from environments.inference.server_manager import ServerManager
    from environments.inference.transport import Transport

ABORTS = 20
"""So often a reply may be broken off before that counts as a failure of the server."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Token ids to continue, over whichever endpoint the server has for it."""

    ask: TokenAsk

    async def prepare(self, server: ModelServer, transport: Transport, budget: float) -> None:
        """Find the endpoint, once per server."""
        await server.find_token_endpoint(transport, budget)

    def url(self, server: ModelServer) -> str:
        """Where the request goes."""
        return f"{server.root}{server.known_token_endpoint.wire.path}"

    def body(self, server: ModelServer) -> dict[str, Any]:
        """The JSON to send, for no more tokens than the context has room for. Raises ``ContextOverflow``."""
        endpoint, ask = server.known_token_endpoint, self.ask
        limit = ask.max_tokens
        if endpoint.context_length is not None:
            room = endpoint.context_length - endpoint.wire.spare - len(ask.prompt)
            if room <= 0:
                raise ContextOverflow(
                    f"{server.label}: {len(ask.prompt)} tokens leave no room for a reply in a context of "
                    f"{endpoint.context_length}"
                )
            limit = room if limit is None else min(room, limit)
        if limit is None:
            raise ConfigError(
                f"{server.label} does not say how long its context is: set openai.context_length, or "
                "env.max_token_length to bound a reply"
            )
        return endpoint.wire.body(server.config.model_name, replace(ask, max_tokens=limit))

    def read(self, payload: dict[str, Any], server: ModelServer) -> TokenReply:
        """The reply. Raises ``MalformedReply``."""
        return server.known_token_endpoint.wire.read(payload, self.ask)


class PooledSampler:
    """Samples for one conversation. ``defaults`` stand under the parameters of each call."""

    def __init__(self, manager: ServerManager, split: Split, defaults: Mapping[str, Any]) -> None:
        self._manager = manager
        self._split = split
        self._defaults = dict(defaults)
        self._pin = Pin(manager, split)
        self.model = manager.model

    @property
    def server(self) -> str | None:
        """Label of the server that the conversation is held to."""
        return self._pin.label

    async def sample(
        self,
        prompt: Sequence[int],
        *,
        stop_token_ids: Sequence[int],
        max_tokens: int | None,
        temperature: float = 1.0,
        **sampling: Any,
    ) -> TokenReply:
        """See ``TokenSampler``. Raises ``ModelError``."""
        parameters = {k: v for k, v in sampling.items() if v is not None}
        ask = TokenAsk(
            prompt=list(prompt),
            stop_token_ids=tuple(stop_token_ids),
            max_tokens=max_tokens,
            temperature=temperature,
            parameters=own_parameters({**self._defaults, **parameters}),
        )
        reply, breaks = await self._ask(ask), 0
        while reply.finish_reason == "abort":
            left = None if max_tokens is None else max_tokens - len(reply.tokens)
            if left is not None and left <= 0:
                return replace(reply, finish_reason="length")
            breaks += 1
            if breaks > ABORTS:
                raise ServerUnavailable(f"{reply.server}: the server broke a reply off {breaks} times")
            pause = self._manager.pause_after_abort(breaks)
            with waiting():
                await asyncio.sleep(pause)
            try:
                rest = await self._ask(replace(ask, prompt=[*prompt, *reply.tokens], max_tokens=left))
            except ContextOverflow:
                return replace(reply, finish_reason="length")
            reply = _joined(reply, rest, pause)
        return reply

    async def close(self) -> None:
        """Let go of the server."""
        self._pin.release()

    async def _ask(self, ask: TokenAsk) -> TokenReply:
        reply = await self._manager.sample(TokenRequest(ask), self._split, self._pin.server())
        self._pin.answered(reply.server)
        return reply


def _joined(first: TokenReply, rest: TokenReply, pause: float) -> TokenReply:
    """Two parts of one reply, with ``pause`` seconds between them; times and usage are those of both."""
    shift = len(first.tokens)
    spans = [PolicySpan(s.start + shift, s.end + shift, s.version) for s in rest.policy_versions]
    usage = replace(first.usage)
    usage.completion_tokens += rest.usage.completion_tokens
    usage.add_cost(rest.usage.cost)
    return replace(
        rest,
        tokens=first.tokens + rest.tokens,
        logprobs=first.logprobs + rest.logprobs,
        prompt_tokens=first.prompt_tokens,
        policy_versions=first.policy_versions + spans,
        usage=usage,
        timing=replace(
            rest.timing,
            started_at=first.timing.started_at,
            first_token_at=first.timing.first_token_at,
            retries=first.timing.retries + rest.timing.retries,
            waiting=first.timing.waiting + pause + rest.timing.waiting,
        ),
    )
