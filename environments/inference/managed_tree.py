"""The turns of a managed conversation as a tree, and the token sequences that its branches are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.inference.managed_history import Key, as_sampled, difference, is_reply, message_key
from environments.records import MASKED, MASKED_LOGPROB, Message, PolicySpan
from environments.records import Sequence as TokenSequence


@dataclass(slots=True, eq=False)
class Turn:
    """One reply: the tokens put before it since the turn before, and those that were sampled.

    ``keys`` are the messages between the reply before and this one; ``fork_reason`` says why the
    turn does not simply go on from the last one.
    """

    number: int
    parent: Turn | None
    keys: list[Key]
    messages: list[Message]
    """The whole conversation that this is the reply to."""
    context: str
    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]
    versions: list[PolicySpan]
    reply: Message
    finish_reason: str
    fork_reason: str | None = None
    children: list[Turn] = field(default_factory=list)

    def path(self) -> list[Turn]:
        """The turns from the first one to this."""
        turns: list[Turn] = [self]
        while (parent := turns[-1].parent) is not None:
            turns.append(parent)
        return turns[::-1]

    def ids(self) -> list[int]:
        """All tokens up to the end of this turn."""
        return [token for turn in self.path() for part in (turn.prompt, turn.sampled) for token in part]

    def history(self) -> list[Key]:
        """The messages up to and with this reply."""
        return [key for turn in self.path() for key in (*turn.keys, message_key(turn.reply))]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a conversation stands in the tree: after ``turn``, with ``new`` messages since then.

    ``messages`` is the conversation with the session's own replies as they were sampled, ``keys``
    what each of them says. ``reason`` says why it does not go on from the last turn, if so.
    """

    turn: Turn | None
    messages: list[Message]
    new: int
    keys: list[Key]
    reason: str | None


class TurnTree:
    """All turns of one session."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._roots: list[Turn] = []

    def find(self, messages: Sequence[Message], context: str) -> Position:
        """The longest known beginning of a conversation, and why it is not the last turn, if so."""
        keys = [message_key(message) for message in messages]
        own = list(messages)
        turn, end = None, 0
        level = [root for root in self._roots if root.context == context]
        while True:
            following = self._following(level, messages, keys, end)
            if following is None:
                break
            turn, end = following, end + len(following.keys) + 1
            as_sampled(turn.reply, own, end - 1)
            level = turn.children
        return Position(turn, own, len(messages) - end, keys, self._reason(turn, keys, context))

    def add(self, turn: Turn) -> None:
        """Put a new turn where its parent says."""
        (self._roots if turn.parent is None else turn.parent.children).append(turn)
        self.turns.append(turn)

    @property
    def forks(self) -> list[tuple[int, str]]:
        """Number and reason of every turn that does not go on from the last one."""
        return [(turn.number, turn.fork_reason) for turn in self.turns if turn.fork_reason]

    def sequences(self) -> list[TokenSequence]:
        """One sequence per branch, in the order of their last turns. What was sampled before branches
        part is trained in the first of them. Branches that were left have their own ``messages``."""
        trained: set[int] = set()
        found = []
        for leaf in self.leaves():
            sequence = _sequence(leaf.path(), trained)
            if leaf is not self.turns[-1]:
                sequence.extra["messages"] = [*leaf.messages, leaf.reply]
            found.append(sequence)
        return found

    def leaves(self) -> Iterator[Turn]:
        """The last turn of every branch."""
        return (turn for turn in self.turns if not turn.children)

    def _following(
        self, level: Sequence[Turn], messages: Sequence[Message], keys: Sequence[Key], start: int
    ) -> Turn | None:
        for turn in reversed(level):
            end = start + len(turn.keys)
            if end < len(messages) and keys[start:end] == turn.keys and is_reply(turn.reply, messages[end]):
                return turn
        return None

    def _reason(self, found: Turn | None, keys: Sequence[Key], context: str) -> str | None:
        last = self.turns[-1] if self.turns else None
        if last is None or found is last or (found is not None and not found.children):
            return None
        if found is None and all(root.context != context for root in self._roots):
            return "the tools or the options of the chat template were changed"
        before = last.history()
        if len(keys) < len(before) and before[: len(keys)] == list(keys):
            return "an earlier point of the conversation was continued again"
        return difference(before, keys)


def _sequence(path: Sequence[Turn], trained: set[int]) -> TokenSequence:
    result = TokenSequence([], [], [], extra={"turns": []})
    for turn in path:
        result.tokens += turn.prompt
        result.mask += [MASKED] * len(turn.prompt)
        result.logprobs += [MASKED_LOGPROB] * len(turn.prompt)
        start = len(result.tokens)
        result.tokens += turn.sampled
        if turn.number in trained:
            result.mask += [MASKED] * len(turn.sampled)
            result.logprobs += [MASKED_LOGPROB] * len(turn.sampled)
        else:
            trained.add(turn.number)
            result.mask += turn.sampled
            result.logprobs += turn.logprobs
            result.policy_versions += [
                PolicySpan(start + span.start, start + span.end, span.version) for span in turn.versions
            ]
        result.fork_reason = turn.fork_reason or result.fork_reason
        result.extra["turns"].append(_span(turn, start))
    return result


def _span(turn: Turn, start: int) -> Mapping[str, Any]:
    return {
        "turn": turn.number,
        "start": start,
        "end": start + len(turn.sampled),
        "finish_reason": turn.finish_reason,
    }
