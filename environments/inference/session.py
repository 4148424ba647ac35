"""One conversation with a policy, whatever the policy is.

Over HTTP a session pins one server, so that its prefix cache is used; for oracle and nop it is a
script. The agent loop speaks messages; what tokens stand behind them is the session's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from environments.inference.prices import Prices
from environments.inference.types import ChatCompletion
from environments.records import Message
from environments.records import Sequence as TokenSequence


class Session(ABC):
    """A conversation's line to its policy."""

    wire: str = ""
    """Protocol spoken, for the record: ``chat``, ``generate``, ``oracle``, ``nop``."""
    phase: int = 1
    model: str = ""
    context_length: int | None = None
    """Tokens that the model can read and write in one call, where that is known."""
    prices: Prices | None = None
    """What the model's tokens cost at most, where the configuration says."""
    is_script: bool = False
    """Whether no model answers, so that nothing costs anything."""

    @abstractmethod
    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> ChatCompletion:
        """One reply to the conversation so far.

        ``sampling`` takes ``temperature``, ``top_p``, ``max_tokens``, ``n``, ``seed``, ``stop``,
        ``tool_choice``, ``reasoning_effort``, ``extra_body`` and passes what else it is given on.
        Raises ``ModelError``; never returns a reply without a choice.
        """

    def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> int | None:
        """Tokens of the prompt that ``chat_completion`` would send; None in phase 1, where they are unknown.

        A session that counts cuts each reply to what the context has left. Raises ``ModelError``.
        """
        return None

    def sequences(self) -> list[TokenSequence]:
        """Exact token sequences of the conversation, empty in phase 1."""
        return []

    def managed_state(self) -> dict[str, Any] | None:
        """What ``AgentResult.managed_state`` carries, None in phase 1."""
        return None

    async def close(self) -> None:  # noqa: B027 - optional
        """Let go of the server."""
