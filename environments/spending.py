"""What a rollout may still spend, in tokens and in money, before each of its replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from environments.errors import ConfigError
from environments.records import Ending, Usage


class TokenPrices(Protocol):
    """Knows what tokens cost; see ``environments.inference.prices``."""

    def completion_tokens(self, money: float, prompt_tokens: int) -> int | None:
        """Tokens that a reply may have for ``money`` (US dollars)."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Tokens that the next reply may have (None: no limit), and how the rollout ends where that is it."""

    tokens: int | None = None
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class Spending:
    """The budgets of one rollout: completion tokens, and US dollars."""

    token_budget: int | None = None
    cost_budget: float | None = None
    prices: TokenPrices | None = None
    """Where they are known, a reply is cut to what is left; else the money is counted afterwards."""

    def next_reply(self, spent: Usage, last: Usage) -> Allowance:
        """What is left after ``spent``. The next prompt has at least the tokens of the ``last`` call."""
        found = Allowance()
        if self.token_budget is not None:
            found = Allowance(max(0, self.token_budget - spent.completion_tokens), Ending.TOKEN_BUDGET)
        if self.cost_budget is not None:
            tokens = self._affordable(self.cost_budget - (spent.cost or 0.0), last)
            if tokens is not None and (found.tokens is None or tokens < found.tokens):
                found = Allowance(tokens, Ending.COST_BUDGET)
        return found

    def check(self, usage: Usage, server: str | None) -> None:
        """Raise ``ConfigError`` where there is a budget of money and nobody says what a call cost.

        ``server`` is its label, None where it has none.
        """
        if self.cost_budget is None or usage.cost is not None:
            return
        if self.prices is not None:
            raise ConfigError(
                f"cost_budget cannot be kept: {server} does not say how many tokens a call took"
            )
        if server is not None or usage.prompt_tokens or usage.completion_tokens:
            raise ConfigError(
                f"cost_budget needs to know what the model costs, and {server or 'its server'} does not say: "
                "set --openai.prompt_price and --openai.completion_price (US dollars per million tokens)"
            )

    def _affordable(self, money: float, last: Usage) -> int | None:
        if money <= 0:
            return 0
        if self.prices is None:
            return None
        return self.prices.completion_tokens(money, last.prompt_tokens + last.completion_tokens)
