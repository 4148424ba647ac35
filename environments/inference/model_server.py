"""One model server: its configuration, its slots, and what is learnt about it while it is used."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from environments.config import APIServerConfig
from environments.errors import AccessDenied, BadRequest, ContextOverflow, ModelError, ServerUnavailable
from environments.inference.faults import ModelNotFound, NoCompletion, Unreachable, no_answer, room_for_reply
from environments.inference.metrics import ServerMetrics
from environments.inference.pool import Lease, Slots
from environments.inference.prices import prices_of
from environments.inference.providers import (
    OWN,
    Echo,
    Endpoint,
    find_key,
    require_key,
    resolve_endpoint,
)
from environments.inference.replies import MalformedReply, read_chat, read_completion
from environments.inference.request_body import chat_body, completion_body
from environments.inference.text_calls import read_text_calls
from environments.inference.token_endpoint import (
    TokenEndpoint,
    find_token_endpoint,
    find_token_endpoint_again,
)
from environments.inference.transport import Target, Transport
from environments.inference.types import ChatCompletion, Completion
from environments.records import Message, Usage
from environments.tool_call_parsers.base import ToolCallParser

_NONSENSE_IN_A_ROW = 3
"""Answers without sense, before the first good one, after which an address is taken for a wrong one."""

_NO_ENDPOINT = (403, 404, 405)
"""Statuses of an endpoint that is switched off or was never there."""

_NAMES_N = re.compile(r"['\"`]n\\?['\"`]")


class Counted(Protocol):
    """A reply, as far as its cost is concerned."""

    usage: Usage


Reply_co = TypeVar("Reply_co", covariant=True)
Reply = TypeVar("Reply", bound=Counted)


class Request(Protocol[Reply_co]):
    """A call before it is put into the words of a provider, and how to read what comes back."""

    async def prepare(self, server: ModelServer, transport: Transport, budget: float) -> None:
        """Learn what must be known of the server before it can be asked. Raises ``ModelError``."""

    def url(self, server: ModelServer) -> str:
        """Where the request goes."""

    def body(self, server: ModelServer) -> dict[str, Any]:
        """The JSON to send."""

    def read(self, payload: dict[str, Any], server: ModelServer) -> Reply_co:
        """The reply. Raises ``MalformedReply``."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat call. ``parser`` reads calls that a server of ours left in the text."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    sampling: Mapping[str, Any]
    parser: ToolCallParser

    async def prepare(self, server: ModelServer, transport: Transport, budget: float) -> None:
        """Nothing: every server has this."""

    def url(self, server: ModelServer) -> str:
        """Where the request goes."""
        return f"{server.endpoint.base_url}/chat/completions"

    def body(self, server: ModelServer) -> dict[str, Any]:
        """The JSON to send."""
        provider = server.endpoint.provider
        name = server.config.model_name
        body = chat_body(provider, name, self.messages, self.tools, self.sampling, server.echo)
        if server.streams:
            body["stream"] = True
            if server.asks_for_usage:
                body["stream_options"] = {"include_usage": True}
        return body

    def read(self, payload: dict[str, Any], server: ModelServer) -> ChatCompletion:
        """The reply. Raises ``MalformedReply``."""
        reply = read_chat(payload, split_think=server.splits_think)
        if self.tools and server.parses_text_calls:
            found = [read_text_calls(choice, self.tools, self.parser) for choice in reply.choices]
            reply.calls_parsed_from_text = next((name for name in found if name), None)
        return reply


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A text completion."""

    prompt: Any
    sampling: Mapping[str, Any]

    async def prepare(self, server: ModelServer, transport: Transport, budget: float) -> None:
        """Nothing: every server has this."""

    def url(self, server: ModelServer) -> str:
        """Where the request goes."""
        return f"{server.endpoint.base_url}/completions"

    def body(self, server: ModelServer) -> dict[str, Any]:
        """The JSON to send."""
        return completion_body(server.config.model_name, self.prompt, self.sampling)

    def read(self, payload: dict[str, Any], server: ModelServer) -> Completion:
        """The reply. Raises ``MalformedReply``."""
        return read_completion(payload)


class ModelServer:
    """A server of the manager. ``config`` is what the user asked for."""

    def __init__(self, config: APIServerConfig, environ: Mapping[str, str]) -> None:
        self.config = config
        self.endpoint: Endpoint = resolve_endpoint(config, environ)
        self.slots = Slots(
            {
                "train": max(1, config.num_max_requests_at_once),
                "eval": max(1, config.num_requests_for_eval),
            }
        )
        self.metrics = ServerMetrics(max(1, config.rolling_buffer_length))
        self.streams = not self.endpoint.loopback if config.stream is None else config.stream
        self.asks_for_usage = True
        self.ignores_n = config.n_kwarg_is_ignored
        self.prices = prices_of(config)
        self.token_endpoint: TokenEndpoint | None = None
        """How it continues token ids; None until it has been asked."""
        self.obituary: Callable[[], str] = lambda: ""
        """What is known of a server process of ours that no longer answers."""
        self._finding = asyncio.Lock()
        self._answered = False
        """Whether it has ever given a reply."""
        self._nonsense = 0
        self._key = find_key(config, self.endpoint.provider, environ)
        self.target = Target(self.endpoint.label, self.endpoint.base_url, self._key, self.endpoint.private)

    @property
    def label(self) -> str:
        """Host and port, for logs and records."""
        return self.endpoint.label

    @property
    def root(self) -> str:
        """The server's address without the path of its OpenAI API."""
        return self.endpoint.base_url.removesuffix("/v1")

    @property
    def echo(self) -> Echo:
        """How reasoning goes back with the history."""
        wanted = self.config.reasoning_echo
        own = self.endpoint.provider.echo
        if wanted is None:
            return own
        if not wanted:
            return "none"
        return own if own != "none" else "reasoning_content"

    @property
    def splits_think(self) -> bool:
        """Whether a ``<think>`` section in the content is reasoning that nobody split off."""
        return self.endpoint.provider is OWN

    @property
    def parses_text_calls(self) -> bool:
        """Whether tool calls are looked for in text."""
        wanted = self.config.parse_text_calls
        return self.endpoint.private if wanted is None else wanted

    def check(self) -> None:
        """Raise ``AccessDenied`` when the provider needs a key and there is none."""
        require_key(self.endpoint, self._key)

    async def find_token_endpoint(self, transport: Transport, budget: float) -> TokenEndpoint:
        """How the server continues token ids, asked of it once. See ``find_token_endpoint``'s errors."""
        async with self._finding:
            if self.token_endpoint is None:
                self.token_endpoint = await find_token_endpoint(self, transport, budget)
        return self.token_endpoint

    @property
    def known_token_endpoint(self) -> TokenEndpoint:
        """How it continues token ids, after ``find_token_endpoint``."""
        assert self.token_endpoint is not None, "find_token_endpoint comes first"
        return self.token_endpoint

    async def send(
        self,
        transport: Transport,
        request: Request[Reply],
        lease: Lease,
        clock: Callable[[], float],
        budget: float,
    ) -> tuple[Reply, float | None]:
        """One try of a call: the reply, and when its first token came.

        Tells the server's health how it went. Raises ``ModelError``.
        """
        health = self.slots.health
        reported = False
        try:
            answer = await self._send_adapted(transport, request, clock() + budget, clock)
            health.succeeded()
            reported = self._answered = True
            return answer
        except ModelError as error:
            reported = True
            self.metrics.errors[_kind(error)] += 1
            self._refuse_nonsense(error)
            if not _is_failure(error):
                health.succeeded()
                raise
            health.failed(lease.permit, clock(), decisive=isinstance(error, Unreachable))
            raise self._with_obituary(error) from None
        finally:
            if not reported:  # cancelled: nothing was learnt
                health.abandoned(lease.permit, clock())

    def _refuse_nonsense(self, error: ModelError) -> None:
        """Raise ``AccessDenied`` where something answers time and again that never was a model server."""
        if self._answered or not isinstance(error, NoCompletion):
            return
        self._nonsense += 1
        if self._nonsense >= _NONSENSE_IN_A_ROW:
            raise AccessDenied(
                f"{error}. {self._nonsense} answers made no sense and none did: is "
                f"{self.endpoint.base_url} the address of a model server? It usually ends in /v1"
            ) from None

    async def _send_adapted(
        self,
        transport: Transport,
        request: Request[Reply],
        end: float,
        clock: Callable[[], float],
    ) -> tuple[Reply, float | None]:
        """Send; where the server refuses one optional field, send again without it."""
        await request.prepare(self, transport, max(0.0, end - clock()))
        url, body = request.url(self), request.body(self)
        while True:
            self.metrics.requests += 1
            try:
                budget = max(0.0, end - clock())
                exchange = await transport.post(self.target, url, body, budget)
                reply = request.read(exchange.payload, self)
                if self.prices is not None and (reply.usage.prompt_tokens or reply.usage.completion_tokens):
                    reply.usage.cost = self.prices.cost(reply.usage)
                return reply, exchange.first_token_at
            except MalformedReply as problem:
                raise no_answer(self.label, str(problem)) from None
            except ModelNotFound as error:
                raise await self._with_models(transport, error) from None
            except AccessDenied as error:
                if error.status not in _NO_ENDPOINT:
                    raise
                await self._find_again(transport, url, max(0.0, end - clock()))
                if request.url(self) == url:
                    raise
                url, body = request.url(self), request.body(self)
            except BadRequest as error:
                if not self._adapt(body, error):
                    raise

    async def _find_again(self, transport: Transport, url: str, budget: float) -> None:
        """Look for the token endpoint anew where the server, started with other options, lacks it."""
        async with self._finding:
            known = self.token_endpoint
            if known is not None and url == f"{self.root}{known.wire.path}":
                self.token_endpoint = await find_token_endpoint_again(self, transport, budget, known)

    def _adapt(self, body: dict[str, Any], error: BadRequest) -> bool:
        """Change the body so that the server may take it. False where nothing is left to change."""
        if isinstance(error, ContextOverflow):
            room = room_for_reply(error.body)
            field = next((f for f in ("max_tokens", "max_completion_tokens") if f in body), None)
            if room is None or field is None or body[field] <= room:
                return False
            body[field] = room
            return True
        if "stream_options" in body and "stream_options" in error.body:
            self.asks_for_usage = False
            del body["stream_options"]
            return True
        if body.get("n", 1) > 1 and _NAMES_N.search(error.body):
            self.ignores_n = True  # the caller asks for the missing replies one by one
            del body["n"]
            return True
        if body.get("stream") and '"stream"' in error.body:
            self.streams = False
            body.pop("stream_options", None)
            del body["stream"]
            return True
        return False

    async def _with_models(self, transport: Transport, error: ModelNotFound) -> AccessDenied:
        names = [str(model["id"]) for model in await transport.models(self.target)]
        if not names:
            return error
        shown = ", ".join(sorted(names)[:20]) + (", ..." if len(names) > 20 else "")
        return AccessDenied(f"{error}; the server offers: {shown}", status=error.status, body=error.body)

    def _with_obituary(self, error: ModelError) -> ModelError:
        known = self.obituary()
        if not known:
            return error
        return Unreachable(f"{error}; {known}", status=error.status, body=error.body)


def _is_failure(error: ModelError) -> bool:
    """Whether the error says that the server is unwell, not that it refuses this call."""
    if not isinstance(error, ServerUnavailable):
        return False
    return error.status is None or error.status >= 500


def _kind(error: ModelError) -> str:
    """Name of an error in the metrics."""
    if error.status:
        return f"http_{error.status}"
    return "unreachable" if isinstance(error, Unreachable) else "no_answer"


def now() -> float:
    """Monotonic seconds."""
    return time.monotonic()
