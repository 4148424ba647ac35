"""What a model's tokens cost, as the configuration says. There is no price list in here: prices change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from environments.records import Usage

if TYPE_CHECKING:
    from environments.config import APIServerConfig

_PER = 1_000_000
_MANY = 1e12
"""Tokens that no reply has."""


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens: read anew, read from the server's cache, written."""

    prompt: float
    cached: float
    completion: float

    def cost(self, usage: Usage) -> float:
        """US dollars of one call."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        return (
            (usage.prompt_tokens - cached) * self.prompt
            + cached * self.cached
            + usage.completion_tokens * self.completion
        ) / _PER

    def completion_tokens(self, money: float, prompt_tokens: int) -> int | None:
        """Tokens that a reply may have for ``money``, its prompt at the lowest price there may be.

        None where replies cost nothing and the prompt can be paid.
        """
        left = money - prompt_tokens * min(self.prompt, self.cached) / _PER
        if left <= 0:
            return 0
        return int(min(left * _PER / self.completion, _MANY)) if self.completion else None


def prices_of(config: APIServerConfig) -> Prices | None:
    """The prices of a server's model; None where the configuration has none."""
    if config.prompt_price is None or config.completion_price is None:
        return None
    cached = config.prompt_price if config.cached_price is None else config.cached_price
    return Prices(config.prompt_price, cached, config.completion_price)


def dearest(all_prices: Iterable[Prices | None]) -> Prices | None:
    """What a call costs at most, whichever of several servers takes it; None where one has no prices."""
    every = list(all_prices)
    known = [prices for prices in every if prices is not None]
    if not known or len(known) < len(every):
        return None
    return Prices(
        max(prices.prompt for prices in known),
        max(prices.cached for prices in known),
        max(prices.completion for prices in known),
    )
