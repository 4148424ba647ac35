"""The seam between environments and agents.

An agent is anything with ``run(task, session, toolbox, sandbox)``. The environment layer knows only
this; the built-in one is the Hermes agent loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import environments
from environments.agent_loop import AgentResult, HermesAgentLoop, NextMessage
from environments.context_policy import Policy
from environments.records import Message
from environments.waiting import WaitingClock

if TYPE_CHECKING:
    from environments.inference.session import Session
    from environments.sandboxes.base import Sandbox
    from environments.tools.toolbox import Toolbox


@dataclass(slots=True)
class AgentTask:
    """What an agent is asked to do, and within which limits.

    ``time_limit`` is in seconds, ``cost_budget`` in US dollars.
    """

    messages: list[Message]
    max_turns: int = 30
    max_tokens: int | None = None
    token_budget: int | None = None
    cost_budget: float | None = None
    time_limit: float | None = None
    waiting_clock: WaitingClock | None = None
    repeated_calls_limit: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    next_message: NextMessage | None = None
    context_policy: Policy = "stop"


class Agent(Protocol):
    """Acts on a task until it is done or out of bounds."""

    name: str
    version: str

    async def run(
        self, task: AgentTask, session: Session, toolbox: Toolbox, sandbox: Sandbox | None
    ) -> AgentResult:
        """Roll the task out. Raises ``ModelError`` and ``SandboxError``, nothing else on purpose.

        ``sandbox`` is None where the task has no tools and so no machine was made.
        """


class HermesAgent:
    """The built-in agent: the Hermes loop over the rollout's tools."""

    name = "hermes"
    version = environments.__version__

    async def run(
        self, task: AgentTask, session: Session, toolbox: Toolbox, sandbox: Sandbox | None
    ) -> AgentResult:
        """Hold the conversation; see ``HermesAgentLoop``."""
        loop = HermesAgentLoop(
            server=session,
            max_turns=task.max_turns,
            temperature=None,
            max_tokens=task.max_tokens,
            toolbox=toolbox,
            token_budget=task.token_budget,
            cost_budget=None if session.is_script else task.cost_budget,
            prices=session.prices,
            repeated_calls_limit=task.repeated_calls_limit,
            next_message=task.next_message,
            sampling=task.sampling,
            time_limit=task.time_limit,
            waiting_clock=task.waiting_clock,
            context_policy=task.context_policy,
            context_length=session.context_length,
        )
        return await loop.run(task.messages)
