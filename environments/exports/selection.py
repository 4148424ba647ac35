"""Which rollouts become rows: by score and ending, within a length, each only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from environments.exports.candidates import Candidate
from environments.exports.compression import compress
from environments.exports.counting import Counter as TokenCounter
from environments.exports.counting import Unrenderable
from environments.exports.messages import trimmed, without_ids

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. Scores are bounds that are still taken."""

    min_score: float | None = None
    """None: above 0 for fine-tuning, any for preferences."""
    max_score: float | None = None
    endings: frozenset[str] = frozenset()
    """Empty: any."""
    outcomes: frozenset[str] = frozenset({"scored"})
    top: int | None = None
    """Best rollouts of each group; None for all."""
    pairs: int = 1
    """Most pairs of each group."""
    min_difference: float = 0.0
    """Scores of a pair differ by more than 0, and by this at least."""
    max_tokens: int | None = None


@dataclass
class Selection:
    """Chooses, and counts in ``left_out`` why the others were not chosen."""

    wish: Wish
    count_tokens: TokenCounter
    left_out: Counter[str] = field(default_factory=Counter)
    compressed: int = 0

    def for_tuning(self, group: Sequence[Candidate]) -> list[Candidate]:
        """The rollouts of a group that are worth learning from, best first where there is a limit."""
        low = self.wish.min_score
        found = []
        for candidate in self._usable(group):
            score = candidate.score
            if score is not None and (score <= 0 if low is None else score < low):
                self.left_out["score too low"] += 1
            elif score is not None and self.wish.max_score is not None and score > self.wish.max_score:
                self.left_out["score too high"] += 1
            else:
                found.append(candidate)
        if self.wish.top is None:
            return [one for candidate in found if (one := self._fitted(candidate))]
        found.sort(key=lambda candidate: -(candidate.score or 0.0))
        fitting = [one for candidate in found if (one := self._fitted(candidate))]
        self.left_out["not among the best of the group"] += max(0, len(fitting) - self.wish.top)
        return fitting[: self.wish.top]

    def pairs(self, group: Sequence[Candidate]) -> Iterator[tuple[list[JSON], Candidate, Candidate]]:
        """Common prompt, better and worse rollout of each pair of a group."""
        usable = [one for c in self._usable(group) if c.score is not None and (one := self._fitted(c))]
        usable.sort(key=lambda candidate: -(candidate.score or 0.0))
        made = 0
        for number in range(len(usable) // 2):
            better, worse = usable[number], usable[-1 - number]
            difference = (better.score or 0.0) - (worse.score or 0.0)
            if made == self.wish.pairs or difference <= 0 or difference < self.wish.min_difference:
                break
            if self.wish.min_score is not None and (better.score or 0.0) < self.wish.min_score:
                break
            prompt = common_prompt(better.messages, worse.messages)
            if prompt is None:
                self.left_out["pair without a common prompt"] += 1
                continue
            made += 1
            yield prompt, better, worse
        if not made:
            self.left_out["group without a pair that differs enough"] += 1

    def _usable(self, group: Sequence[Candidate]) -> Iterator[Candidate]:
        for candidate in group:
            reason = self._unusable(candidate)
            if reason is not None:
                self.left_out[reason] += 1
                continue
            yield replace(candidate, messages=trimmed(candidate.messages))

    def _unusable(self, candidate: Candidate) -> str | None:
        if candidate.outcome not in self.wish.outcomes:
            return f"outcome {candidate.outcome or 'unknown'}"
        if candidate.tampered:
            return "tampered with its verifier"
        if self.wish.endings and candidate.ending not in self.wish.endings:
            return f"ending {candidate.ending or 'unknown'}"
        if not candidate.messages:
            return "no messages (environment ran without --env.include_messages true)"
        if not trimmed(candidate.messages):
            return "nothing said by the model"
        return None

    def _fitted(self, candidate: Candidate) -> Candidate | None:
        limit = self.wish.max_tokens
        if limit is None:
            return candidate
        tools = candidate.tools or []
        try:
            result = compress(candidate.messages, limit, lambda messages: self.count_tokens(messages, tools))
        except Unrenderable as error:
            self.left_out[f"refused by the chat template ({error})"] += 1
            return None
        if result is None:
            self.left_out["too long"] += 1
            return None
        messages, removed = result
        self.compressed += bool(removed)
        return replace(candidate, messages=messages, removed_turns=removed)


def common_prompt(first: Sequence[JSON], second: Sequence[JSON]) -> list[JSON] | None:
    """What two conversations share, up to a message of the model; None where they share no task or one
    of them has nothing of its own.
    """
    shared = 0
    for one, other in zip(first, second, strict=False):
        if without_ids(one) != without_ids(other):
            break
        shared += 1
    while shared and not _answers_at(first, second, shared):
        shared -= 1
    prompt = list(first[:shared])
    return prompt if any(message.get("role") == "user" for message in prompt) else None


def _answers_at(first: Sequence[JSON], second: Sequence[JSON], at: int) -> bool:
    return all(len(m) > at and m[at].get("role") == "assistant" for m in (first, second))
