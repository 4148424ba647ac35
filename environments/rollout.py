"""One rollout and everything that it owns: sandbox, tools, session, record.

::

    async with self.rollout(item) as r:
        result = await r.run(messages)
        verdict = await r.score(result)

The sandbox is made when it is first needed and released when the block ends, however it ends. What
happens in the block is written to the attempt's record as it happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from environments.agent import AgentTask
from environments.agent_loop import AgentResult
from environments.attempt_scope import AttemptScope
from environments.errors import EvidenceMissing, SandboxBroken, SandboxReleased
from environments.records import (
    MASKED,
    MASKED_LOGPROB,
    Attempt,
    Ending,
    Item,
    Message,
    Outcome,
    ScoredDataItem,
    Usage,
    Verdict,
)
from environments.sandboxes.answering import ensure_answer
from environments.scoring import broken_sandbox_verdict, result_of, score_rollout

if TYPE_CHECKING:
    from types import TracebackType

    from environments.hermes_base_env import HermesAgentBaseEnv
    from environments.inference.session import Session
    from environments.sandboxes.base import Sandbox, SandboxSpec
    from environments.tool_context import ToolContext
    from environments.tools.base import Tool
    from environments.tools.toolbox import Toolbox

logger = logging.getLogger(__name__)

_live: weakref.WeakSet[Rollout] = weakref.WeakSet()
"""Rollouts that may hold a sandbox; read by ``cleanup_all_environments`` alone."""


def live_rollouts() -> list[Rollout]:
    """Rollouts of this process that are not over."""
    return [rollout for rollout in _live if not rollout.released]


class Rollout:
    """What one attempt at one item works with. Made by ``HermesAgentBaseEnv.rollout``."""

    def __init__(
        self,
        environment: HermesAgentBaseEnv,
        scope: AttemptScope,
        spec: SandboxSpec,
        tools: Sequence[Tool],
        *,
        task_id: str | None = None,
        split: Literal["train", "eval"] = "train",
    ) -> None:
        self.environment = environment
        self.scope = scope
        self.spec = spec
        self.tools = list(tools)
        self.task_id = task_id or uuid.uuid4().hex
        self.split = split
        self._sandbox: Sandbox | None = None
        self._toolbox: Toolbox | None = None
        self._session: Session | None = None
        self._making = asyncio.Lock()
        self._released = False
        self._context: ToolContext | None = None
        self._releasing: asyncio.Future[None] | None = None
        self._spent = Usage()
        """By all that the agent did in it so far."""
        self._error: BaseException | None = None
        """What ended the block, where it was not its own end."""

    @property
    def item(self) -> Item:
        """The item being rolled out."""
        return self.scope.group.item

    @property
    def record(self) -> Attempt:
        """The attempt's record, filled as the rollout goes on."""
        return self.scope.record

    @property
    def finished(self) -> bool:
        """Whether an earlier run has this attempt already; ``run`` and ``score`` then give it back.

        While it is judged again, ``score`` judges.
        """
        return self.rescoring or self.record.outcome is Outcome.SCORED

    @property
    def rescoring(self) -> bool:
        """Whether a finished attempt is judged again, without a model."""
        return self.scope.rescoring

    @property
    def seed(self) -> int:
        """Seed of this attempt."""
        return self.scope.seed

    @property
    def ctx(self) -> ToolContext:
        """The same sandbox for the reward function."""
        if self._context is None:
            from environments.tool_context import ToolContext

            self._context = ToolContext(self.task_id, rollout=self)
        return self._context

    async def __aenter__(self) -> Rollout:
        self.scope.rollouts[self.task_id] = self
        _live.add(self)
        try:
            await self._note_view()
            if self.tools and not self.finished:
                await self.sandbox()
        except BaseException as error:  # cancelled, too: the block that would release it is not entered
            self._error = error
            await self.release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._error = error
        await self.release()

    async def _note_view(self) -> None:
        """Note what the item puts before the agent, and, where it is judged again, whether that changed."""
        scope, provenance = self.scope, self.record.provenance
        if scope.viewed or (self.finished and not self.rescoring):
            return
        scope.viewed = True
        from environments.view_hash import with_tools

        view = with_tools(
            await self.environment.agent_view(self.item, self.spec), [t.name for t in self.tools]
        )
        if not self.rescoring:
            provenance.view_hash = view
        elif self.environment.rescoring is not None:
            self.environment.rescoring.compare_view(self.record, view, scope.group.slots["item_hash"])

    async def sandbox(self) -> Sandbox:
        """The rollout's machine, made at the first call."""
        async with self._making:
            if self._released:
                raise SandboxReleased(f"the sandbox of rollout {self.task_id} was released")
            if self._sandbox is None and self.rescoring:
                self._sandbox = await self.environment.kept_sandbox(self.record)
            elif self._sandbox is None:
                started = time.monotonic()
                self._sandbox = await self.environment.create_sandbox(self.spec)
                self.record.clock.sandbox_start += time.monotonic() - started
                self.record.sandbox = self._sandbox.info
            return self._sandbox

    async def toolbox(self, names: set[str] | None = None) -> Toolbox:
        """The rollout's tools; ``names`` leaves only these."""
        if self._toolbox is None or names is not None:
            from environments.tools.base import ToolState
            from environments.tools.toolbox import Toolbox

            tools = [tool for tool in self.tools if names is None or tool.name in names]
            state = (
                self._toolbox.state
                if self._toolbox is not None
                else ToolState(
                    sandbox=await self.environment.agent_sandbox(self.item, await self.sandbox()),
                    settings=self.environment.tool_settings(),
                    shared=self.environment.shared_tools,
                )
            )
            toolbox = Toolbox(tools, state)
            if names is not None:
                return toolbox
            self._toolbox = toolbox
        return self._toolbox

    async def session(self) -> Session:
        """The conversation's line to the policy."""
        if self.rescoring:
            raise EvidenceMissing("no model is called while an attempt is judged again")
        if self._session is None:
            self._session = await self.environment.open_session(self)
        return self._session

    async def run(
        self, messages: str | Message | Sequence[Message] | None = None, **limits: Any
    ) -> AgentResult:
        """Let the agent act. ``messages`` default to the environment's prompt for the item.

        ``limits`` override fields of ``AgentTask``: ``max_turns``, ``time_limit``, ``sampling``, …
        """
        if self.finished:
            return result_of(self.record)
        environment = self.environment
        if messages is None:
            messages = await environment.prompt_messages(self.item)
        session = await self.session()
        await environment.prepare_policy(self)
        task: AgentTask = environment.agent_task(self, environment.as_messages(messages))
        for name, value in limits.items():
            if not hasattr(task, name):
                raise TypeError(f"AgentTask has no limit {name!r}")
            setattr(task, name, value)
        self._take_off_budgets(task, limits)
        record = self.record
        record.agent.name, record.agent.version = environment.agent.name, environment.agent.version
        record.agent.wire, record.agent.phase = session.wire, session.phase
        record.agent.model = session.model
        sandbox = await self.sandbox() if self.tools else None
        toolbox = await self.toolbox() if self.tools else environment.empty_toolbox()
        record.tool_names = list(toolbox.names)
        result = await environment.agent.run(task, session, toolbox, sandbox)
        self._spent.add(result.usage)
        self.record_result(result)
        record.sequences = session.sequences()
        return result

    def _take_off_budgets(self, task: AgentTask, limits: dict[str, Any]) -> None:
        """Budgets are those of the rollout, however often the agent is asked to act in it."""
        if task.token_budget is not None and "token_budget" not in limits:
            task.token_budget = max(0, task.token_budget - self._spent.completion_tokens)
        if task.cost_budget is not None and "cost_budget" not in limits:
            task.cost_budget = max(0.0, task.cost_budget - (self._spent.cost or 0.0))

    def record_result(self, result: AgentResult) -> None:
        """Take an agent's result into the record."""
        record = self.record
        record.messages = result.messages
        record.turns = result.turns
        record.usage = result.usage
        record.ending = result.ending
        record.agent.model_served = result.model_served
        record.tool_errors = [
            {"turn": e.turn, "tool_name": e.tool_name, "arguments": e.arguments, "error": e.error}
            for e in result.tool_errors
        ]
        record.context_changes = [asdict(change) for change in result.context_changes]
        clock = record.clock
        clock.model = sum(max(0.0, t.ended_at - t.started_at - t.waiting) for t in result.turns)
        clock.tools = sum(c.ended_at - c.started_at for t in result.turns for c in t.tool_calls)

    def managed_state(self) -> dict[str, Any] | None:
        """Token sequences of the conversation so far, None in phase 1."""
        return self._session.managed_state() if self._session is not None else None

    async def score(self, result: AgentResult) -> Verdict:
        """Judge what the rollout left behind; see ``scoring``."""
        record = self.record
        if self.finished and record.verdict is not None and not self.rescoring:
            return record.verdict
        if record.ending is None:
            self.record_result(result)
        started = time.monotonic()
        keep = asyncio.get_running_loop().call_later(_KEEP_AFTER, self._keep_record)
        try:
            verdict = await self._verdict(result)
        finally:
            keep.cancel()
            record.clock.verification += time.monotonic() - started
        record.verdicts.append(verdict)
        return verdict

    def _keep_record(self) -> None:
        """Write the rollout down before its verdict, so that a kill during a long grading keeps it."""
        run = self.environment.active_run
        if run is not None and run.store is not None and not self.rescoring:
            run.store.append(self.record)

    async def _verdict(self, result: AgentResult) -> Verdict:
        if result.ending is Ending.SANDBOX_BROKEN:
            return broken_sandbox_verdict("the agent broke its sandbox")
        self.environment.check_backend()
        try:
            if self._sandbox is not None:
                await ensure_answer(self._sandbox)
            verdict = await score_rollout(self, result)
            self.environment.check_backend()
            return verdict
        except SandboxBroken as error:
            self.record.ending = Ending.SANDBOX_BROKEN
            return broken_sandbox_verdict(f"the sandbox broke under grading: {error}", contested=True)

    def scored_item(self, reward: float | None) -> ScoredDataItem:
        """The attempt as a row of the trajectory API; phase 1 has placeholder tokens, marked as such."""
        record = self.record
        row: ScoredDataItem = {"scores": float(reward or 0.0), "messages": record.messages}
        if record.sequences:
            last = record.sequences[-1]
            row["tokens"], row["masks"], row["inference_logprobs"] = last.tokens, last.mask, last.logprobs
        else:
            row["tokens"], row["masks"], row["inference_logprobs"] = [0], [MASKED], [MASKED_LOGPROB]
            row["overrides"] = {"placeholder_tokens": True}
        return row

    async def release(self) -> None:
        """Give everything back; later use raises ``SandboxReleased``. Not undone by cancellation."""
        work = self.release_soon()
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise

    def release_soon(self) -> asyncio.Future[None]:
        """Begin to give everything back, once; the future ends when that is done."""
        if self._releasing is None:
            self._released = True
            self.scope.rollouts.pop(self.task_id, None)
            self._releasing = asyncio.ensure_future(self._release())
        return self._releasing

    async def _release(self) -> None:
        async with self._making:
            sandbox, session = self._sandbox, self._session
            self._sandbox = self._session = None
        if session is not None and not self.record.sequences:  # an agent loop of the user's own
            self.record.sequences = session.sequences()
        kept = False
        try:
            kept = sandbox is not None and await self._keep(sandbox)
            if self._toolbox is not None:
                await (self._toolbox.state.close() if kept else self._toolbox.cleanup())
        finally:
            if session is not None:
                await session.close()
            if sandbox is not None and not kept:
                await sandbox.close()

    async def _keep(self, sandbox: Sandbox) -> bool:
        """Let the sandbox live on where ``keep_sandboxes`` wants it; False where it is to be closed."""
        config, run = self.environment.config, self.environment.active_run
        if self.rescoring:
            await sandbox.detach()
            return True
        if config.keep_sandboxes == "none":
            return False
        from environments import keeping

        if not keeping.is_wanted(config.keep_sandboxes, self.record, self._error):
            return False
        return await keeping.keep(sandbox, config, self.record, run.note if run else logger.warning)

    @property
    def released(self) -> bool:
        """Whether the rollout is over."""
        return self._released


_KEEP_AFTER = 5.0
"""Seconds of grading after which the ungraded rollout is worth a line of its own."""
