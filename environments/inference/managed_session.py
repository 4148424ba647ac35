"""A conversation held in tokens: what was sampled stays as it was sampled.

The agent speaks messages, the session holds the ids. It knows its own replies when they come back in
a conversation, and appends only what the chat template adds after them. Where that cannot be done,
because the history was changed or the template writes it anew, it forks: another sequence begins, the
reason is recorded, and the sequences before it stay as they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from environments.dialects.base import Dialect, MustFork, Rendered
from environments.errors import ContextOverflow, ModelError, ServerUnavailable
from environments.inference.managed_request import ManagedRequest, read_request
from environments.inference.managed_tree import Position, Turn, TurnTree
from environments.inference.session import Session
from environments.inference.together import side_by_side
from environments.inference.token_sampling import TokenReply, TokenSampler
from environments.inference.types import ChatCompletion, ChatMessage, Choice
from environments.records import Message
from environments.records import Sequence as TokenSequence
from environments.tool_call_parsers.result import ParseResult

_TOLERANCE = 1e-3
"""Rounding by which a log-probability may exceed zero."""


@dataclass(slots=True)
class SequenceNode:
    """One token sequence of a conversation, under the names that Atropos gave them.

    ``masked_tokens`` holds the id where it was sampled and -100 elsewhere, ``logprobs`` 1.0 there.
    """

    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float]
    metadata: dict[str, Any] = field(default_factory=dict)


class ManagedSession(Session):
    """Holds one conversation over a dialect and a sampler of tokens.

    ``context_length`` is the model's, in tokens; known, a conversation that does not fit is found
    before the call, and the limit of a reply is cut to what is left.
    """

    wire = "generate"
    phase = 2

    def __init__(
        self,
        dialect: Dialect,
        sampler: TokenSampler,
        *,
        model: str = "",
        context_length: int | None = None,
    ) -> None:
        self.dialect, self.sampler = dialect, sampler
        self.model, self.context_length = model, context_length
        self._tree = TurnTree()

    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> ChatCompletion:
        """One reply to the conversation so far; ``n`` of them where asked for.

        ``chat_template_kwargs``, plain or in ``extra_body``, go to the chat template. Raises
        ``ModelError``; ``ContextOverflow`` where the conversation leaves no room for a reply, and
        ``BadRequest`` for what has no form as tokens.
        """
        request = read_request(self.dialect, tools, sampling)
        position = self._tree.find(messages, request.context)
        begun, rendered, reason = self._prompt(position, tools, request.dialect)
        prompt = [*begun.ids(), *rendered.ids] if begun else rendered.ids
        replies = await self._sample(prompt, request)
        choices = []
        for index, reply in enumerate(replies):
            parsed = request.dialect.parse(
                reply.tokens,
                tools=tools,
                generation_prompt=rendered.generation_prompt,
                finish_reason=reply.finish_reason,
            )
            choice = _choice(parsed, reply, index)
            choices.append(choice)
            again = reason if index == 0 else f"{request.n} answers were asked for"
            own = _own_message(choice.message, parsed)
            self._add(begun, position, request, rendered, reply, own, again)
        return self._completion(replies, choices, len(prompt), request)

    def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> int:
        """Tokens of the prompt that ``chat_completion`` would send. Raises ``BadRequest``."""
        request = read_request(self.dialect, tools, sampling)
        begun, rendered, _ = self._prompt(self._tree.find(messages, request.context), tools, request.dialect)
        return (len(begun.ids()) if begun else 0) + len(rendered.ids)

    def sequences(self) -> list[TokenSequence]:
        """The token sequences of the conversation: one, and one more for every fork."""
        return self._tree.sequences()

    @property
    def forks(self) -> list[tuple[int, str]]:
        """Number of the turn, counted from 1, and reason of every fork."""
        return self._tree.forks

    def managed_state(self) -> dict[str, Any]:
        """``sequences``, the same as ``nodes`` with the names of Atropos, and ``forks`` with reasons."""
        sequences = self.sequences()
        nodes = [
            SequenceNode(s.tokens, s.mask, s.logprobs, {"fork_reason": s.fork_reason, **s.extra})
            for s in sequences
        ]
        forks = [{"turn": turn, "reason": reason} for turn, reason in self.forks]
        return {"sequences": sequences, "nodes": nodes, "forks": forks}

    def _prompt(
        self, position: Position, tools: Sequence[Mapping[str, Any]] | None, dialect: Dialect
    ) -> tuple[Turn | None, Rendered, str | None]:
        """The turn to go on from, the tokens to append, and the reason of a fork."""
        turn, reason = position.turn, position.reason
        if turn is not None:
            bridge = dialect.bridge(turn.ids(), position.messages, tools, new=position.new)
            if isinstance(bridge, Rendered):
                return turn, bridge, reason
            assert isinstance(bridge, MustFork)
            reason = bridge.reason
        return None, dialect.render(position.messages, tools), reason

    async def _sample(self, prompt: Sequence[int], request: ManagedRequest) -> list[TokenReply]:
        room = None if self.context_length is None else self.context_length - len(prompt)
        if room is not None and room <= 0:
            raise ContextOverflow(
                f"the conversation has {len(prompt)} tokens, the model's context {self.context_length}"
            )
        limits = [limit for limit in (room, request.max_tokens) if limit is not None]
        calls = [
            self.sampler.sample(
                prompt,
                stop_token_ids=request.stop_token_ids,
                max_tokens=min(limits, default=None),
                **request.sampling,
            )
            for _ in range(request.n)
        ]
        replies = await side_by_side(calls)
        for reply in replies:
            _check(reply, prompt)
        return replies

    def _add(
        self,
        begun: Turn | None,
        position: Position,
        request: ManagedRequest,
        rendered: Rendered,
        reply: TokenReply,
        own: Message,
        reason: str | None,
    ) -> None:
        known = len(position.keys) - position.new if begun else 0
        self._tree.add(
            Turn(
                number=len(self._tree.turns) + 1,
                parent=begun,
                keys=position.keys[known:],
                messages=position.messages,
                context=request.context,
                prompt=rendered.ids,
                sampled=reply.tokens,
                logprobs=reply.logprobs,
                versions=reply.policy_versions,
                reply=own,
                finish_reason=reply.finish_reason,
                fork_reason=reason,
            )
        )

    def _completion(
        self,
        replies: Sequence[TokenReply],
        choices: list[Choice],
        prompt_tokens: int,
        request: ManagedRequest,
    ) -> ChatCompletion:
        first, last = replies[0], replies[-1]
        usage = replace(first.usage, prompt_tokens=0, completion_tokens=0)
        for reply in replies[1:]:
            usage.add_cost(reply.usage.cost)
        for reply in replies:
            usage.prompt_tokens += reply.usage.prompt_tokens or prompt_tokens
            usage.completion_tokens += reply.usage.completion_tokens or len(reply.tokens)
        versions = [span.version for reply in replies for span in reply.policy_versions]
        called = any(choice.message.tool_calls for choice in choices)
        return ChatCompletion(
            choices=choices,
            usage=usage,
            id=f"managed-{len(self._tree.turns)}",
            model=first.model or self.model,
            created=int(time.time()),
            timing=replace(first.timing, ended_at=last.timing.ended_at),
            server=first.server,
            calls_parsed_from_text=request.dialect.parser_name if called else None,
            policy_version=versions[-1] if versions else None,
        )


def _choice(parsed: ParseResult, reply: TokenReply, index: int) -> Choice:
    message = ChatMessage(
        content=parsed.content,
        tool_calls=parsed.tool_calls or None,
        reasoning_content=parsed.reasoning,
        malformed_calls=parsed.problems,
    )
    finish = "tool_calls" if parsed.tool_calls and reply.finish_reason == "stop" else reply.finish_reason
    return Choice(message, finish, index)


def _own_message(message: ChatMessage, parsed: ParseResult) -> Message:
    """The reply as the session remembers it; that it began to think and thought nothing counts, too."""
    own = message.to_message()
    if parsed.reasoning_closed is not None:
        own["reasoning_content"] = parsed.reasoning or ""
    return own


def _check(reply: TokenReply, prompt: Sequence[int]) -> None:
    """Raise ``ModelError`` for a reply that no trainer could rely on."""
    if reply.finish_reason == "abort":
        raise ServerUnavailable("the server broke the reply off")
    if reply.prompt_tokens is not None and reply.prompt_tokens != list(prompt):
        raise ModelError("the server saw another prompt than the one it was sent")
    if len(reply.tokens) != len(reply.logprobs):
        raise ModelError(
            f"the server gave {len(reply.logprobs)} log-probabilities for {len(reply.tokens)} tokens"
        )
    if not all(math.isfinite(value) and value <= _TOLERANCE for value in reply.logprobs):
        raise ModelError("the server gave a log-probability that is none")
