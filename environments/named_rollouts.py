"""Rollouts that user code names itself: ``HermesAgentLoop(task_id=…)`` and ``ToolContext(task_id)``.

Neither is given a rollout. Both find it by its name, in the attempt that they run in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from environments.attempt_scope import current_attempt

if TYPE_CHECKING:
    from environments.rollout import Rollout


async def rollout_for_task(task_id: str) -> Rollout:
    """The live rollout of this name in the attempt at hand; made where user code is the first to name it."""
    scope = current_attempt.get()
    if scope is None:
        raise RuntimeError(
            "no attempt is running here: use `async with self.rollout(item) as r` in code that the "
            "framework did not call"
        )
    if task_id in scope.rollouts:
        return scope.rollouts[task_id]
    if scope.open_rollout is None:
        raise RuntimeError(f"the environment {scope.record.environment} has no sandboxes")
    rollout = scope.open_rollout(task_id)
    return await rollout.__aenter__()


def server_for(rollout: Rollout, server: Any) -> Any:
    """What a loop of user code talks to: ``server``, pinned where it is the environment's server manager."""
    opens_sessions = callable(getattr(server, "session", None))
    return _LateSession(rollout) if opens_sessions and server is rollout.environment.server else server


class _LateSession:
    """The rollout's session, opened at the first call."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout

    async def chat_completion(self, messages: Any, tools: Any = None, **sampling: Any) -> Any:
        session = await self._rollout.session()
        return await session.chat_completion(messages, tools, **sampling)

    def managed_state(self) -> dict[str, Any] | None:
        return self._rollout.managed_state()
