"""Agents with tools in a sandbox: the layer that most environments are written on.

A subclass writes five methods (``setup``, ``get_next_item``, ``format_prompt``, ``compute_reward``,
``evaluate``); this class resolves tools, makes one sandbox per rollout, runs the agent and judges
what it left. Optional beside the five: ``next_message`` (a simulated user), ``oracle`` and
``prepare_oracle`` (how a perfect agent acts), ``toolsets_for_item`` and ``sandbox_spec`` (per item).
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from environments import atropos_names
from environments.base_env import BaseEnv, is_overridden
from environments.cleanup import cleanup_all_environments
from environments.config import APIServerConfig, BaseEnvConfig, EvalHandlingEnum, HermesAgentEnvConfig
from environments.errors import ConfigError, EngineUnusable, SandboxError, UserCodeError
from environments.group_tools import resolved_tools, selected_tools
from environments.prompts import THINKING_PROMPT, as_user_message, checked_message, conversation_of
from environments.records import (
    Item,
    Message,
    Reward,
    ScoredDataGroup,
    ScoredDataItem,
)

if TYPE_CHECKING:
    from environments.agent import Agent, AgentTask
    from environments.agent_loop import AgentResult
    from environments.attempt_scope import AttemptScope, GroupScope
    from environments.inference.session import Session
    from environments.records import Attempt
    from environments.rollout import Rollout
    from environments.sandboxes.base import Backend, Sandbox, SandboxSpec
    from environments.tool_context import ToolContext
    from environments.tools.base import Tool, ToolSettings
    from environments.tools.foreign import ForeignTools
    from environments.tools.shared import SharedResources
    from environments.tools.toolbox import Toolbox

__all__ = [
    "APIServerConfig",
    "EvalHandlingEnum",
    "HermesAgentBaseEnv",
    "HermesAgentEnvConfig",
    "Item",
    "Reward",
    "ScoredDataGroup",
    "ScoredDataItem",
    "cleanup_all_environments",
]

# User code imports `atroposlib` after this module; where it is not installed ours is served.
atropos_names.install()

POLICIES = ("oracle", "nop")
"""Server types that are scripts and not models."""


class HermesAgentBaseEnv(BaseEnv):
    """Base of environments whose agent uses tools in a sandbox of its own."""

    name: ClassVar[str | None] = "hermes-agent"
    env_config_cls: ClassVar[type[BaseEnvConfig]] = HermesAgentEnvConfig
    custom_tools: Sequence[Tool] = ()
    """Tools that the environment brings (``environments.tools.custom.tool``), beside those of toolsets."""

    def __init__(
        self, config: BaseEnvConfig, server_configs: Any, slurm: bool = False, testing: bool = False
    ) -> None:
        super().__init__(config, server_configs, slurm, testing)
        self._backend: Backend | None = None
        self._shared_tools: SharedResources | None = None
        self._foreign_tools: ForeignTools | None = None

    # What a subclass writes.

    @abstractmethod
    def format_prompt(self, item: Item) -> str | Message | list[Message]:
        """The user message for an item, or the messages that the conversation begins with."""

    @abstractmethod
    async def compute_reward(
        self, item: Item, result: AgentResult, ctx: ToolContext
    ) -> float | tuple[float, dict[str, float]] | Reward:
        """Score a rollout, 0.0 to 1.0. ``ctx`` reaches into the sandbox the model used."""

    async def next_message(self, item: Item, result: AgentResult, ctx: ToolContext) -> str | Message | None:
        """What a simulated user says when the agent stops; None ends the conversation."""
        return None

    def oracle(self, item: Item) -> Any:
        """How a perfect agent acts: a list of assistant messages with tool calls, or an async function
        of the conversation that returns the next one (None when it is done)."""
        raise ConfigError(
            f"{type(self).__name__} has no oracle(item), so --openai.server_type oracle cannot act"
        )

    async def prepare_oracle(self, item: Item, ctx: ToolContext) -> None:
        """Prepare the sandbox for the oracle, for instance upload a solution that it runs."""

    def toolsets_for_item(self, item: Item) -> list[str] | None:
        """Toolsets or tools that the item itself asks for; None where it does not."""
        named = item.get("toolsets") if isinstance(item, dict) else None
        return list(named) if isinstance(named, list) and all(isinstance(n, str) for n in named) else None

    def sandbox_spec(self, item: Item) -> SandboxSpec:
        """The sandbox an item needs: image, network, resources."""
        from environments.sandboxes.base import NetworkPolicy, Resources, SandboxSpec

        config = self.config
        return SandboxSpec(
            network=NetworkPolicy(config.sandbox_network, tuple(config.sandbox_allowed_hosts or ())),
            resources=Resources(memory_mb=config.sandbox_memory_mb, processes=config.sandbox_processes),
            lifetime=float(config.terminal_lifetime),
        )

    async def agent_view(self, item: Item, spec: SandboxSpec) -> str:
        """A hash of what an item puts before its agent beside the prompt, and not of what judges alone.

        An attempt that is judged again after this has changed stays an attempt at the item as it was. An
        environment whose items name more (files, limits) adds it. ``spec`` is the rollout's sandbox.
        """
        from environments.view_hash import view_of_spec

        return await view_of_spec(spec)

    @property
    def agent(self) -> Agent:
        """Who acts; the built-in Hermes agent unless a subclass says otherwise."""
        from environments.agent import HermesAgent

        return HermesAgent()

    # What a subclass calls.

    def rollout(
        self, item: Item, *, attempt: int = 0, spec: SandboxSpec | None = None, **options: Any
    ) -> Rollout:
        """One rollout of an item, as an async context manager.

        In ``collect_trajectory`` it belongs to the attempt at hand; elsewhere (a hand-written
        ``evaluate``) it is an attempt of its own, stored when it ends and resumed when the run is.
        ``options`` replace fields of the sandbox's specification: ``image``, ``resources``, …
        """
        from dataclasses import replace

        from environments.attempt_scope import current_attempt
        from environments.rollout import Rollout
        from environments.standalone import StandaloneRollout

        spec = replace(spec or self.sandbox_spec(item), **options)
        scope = current_attempt.get()
        if scope is not None and scope.group.item is item:
            return Rollout(self, scope, spec, self.group_tools(scope.group))
        return StandaloneRollout.begin(self, item, attempt, spec)

    def _resolve_tools_for_group(self) -> tuple[list[dict[str, Any]], set[str]]:
        """Tool schemas and names for the group at hand."""
        from environments.attempt_scope import current_group

        group = current_group.get()
        tools = selected_tools(self, group)
        return [tool.schema() for tool in tools], {tool.name for tool in tools}

    def group_tools(self, group: GroupScope) -> list[Tool]:
        """Tools of a group, resolved once and carried by the group."""
        if "tools" not in group.slots:
            own = is_overridden(self, "_resolve_tools_for_group", HermesAgentBaseEnv)
            group.slots["tools"] = resolved_tools(self) if own else selected_tools(self, group)
        return list(group.slots["tools"])

    @property
    def brought_tools(self) -> list[Tool]:
        """Tools beside those of toolsets: Hermes Agent's, the environment's own, those of MCP servers."""
        foreign = self._foreign_tools
        return [*foreign.hermes, *self.custom_tools, *foreign.mcp] if foreign else list(self.custom_tools)

    @property
    def unselected_tools(self) -> list[Tool]:
        """Tools that no model gets but ``ctx.call_tool`` reaches: those of an installed Hermes Agent."""
        return self._foreign_tools.unselected if self._foreign_tools else []

    def tool_settings(self) -> ToolSettings:
        """Limits of the tools, from the configuration."""
        from environments.tools.settings import settings_from

        return settings_from(self.config)

    @property
    def shared_tools(self) -> SharedResources:
        """What the tools of the run's rollouts have together; closed with the environment."""
        if self._shared_tools is None:
            from environments.tools.shared import SharedResources

            run = self.active_run
            self._shared_tools = SharedResources(run.directory if run is not None else None)
        return self._shared_tools

    def empty_toolbox(self) -> Toolbox:
        """A toolbox for rollouts without tools; every call gets a helpful error."""
        from environments.tools.base import ToolState
        from environments.tools.toolbox import Toolbox

        return Toolbox([], ToolState(sandbox=None, settings=self.tool_settings()))  # type: ignore[arg-type]

    def as_messages(self, prompt: str | Message | Sequence[Message]) -> list[Message]:
        """A prompt as messages, with the system prompt in front where there is none."""
        return conversation_of(prompt, self.config.system_prompt, self.thinking_prompt())

    def thinking_prompt(self) -> str | None:
        """What ``thinking_mode`` adds to the system prompt."""
        if not self.config.thinking_mode:
            return None
        return self.config.custom_thinking_prompt or THINKING_PROMPT

    async def prompt_messages(self, item: Item) -> list[Message]:
        """The messages a conversation about this item begins with."""
        prompt: Any = self.format_prompt(item)
        if inspect.isawaitable(prompt):
            prompt = await prompt
        if not isinstance(prompt, str | dict | list | tuple):
            raise UserCodeError(
                f"format_prompt returned {type(prompt).__name__}; text or messages are needed"
            )
        return self.as_messages(prompt)

    def sampling_parameters(self) -> dict[str, Any]:
        """See ``BaseEnv.sampling_parameters``."""
        config = self.config
        parameters = {
            "temperature": config.agent_temperature,
            "top_p": config.top_p,
            "reasoning_effort": config.reasoning_effort,
            "max_reasoning_tokens": config.max_reasoning_tokens,
            "extra_body": config.extra_body,
        }
        return {name: value for name, value in parameters.items() if value is not None}

    def agent_task(self, rollout: Rollout, messages: list[Message]) -> AgentTask:
        """What the agent is asked to do, within the configuration's limits."""
        from environments.agent import AgentTask
        from environments.plain_calls import run_user_code

        config = self.config
        clock = rollout.scope.waiting if config.rollout_timeout_clock == "working" else None

        async def ask_user(result: AgentResult) -> str | Message | None:
            answer = await run_user_code(self.next_message, rollout.item, result, rollout.ctx)
            return None if answer is None else checked_message(as_user_message(answer))

        return AgentTask(
            messages=messages,
            max_turns=config.max_agent_turns,
            max_tokens=config.max_token_length if config.max_token_length > 0 else None,
            token_budget=config.token_budget,
            cost_budget=config.cost_budget,
            time_limit=config.rollout_timeout,
            waiting_clock=clock,
            repeated_calls_limit=config.repeated_calls_limit,
            context_policy=config.context_policy,
            sampling={**self.sampling_parameters(), "seed": rollout.seed},
            next_message=ask_user if is_overridden(self, "next_message", HermesAgentBaseEnv) else None,
        )

    # One attempt.

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """Roll an item out in a sandbox of its own, and judge what is left."""
        async with self.rollout(item) as rollout:
            result = await rollout.run()
            verdict = await rollout.score(result)
        return rollout.scored_item(verdict.reward), []

    async def open_session(self, rollout: Rollout) -> Session:
        """The rollout's line to its policy."""
        policy = self.policy
        if policy == "oracle":
            from environments.inference.policies import OracleSession

            script = self.oracle(rollout.item)
            return OracleSession(await script if inspect.isawaitable(script) else script)
        if policy == "nop":
            from environments.inference.policies import NopSession

            return NopSession()
        return self.server.session(split=rollout.split)

    @property
    def policy(self) -> str | None:
        """``oracle`` or ``nop`` where no model acts."""
        kind = self.server_configs[0].server_type if self.server_configs else None
        return kind if kind in POLICIES else None

    async def prepare_policy(self, rollout: Rollout) -> None:
        """Let the environment prepare the sandbox for its oracle."""
        if self.policy == "oracle" and is_overridden(self, "prepare_oracle", HermesAgentBaseEnv):
            from environments.plain_calls import run_user_code

            await run_user_code(self.prepare_oracle, rollout.item, rollout.ctx)

    def prepare_scope(self, scope: AttemptScope) -> None:
        """See ``BaseEnv.prepare_scope``: lets user code name rollouts of its own."""
        from environments.rollout import Rollout

        def open_rollout(task_id: str) -> Rollout:
            group = scope.group
            return Rollout(
                self,
                scope,
                self.sandbox_spec(group.item),
                self.group_tools(group),
                task_id=task_id,
                split=group.split,
            )

        scope.open_rollout = open_rollout
        run = self.active_run
        if run is not None and run.store is not None and "tools_hash" not in scope.group.slots:
            schemas = [tool.schema() for tool in self.group_tools(scope.group)]
            scope.group.slots["tools_hash"] = run.store.put_tools(schemas)
        scope.record.provenance.tools_hash = scope.group.slots.get("tools_hash", "")

    async def create_sandbox(self, spec: SandboxSpec) -> Sandbox:
        """One sandbox on the run's backend."""
        from dataclasses import replace

        if self._backend is None:
            await self._start_backend()
        assert self._backend is not None
        if self.config.keep_sandboxes != "none":  # most engines fix the lifetime at the beginning
            spec = replace(spec, lifetime=spec.lifetime + self.config.kept_sandbox_lifetime)
        try:
            return await self._backend.create(spec)
        except SandboxError:
            self.check_backend()
            raise

    async def agent_sandbox(self, item: Item, sandbox: Sandbox) -> Sandbox:
        """The rollout's machine as the agent's tools see it: as another user, for instance."""
        return sandbox

    async def kept_sandbox(self, record: Attempt) -> Sandbox:
        """The sandbox that a finished attempt left. Raises ``EvidenceMissing`` where there is none."""
        from environments.keeping import find_kept

        if self._backend is None:
            await self._start_backend()
        assert self._backend is not None
        return await find_kept(self._backend, record)

    def check_backend(self) -> None:
        """Raise ``EngineUnusable`` where failures in sandboxes are the machine's and not the agents'."""
        trouble = self._backend.trouble() if self._backend is not None else None
        if trouble is not None:
            raise EngineUnusable(trouble)

    # Life of a run.

    async def start(self) -> None:
        """Start servers and check the sandbox backend and the tools before anything is rolled out."""
        from environments.tools.foreign import load_foreign_tools

        self._foreign_tools = await load_foreign_tools(self.config, self.shared_tools)
        selected_tools(self, None)  # refuses names that no toolset has
        if self.config.tool_result_overrides:
            from environments.tools.budget import check_overrides

            check_overrides(self.config.tool_result_overrides, [*self.brought_tools, *self.unselected_tools])
        await self._start_backend()
        await super().start()

    async def _start_backend(self) -> None:
        from environments.sandboxes.registry import start_backend

        run = self.active_run
        model_acts = self.policy is None
        self._backend = await start_backend(self.config, run.run_id if run else "", model_acts=model_acts)

    async def close(self) -> None:
        """Release sandboxes, servers and what tools share."""
        backend, self._backend = self._backend, None
        shared, self._shared_tools = self._shared_tools, None
        async with AsyncExitStack() as stack:
            stack.push_async_callback(super().close)
            for resource in (backend, shared):
                if resource is not None:
                    stack.push_async_callback(resource.close)
