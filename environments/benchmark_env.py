"""Base of environments that only evaluate.

A benchmark's author writes ``eval_items()`` and, beside it, either the methods of any environment
(``format_prompt``, ``compute_reward``) or ``rollout_and_score_eval(eval_item)``, which rolls one item
out in its own way. Running side by side, resume, progress, aggregation and files come from here.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from environments.base_env import is_overridden
from environments.errors import ConfigError, UserCodeError
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.real_numbers import is_finite_number
from environments.records import Item, Message, ScoredDataGroup, ScoredDataItem

if TYPE_CHECKING:
    from environments.agent_loop import AgentResult
    from environments.run import RunReport
    from environments.tool_context import ToolContext


class BenchmarkEnv(HermesAgentBaseEnv):
    """An environment with ``evaluate`` alone."""

    @abstractmethod
    async def eval_items(self) -> Iterable[Item]:
        """The benchmark's items, each once."""

    async def rollout_and_score_eval(self, eval_item: Item) -> dict[str, Any]:
        """Roll one item out and judge it: a dictionary with ``reward``, and what else is known of it.

        The default runs the agent on ``format_prompt`` and asks ``compute_reward``.
        """
        async with self.rollout(eval_item) as rollout:
            result = await rollout.run()
            verdict = await rollout.score(result)
        return {"reward": verdict.reward, "passed": verdict.passed}

    def format_prompt(self, item: Item) -> str | Message | list[Message]:
        """The task's text: its ``instruction`` or ``prompt``."""
        if isinstance(item, dict):
            for field in (self.config.prompt_field, "instruction", "prompt"):
                if isinstance(item.get(field), str):
                    return str(item[field])
        raise UserCodeError(f"{type(self).__name__} needs format_prompt(item) for items like this one")

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> Any:
        """Needed where ``rollout_and_score_eval`` is not overridden."""
        raise UserCodeError(
            f"{type(self).__name__} defines neither compute_reward nor rollout_and_score_eval"
        )

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """One attempt at one item, in whichever way the benchmark rolls out."""
        if not is_overridden(self, "rollout_and_score_eval", BenchmarkEnv):
            return await super().collect_trajectory(item)
        from environments.attempt_scope import current_attempt
        from environments.records import Verdict

        scope = current_attempt.get()
        assert scope is not None, "collect_trajectory runs inside an attempt"
        record = scope.record
        judged = len(record.verdicts)
        found = await self.rollout_and_score_eval(item)
        reward = found.get("reward") if isinstance(found, dict) else found
        if not is_finite_number(reward):
            raise UserCodeError(f"rollout_and_score_eval gave reward = {reward!r}; a finite number is needed")
        if isinstance(found, dict):
            record.messages = record.messages or list(found.get("messages") or [])
            extra = {k: v for k, v in found.items() if k not in ("reward", "messages", "passed")}
            record.metrics.update({k: float(v) for k, v in extra.items() if is_finite_number(v)})
        if record.verdict is None or (scope.rescoring and len(record.verdicts) == judged):
            passed = found.get("passed") if isinstance(found, dict) else None
            passed = bool(passed) if passed is not None else float(reward or 0.0) >= 1.0
            record.verdicts.append(Verdict(reward=float(reward or 0.0), passed=passed))
        return None, []

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Run every item and aggregate."""
        items: Any = self.eval_items()
        return await self.evaluate_items(await items if inspect.isawaitable(items) else items)

    async def process_manager(self) -> RunReport:
        """Refused, unless a subclass draws items."""
        self._refuse_training("process")
        return await super().process_manager()

    async def env_manager(self) -> RunReport:
        """Refused, unless a subclass draws items."""
        self._refuse_training("serve")
        return await super().env_manager()

    def _refuse_training(self, workflow: str) -> None:
        if not is_overridden(self, "get_next_item", BenchmarkEnv):
            raise ConfigError(
                f"{self.environment_name} is a benchmark: it has 'evaluate' and no '{workflow}'"
                f"{self.instead_of_training(workflow)}"
            )

    def instead_of_training(self, workflow: str) -> str:
        """What to do in place of a workflow that a benchmark does not have, as the end of a sentence."""
        return ""

    async def get_next_item(self) -> Item | None:
        """A benchmark has nothing to train on."""
        return None

    async def collect_trajectories(self, item: Item) -> tuple[ScoredDataGroup | Any, list[Item]]:
        """A benchmark has nothing to train on."""
        return None, []

    async def score(self, rollout_group_data: Any) -> None:
        """A benchmark has nothing to train on."""
