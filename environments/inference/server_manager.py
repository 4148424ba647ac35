"""The model servers of a run behind one interface, over OpenAI-compatible chat completions.

Server type ``openai`` speaks chat completions (phase 1: messages, no token ids); ``vllm`` and ``sglang``
continue token ids in their sessions (phase 2), and speak chat completions where they are called without
one; ``llamacpp`` starts a local server for a GGUF file; ``oracle`` and ``nop`` are policies without a
model. All servers of one manager serve the same policy.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from environments.config import APIServerConfig
from environments.errors import ConfigError
from environments.inference.http_session import HTTPSession
from environments.inference.model_server import ChatRequest, CompletionRequest, ModelServer, now
from environments.inference.policies import NopSession, OracleSession, Script
from environments.inference.pool import Pool, Split
from environments.inference.pooled_sampler import TokenRequest
from environments.inference.prices import Prices, dearest, prices_of
from environments.inference.retrying import Backoff, Caller
from environments.inference.session import Session
from environments.inference.together import side_by_side
from environments.inference.token_endpoint import server_tokens
from environments.inference.token_sampling import TokenReply
from environments.inference.token_servers import TokenServers, TokenSession, gives_tokens
from environments.inference.transport import IDLE_TIMEOUT, Transport
from environments.inference.types import ChatCompletion, Completion
from environments.records import Message, Usage
from environments.tool_call_parsers import ToolCallParser, check_parser, get_parser

_FIRST_TOKEN = 300.0
"""Seconds for a server's first token of all, before which it may still have to warm up."""

_HTTP_TYPES = ("openai", "vllm", "sglang", "llamacpp")
_POLICIES = ("oracle", "nop")


class ServerManager:
    """Calls models over several servers, or a built-in policy.

    ``sampling_defaults`` stand under the parameters of each call. ``tool_call_parser`` names the parser
    for calls that stand in text. ``tokenizer`` names the model's tokenizer where the servers do not.
    ``seed`` fixes jitter and the choice among equally loaded servers. Raises ``ConfigError`` for what
    cannot work.
    """

    def __init__(
        self,
        configs: Sequence[Any],
        *,
        sampling_defaults: Mapping[str, Any] | None = None,
        tool_call_parser: str = "hermes",
        seed: int | None = None,
        backoff: Backoff | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
        tokenizer: str | None = None,
    ) -> None:
        self.configs = [as_server_config(config) for config in configs]
        self.policy = _policy(self.configs)
        self._sampling_defaults = dict(sampling_defaults or {})
        self._parser_name = tool_call_parser
        self._tokens = (
            TokenServers(self, tool_call_parser, tokenizer, self._sampling_defaults)
            if gives_tokens(self.configs)
            else None
        )
        check_parser(tool_call_parser, template_follows=self._tokens is not None)
        self._rng = random.Random(seed)
        self._backoff = backoff or Backoff()
        self._transport = Transport(idle_timeout=idle_timeout)
        self._children: list[Any] = []
        self.servers: list[ModelServer] = []
        if self.policy is None and not self._needs_start():
            self._connect(self.configs)

    async def start(self) -> None:
        """Check the keys, start the local servers, and prepare those that continue tokens.

        Raises ``AccessDenied``, ``ConfigError``, ``MissingExtra``.
        """
        if self.policy is None and self._needs_start() and not self.servers:
            await self._start_children()
        await self.check()
        if self._tokens is not None:
            await self._tokens.start()

    async def check(self) -> None:
        """Raise ``AccessDenied`` for a provider without a key, naming the variable to set."""
        for server in self.servers:
            server.check()

    async def close(self) -> None:
        """Close connections and stop the local servers."""
        await self._transport.close()
        children, self._children = self._children, []
        await asyncio.gather(*(child.close() for child in children))

    async def __aenter__(self) -> ServerManager:
        try:
            await self.start()
        except BaseException:  # cancelled, too: the block that would close it is not entered
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def model(self) -> str:
        """The policy's name for the record."""
        return self.policy or self.configs[0].model_name

    @property
    def context_length(self) -> int | None:
        """The shortest context among the servers, in tokens; None where none says."""
        configs = [server.config for server in self.servers] or self.configs
        return min((config.context_length for config in configs if config.context_length), default=None)

    @property
    def prices(self) -> Prices | None:
        """What a call costs at most, whichever server takes it; None where one has no prices."""
        return dearest(map(prices_of, self.configs))

    def session(self, *, split: Split = "train", script: Script | None = None) -> Session:
        """A line for one conversation. ``script`` is the oracle's, from the environment."""
        if self.policy == "nop":
            return NopSession()
        if self.policy == "oracle":
            if script is None:
                raise ConfigError("server_type oracle needs an environment that has solutions")
            return OracleSession(script)
        if self._tokens is not None:
            return self._tokens.session(split)
        return HTTPSession(self, split)

    @asynccontextmanager
    async def managed_server(self, tokenizer: Any = None, **_: Any) -> AsyncIterator[TokenSession]:
        """A conversation in tokens, under the name that Atropos has for it: ``chat_completion`` and then
        ``get_state()["nodes"]``. The tokenizer is the manager's own, whatever is given. Raises
        ``ConfigError`` where the servers give no tokens."""
        if self._tokens is None:
            raise ConfigError("managed_server needs --openai.server_type vllm or sglang")
        session = self._tokens.session("train")
        try:
            yield session
        finally:
            await session.close()

    async def chat_completion(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        n: int = 1,
        *,
        split: Split = "train",
        server: ModelServer | None = None,
        **sampling: Any,
    ) -> ChatCompletion:
        """``n`` replies to a conversation. ``server`` is the one to prefer. Raises ``ModelError``."""
        if self.policy is not None:
            return await self.session(split=split).chat_completion(messages, tools, n=n, **sampling)
        parameters = {**self._sampling_defaults, **sampling}

        async def ask(count: int) -> ChatCompletion:
            request = ChatRequest(messages, tools, {**parameters, "n": count}, self._parser())
            answer = await self._caller().call(request, split, server)
            return replace(answer.reply, timing=answer.timing, server=answer.server.label)

        together = 1 if self._ignore_n() else n
        reply = await ask(together)
        missing = n - len(reply.choices)
        if missing > 0:
            if together > 1:
                self._remember_ignored_n(reply.server)
            replies = await side_by_side([ask(1) for _ in range(missing)])
            reply = _merge(reply, replies)
        del reply.choices[n:]
        return reply

    async def completion(
        self,
        prompt: Any,
        n: int = 1,
        *,
        split: Split = "train",
        server: ModelServer | None = None,
        **sampling: Any,
    ) -> Completion:
        """``n`` continuations of a text. Raises ``ModelError``."""
        if self.policy is not None:
            raise ConfigError(f"server_type {self.policy} has no text completions")
        parameters = {k: v for k, v in {**self._sampling_defaults, **sampling}.items() if v is not None}
        if n > 1:
            parameters["n"] = n
        answer = await self._caller().call(CompletionRequest(prompt, parameters), split, server)
        return replace(answer.reply, timing=answer.timing, server=answer.server.label)

    async def sample(
        self, request: TokenRequest, split: Split, server: ModelServer | None = None
    ) -> TokenReply:
        """Sampled tokens from one of the servers. ``server`` is the one to prefer. Raises ``ModelError``."""
        answer = await self._caller().call(request, split, server)
        return replace(
            answer.reply,
            timing=answer.timing,
            server=answer.server.label,
            model=answer.reply.model or answer.server.config.model_name,
        )

    def check_sampling(self, sampling: Mapping[str, Any]) -> None:
        """Raise ``ConfigError`` for parameters that every call would be refused for."""
        if self._tokens is not None:
            self._tokens.check_sampling(sampling)

    def unaccounted(self, sampling: Mapping[str, Any]) -> dict[str, frozenset[str]]:
        """Servers whose log-probabilities leave out some of these sampling parameters, and which."""
        return self._tokens.unaccounted(sampling) if self._tokens is not None else {}

    async def find_token_endpoint(self, server: ModelServer) -> None:
        """Find out how a server continues token ids. Raises ``ConfigError`` and ``ModelError``."""
        await server.find_token_endpoint(self._transport, min(server.config.timeout, _FIRST_TOKEN))

    async def tokens_of(self, server: ModelServer, text: str) -> list[int] | None:
        """What the server's own tokenizer makes of ``text``, None where it does not say."""
        budget = min(server.config.timeout, _FIRST_TOKEN)
        return await server_tokens(server, self._transport, budget, text)

    def pause_after_abort(self, breaks: int) -> float:
        """Seconds to wait before a reply that the server broke off is gone on with."""
        return self._backoff.delay(breaks, self._rng)

    def stats(self) -> dict[str, float]:
        """Metrics of all calls so far, under ``server/``; seconds where it is a time."""
        errors: Counter[str] = Counter()
        result: dict[str, float] = {"server/requests": 0, "server/retries": 0, "server/waiting_seconds": 0.0}
        for index, server in enumerate(self.servers):
            metrics = server.metrics
            result["server/requests"] += metrics.requests
            result["server/retries"] += metrics.retries
            result["server/waiting_seconds"] += metrics.waiting
            errors.update(metrics.errors)
            result.update(metrics.summary(f"server_{index}"))
        result["server/waiting_calls"] = self._pool.waiting if self.servers else 0
        result.update({f"server/errors_{kind}": count for kind, count in sorted(errors.items())})
        return result

    def choose_server(self, split: Split) -> ModelServer:
        """The server that a new conversation should be pinned to: the least loaded one that is well."""
        self._caller()
        well = [s for s in self.servers if s.slots.health.admissible(now())] or self.servers
        chosen = self._pool.least_loaded([s.slots for s in well], split)
        return self._by_slots[chosen]

    def server_labelled(self, label: str | None) -> ModelServer | None:
        """The server of that label."""
        return next((s for s in self.servers if s.label == label), None)

    def _connect(self, configs: Sequence[APIServerConfig]) -> None:
        self.servers = [ModelServer(config, os.environ) for config in configs]
        self._by_slots = {server.slots: server for server in self.servers}
        self._pool = Pool(list(self._by_slots), now, self._rng)
        self._calls = Caller(self._pool, self._by_slots, self._transport, now, self._rng, self._backoff)

    def _caller(self) -> Caller:
        if not self.servers:
            raise ConfigError("the local model server has not been started: await start() first")
        return self._calls

    def _needs_start(self) -> bool:
        return any(config.server_type == "llamacpp" for config in self.configs)

    async def _start_children(self) -> None:
        from environments.inference.llamacpp import LlamaCppServer

        local = [config for config in self.configs if config.server_type == "llamacpp"]
        children = [LlamaCppServer(config) for config in local]
        self._children = list(children)
        try:
            await asyncio.gather(*(child.start() for child in children))
        except BaseException:  # cancelled, too: those that did start are ended
            await self.close()
            raise
        started = iter(children)
        living = [next(started) if c.server_type == "llamacpp" else None for c in self.configs]
        self._connect(
            [c.served_config if c else config for c, config in zip(living, self.configs, strict=True)]
        )
        for child, server in zip(living, self.servers, strict=True):
            if child is not None:
                server.obituary = child.obituary

    def _parser(self) -> ToolCallParser:
        name = self._tokens.parser_name if self._tokens is not None else None
        return get_parser(name or self._parser_name)

    def _ignore_n(self) -> bool:
        self._caller()
        return any(server.ignores_n for server in self.servers)

    def _remember_ignored_n(self, label: str | None) -> None:
        server = self.server_labelled(label)
        if server is not None:
            server.ignores_n = True


def as_server_config(config: Any) -> APIServerConfig:
    """Our configuration from whatever describes a server: ours, a mapping, or another pydantic class.

    Fields of another class (the ``APIServerConfig`` of atroposlib, say) that we do not have are passed
    over; unknown keys of a mapping are errors. Raises ``ConfigError``.
    """
    from pydantic import ValidationError

    if isinstance(config, APIServerConfig):
        return config
    try:
        if isinstance(config, Mapping):
            return APIServerConfig.model_validate(dict(config))
        if callable(getattr(config, "model_dump", None)):
            known = config.model_dump(mode="json").items()
            return APIServerConfig.model_validate(
                {name: value for name, value in known if name in APIServerConfig.model_fields}
            )
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"server configuration: {problems}") from None
    raise ConfigError(f"a server is described by an APIServerConfig, not by {type(config).__name__}")


def _policy(configs: Sequence[APIServerConfig]) -> str | None:
    """``oracle`` or ``nop`` where no model is asked. Raises ``ConfigError`` for what does not go together."""
    if not configs:
        raise ConfigError("no model server is configured")
    types = {config.server_type for config in configs}
    if not types <= {*_HTTP_TYPES, *_POLICIES}:
        unknown = ", ".join(sorted(types - {*_HTTP_TYPES, *_POLICIES}))
        raise ConfigError(f"server_type {unknown} is not available in this version")
    policies = types & set(_POLICIES)
    if policies and len(types) > 1:
        raise ConfigError(f"server_type {', '.join(sorted(policies))} cannot stand beside other servers")
    return next(iter(policies), None)


def _merge(first: ChatCompletion, others: Sequence[ChatCompletion]) -> ChatCompletion:
    """One reply with the choices of several, and what they all cost."""
    everything = [first, *others]
    choices = [choice for reply in everything for choice in reply.choices]
    usage = Usage()
    for reply in everything:
        usage.add(reply.usage)
    timing = replace(
        first.timing,
        ended_at=max(reply.timing.ended_at for reply in everything),
        retries=sum(reply.timing.retries for reply in everything),
        waiting=max(reply.timing.waiting for reply in everything),
    )
    parsed = next((r.calls_parsed_from_text for r in everything if r.calls_parsed_from_text), None)
    return replace(
        first,
        choices=[replace(choice, index=index) for index, choice in enumerate(choices)],
        usage=usage,
        timing=timing,
        calls_parsed_from_text=parsed,
    )
