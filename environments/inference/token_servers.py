"""Servers that continue token ids (``server_type`` vllm and sglang), and the sessions over them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.config import APIServerConfig
from environments.errors import BadRequest, ConfigError, ServerUnavailable
from environments.inference.managed_request import read_request
from environments.inference.managed_session import ManagedSession
from environments.inference.pool import Split
from environments.inference.pooled_sampler import PooledSampler
from environments.inference.token_endpoint import TOKEN_SERVERS
from environments.inference.token_wire import TokenAsk, own_parameters

if TYPE_CHECKING:
    from environments.dialects.base import Dialect
    from environments.dialects.tokenizer import ChatTokenizer
    from environments.inference.model_server import ModelServer
    from environments.inference.server_manager import ServerManager

logger = logging.getLogger(__name__)

_NO_NAME = ("", "none", "default")
_NAME_IT = "name the model's own with --openai.tokenizer_name"
_PROBE = "Tokens are numbers: def f(x): return x + 12345"
"""Text that every tokenizer gives back as it was."""


def gives_tokens(configs: Sequence[APIServerConfig]) -> bool:
    """Whether these servers continue token ids. Raises ``ConfigError`` where only some of them do, or one
    has no address."""
    kinds = {config.server_type for config in configs}
    token_kinds = kinds & set(TOKEN_SERVERS)
    if token_kinds and kinds - token_kinds:
        raise ConfigError(
            f"server_type {', '.join(sorted(token_kinds))} gives exact tokens and cannot stand beside "
            f"{', '.join(sorted(kinds - token_kinds))}"
        )
    if token_kinds and any(not (config.base_url or "").strip() for config in configs):
        raise ConfigError(
            f"server_type {', '.join(sorted(token_kinds))} needs the server's address: --openai.base_url"
        )
    return bool(token_kinds)


class TokenSession(ManagedSession):
    """A conversation in tokens that stays with one server."""

    def __init__(self, dialect: Dialect, sampler: PooledSampler, context_length: int | None) -> None:
        super().__init__(dialect, sampler, model=sampler.model, context_length=context_length)
        self._sampler = sampler

    def get_state(self) -> dict[str, Any]:
        """The same as ``managed_state``, under the name that Atropos has for it."""
        return self.managed_state()

    async def close(self) -> None:
        """Let go of the server."""
        await self._sampler.close()


class TokenServers:
    """What the token servers of a manager need beside its pool: their endpoints and the dialect.

    ``tokenizer`` names the model's tokenizer where the servers' configuration does not; unset, it is
    looked for where the server has its model from.
    """

    def __init__(
        self,
        manager: ServerManager,
        tool_call_parser: str,
        tokenizer: str | None,
        sampling_defaults: Mapping[str, Any],
    ) -> None:
        self._manager = manager
        self._tool_call_parser = tool_call_parser
        self._tokenizer = tokenizer
        self._defaults = sampling_defaults
        self._dialect: Dialect | None = None

    async def start(self) -> None:
        """Find the endpoints and load the tokenizer with its chat template.

        Raises ``ConfigError``, ``AccessDenied`` and ``MissingExtra``. A server that does not answer yet is
        asked again when it is needed.
        """
        await asyncio.gather(*(self._find_endpoint(server) for server in self._manager.servers))
        if self._dialect is None:
            from environments.dialects.loading import load_dialect

            name, guessed = self._tokenizer_name()
            kept = any(config.reasoning_echo for config in self._manager.configs)
            try:
                dialect = await asyncio.to_thread(
                    load_dialect,
                    name,
                    tool_parser=self._tool_call_parser,
                    thinking="always" if kept else "template",
                )
            except ConfigError as error:
                hint = f"; {_NAME_IT}" if guessed else ""
                raise ConfigError(f"{error}{hint}") from None
            await self._check_vocabulary(dialect.tokenizer, name)
            self._dialect = dialect

    @property
    def parser_name(self) -> str | None:
        """The parser that the chat template or its user named; None until the tokenizer is loaded."""
        return self._dialect.parser_name if self._dialect is not None else None

    def session(self, split: Split) -> TokenSession:
        """A line for one conversation, in tokens."""
        if self._dialect is None:
            raise ConfigError("the tokenizer has not been loaded: await start() first")
        sampler = PooledSampler(self._manager, split, self._defaults)
        session = TokenSession(self._dialect, sampler, self._context_length())
        session.prices = self._manager.prices
        return session

    def check_sampling(self, sampling: Mapping[str, Any]) -> None:
        """Raise ``ConfigError`` for parameters that no call in tokens could have."""
        if self._dialect is None:
            return
        try:
            request = read_request(self._dialect, None, sampling)
        except BadRequest as error:
            raise ConfigError(f"env.extra_body: {error}") from None
        if request.n > 1:
            raise ConfigError(
                f"env.extra_body asks for {request.n} answers; a rollout goes on from one, and the others "
                "would be trained with its reward. For more rollouts of an item: --env.group_size"
            )

    def unaccounted(self, sampling: Mapping[str, Any]) -> dict[str, frozenset[str]]:
        """Servers whose log-probabilities leave out some of these sampling parameters, and which."""
        parameters = own_parameters(sampling)
        ask = TokenAsk((), temperature=parameters.get("temperature", 1.0), parameters=parameters)
        found = {
            server.label: ask.shaping - server.token_endpoint.accounted
            for server in self._manager.servers
            if server.token_endpoint is not None
        }
        return {label: names for label, names in found.items() if names}

    async def _find_endpoint(self, server: ModelServer) -> None:
        try:
            await self._manager.find_token_endpoint(server)
        except ServerUnavailable as error:
            logger.warning("%s", error)

    async def _check_vocabulary(self, tokenizer: ChatTokenizer, name: str) -> None:
        """Raise ``ConfigError`` where a server's tokens mean something else to our tokenizer.

        What is compared is their text: servers may add a token at the beginning, or a blank.
        """
        for server in self._manager.servers:
            ids = await self._manager.tokens_of(server, _PROBE) if server.token_endpoint else None
            if ids is not None and _PROBE not in tokenizer.decode(ids):
                raise ConfigError(
                    f"tokenizer {name!r} is not the one of the model that {server.label} serves: their "
                    f"tokens differ; {_NAME_IT}"
                )

    def _context_length(self) -> int | None:
        """What every server has room for."""
        endpoints = [s.token_endpoint for s in self._manager.servers if s.token_endpoint is not None]
        lengths = [e.context_length - e.wire.spare for e in endpoints if e.context_length is not None]
        return min(lengths, default=None)

    def _tokenizer_name(self) -> tuple[str, bool]:
        """Where the tokenizer is, and whether nobody said so: then the model's own is looked for."""
        servers = self._manager.servers
        named = next(
            (s.config.tokenizer_name for s in servers if s.config.tokenizer_name not in _NO_NAME), None
        )
        if named or self._tokenizer:
            return str(named or self._tokenizer), False
        model = servers[0].config.model_name
        paths = [
            s.token_endpoint.model_path for s in servers if s.token_endpoint and s.token_endpoint.model_path
        ]
        here = [name for name in (model, *paths) if (Path(name).expanduser() / "tokenizer.json").is_file()]
        return next(iter([*here, *paths]), model), True
