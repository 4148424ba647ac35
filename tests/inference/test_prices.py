"""What calls cost: by the configuration's prices, by the server's word, and within a budget."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.agent_loop import AgentResult
from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.errors import ConfigError, RunAborted
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.inference.prices import Prices, dearest, prices_of
from environments.inference.server_manager import ServerManager
from environments.records import Ending, Item, Usage
from environments.run import RunReport
from tests.inference.scripted_server import completion, replies, says, serving
from tests.inference.token_calls import answer, sample
from tests.servers.token_server import TokenServer

PRICES = {"prompt_price": 4.0, "cached_price": 1.0, "completion_price": 10.0}
USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 200,
    "prompt_tokens_details": {"cached_tokens": 600},
}
counts = st.integers(0, 10**7)
money = st.floats(0, 1_000)


def cost_of(usage: dict[str, Any], **prices: float) -> float | None:
    """What one call costs whose server states this usage."""

    async def run() -> float | None:
        async with (
            serving(says("hi", usage=usage)) as server,
            ServerManager([server.config(**prices)]) as manager,
        ):
            return (await manager.session().chat_completion([{"role": "user", "content": "hi"}])).usage.cost

    return asyncio.run(run())


def test_the_configurations_prices_count_first_and_then_the_servers_word() -> None:
    assert cost_of(USAGE, **PRICES) == pytest.approx((400 * 4 + 600 * 1 + 200 * 10) / 1e6)
    assert cost_of({**USAGE, "cost": 7.0}, **PRICES) == pytest.approx(0.0042)
    assert cost_of({**USAGE, "cost": 7.0}) == 7.0
    assert cost_of(USAGE) is None
    assert cost_of(USAGE, prompt_price=4.0, completion_price=10.0) == pytest.approx(0.006)
    assert cost_of(USAGE, prompt_price=0, completion_price=0) == 0.0
    assert cost_of({}, **PRICES) is None  # no tokens are stated, so nothing is known


def test_replies_in_tokens_cost_too() -> None:
    for kind, options in (("vllm", {}), ("sglang", {"offers": ["/generate"]})):
        reply = sample(TokenServer(answer, **options), kind, config=PRICES)  # type: ignore[arg-type]
        fresh = reply.usage.prompt_tokens - reply.usage.cached_tokens
        expected = fresh * 4 + reply.usage.cached_tokens + len(reply.tokens) * 10
        assert reply.usage.cost == pytest.approx(expected / 1e6)


@pytest.mark.parametrize(
    "prices",
    [{"prompt_price": 1}, {"cached_price": 1}, {"cached_price": 1, "completion_price": 1}],
)
def test_half_a_price_list_is_none(prices: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="go together"):
        APIServerConfig(**prices)  # type: ignore[arg-type]


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_prices_are_amounts(price: float) -> None:
    with pytest.raises(ValidationError):
        APIServerConfig(prompt_price=price, completion_price=1.0)
    with pytest.raises(ValidationError):
        HermesAgentEnvConfig(cost_budget=price)


def test_the_dearest_of_several_servers() -> None:
    one = prices_of(APIServerConfig(prompt_price=1, completion_price=9))
    two = prices_of(APIServerConfig(prompt_price=2, cached_price=0.5, completion_price=3))
    assert dearest([one, two]) == Prices(2, 1, 9)
    assert dearest([one, None]) is None
    assert dearest([]) is None


@given(st.builds(Prices, money, money, money), money, counts)
def test_what_can_be_paid_is_never_more_than_the_money(prices: Prices, left: float, prompt: int) -> None:
    tokens = prices.completion_tokens(left, prompt)
    if tokens:
        cheapest = Prices(min(prices.prompt, prices.cached), prices.cached, prices.completion)
        assert cheapest.cost(Usage(prompt, 0, tokens)) <= left * (1 + 1e-9)


class AskingEnv(HermesAgentBaseEnv):
    """Asks on and on."""

    name = "asking"
    drawn = 0

    async def setup(self) -> None:
        self.drawn = 0

    async def get_next_item(self) -> Item | None:
        self.drawn += 1
        return {"id": str(self.drawn)} if self.drawn <= 2 else None

    def format_prompt(self, item: Item) -> str:
        return "Hello"

    async def next_message(self, item: Item, result: AgentResult, ctx: Any) -> str:
        return "And again"

    async def compute_reward(self, item: Item, result: AgentResult, ctx: Any) -> float:
        return 1.0

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.evaluate_items([{"id": "a"}, {"id": "b"}])


def evaluate(
    path: Path, server: dict[str, Any], environment: type[AskingEnv] = AskingEnv, **settings: Any
) -> RunReport:
    async def run() -> RunReport:
        message = completion({"content": "hm"}, usage=USAGE)
        async with serving(replies(message)) as scripted:
            config = HermesAgentEnvConfig(
                enabled_toolsets=[],
                use_wandb=False,
                progress="none",
                data_dir_to_save_evals=str(path),
                **settings,
            )
            return await environment(config, [scripted.config(stream=False, **server)]).evaluate_manager()

    return asyncio.run(run())


def test_a_budget_of_money_in_a_run(tmp_path: Path) -> None:
    report = evaluate(tmp_path, PRICES, cost_budget=0.01)  # a call costs 0.0042
    for attempt in report.attempts:
        assert attempt.ending is Ending.COST_BUDGET
        assert [turn.usage.cost for turn in attempt.turns] == pytest.approx([0.0042] * 3)
        assert attempt.usage.cost == pytest.approx(0.0126)
        assert attempt.reward == 1.0
    assert report.metrics["eval/cost"] == pytest.approx(0.0252)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored["results"]["all"]["eval/cost"] == pytest.approx(0.0252)


class TwiceEnv(AskingEnv):
    """Has the agent act twice in one rollout, as tasks of several steps do."""

    results: list[AgentResult]

    async def collect_trajectory(self, item: Item) -> Any:
        async with self.rollout(item) as rollout:
            self.results = [await rollout.run("one", max_turns=2), await rollout.run("two")]
            verdict = await rollout.score(self.results[-1])
        return rollout.scored_item(verdict.reward), []


def test_budgets_are_those_of_the_rollout_and_not_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TwiceEnv] = []
    monkeypatch.setattr(TwiceEnv, "setup", lambda self: _noted(seen, self))
    evaluate(tmp_path, PRICES, environment=TwiceEnv, cost_budget=0.01)  # a call costs 0.0042
    first, second = seen[0].results
    assert (first.ending, first.turns_used) == (Ending.MAX_TURNS, 2)
    assert (second.ending, second.turns_used) == (Ending.COST_BUDGET, 1)


async def _noted(seen: list[TwiceEnv], environment: TwiceEnv) -> None:
    seen.append(environment)


def test_a_budget_that_nobody_can_keep_ends_the_run_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, RunAborted), match=r"openai\.prompt_price"):
        evaluate(tmp_path, {}, cost_budget=0.01)


def test_the_policies_cost_nothing(tmp_path: Path) -> None:
    config = HermesAgentEnvConfig(
        enabled_toolsets=[], use_wandb=False, progress="none", data_dir_to_save_evals=str(tmp_path),
        cost_budget=0.01, max_agent_turns=3,
    )  # fmt: skip
    report = asyncio.run(AskingEnv(config, [APIServerConfig(server_type="nop")]).evaluate_manager())
    assert {attempt.ending for attempt in report.attempts} == {Ending.MAX_TURNS}
