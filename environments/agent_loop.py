"""The multi-turn engine: ask the model, run its tool calls, repeat until it stops.

The loop speaks messages in OpenAI's form. It never raises for what the model does wrong: malformed
calls get a tool message that helps, and how the conversation ended is a value (``Ending``). What it
does raise are failures of ours: ``ModelError`` and ``SandboxError``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from environments.context_policy import ContextChange, ContextKeeper, Policy
from environments.errors import ContextOverflow, SandboxBroken
from environments.records import Ending, Message, ToolCallRecord, Turn, Usage
from environments.reply_reading import argument_text, ending_of_reply, message_of_reply, unused_id
from environments.spending import Allowance, Spending, TokenPrices
from environments.waiting import DeadlineReached, WaitingClock, deadline

if TYPE_CHECKING:
    from environments.inference.types import ChatCompletion, Choice, ToolCall
    from environments.tools.toolbox import Toolbox

_KEPT_ARGUMENT_CHARS = 2_000
"""Of arguments and results in an error report; the conversation has them whole."""

NextMessage = Callable[["AgentResult"], Awaitable[str | Message | None]]
"""A simulated user: the next user message, or None to end the conversation."""


class ChatServer(Protocol):
    """Whatever answers a conversation: a session, a server manager, a policy."""

    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> ChatCompletion:
        """One reply."""


@dataclass(slots=True)
class ToolError:
    """A tool call that went wrong. ``turn`` counts from 1."""

    turn: int
    tool_name: str
    arguments: str
    error: str
    tool_result: str


@dataclass
class AgentResult:
    """What a rollout of the agent left behind."""

    messages: list[Message]
    turns_used: int = 0
    finished_naturally: bool = False
    reasoning_per_turn: list[str | None] = field(default_factory=list)
    tool_errors: list[ToolError] = field(default_factory=list)
    managed_state: dict[str, Any] | None = None
    ending: Ending = Ending.STOPPED
    turns: list[Turn] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    model_served: str | None = None
    """The model's name as its server gave it."""
    context_changes: list[ContextChange] = field(default_factory=list)
    """What the context policy changed in ``messages``."""

    @property
    def finish_reasons(self) -> list[str | None]:
        """Finish reason of each turn, as the server gave it."""
        return [turn.finish_reason for turn in self.turns]

    @property
    def final_response(self) -> str:
        """Text of the last assistant message."""
        for message in reversed(self.messages):
            if message.get("role") == "assistant":
                content = message.get("content")
                return content if isinstance(content, str) else ""
        return ""


class HermesAgentLoop:
    """Runs one conversation.

    ``server`` answers it; ``toolbox`` runs the calls. Without a toolbox the loop uses the tools and
    the sandbox of the rollout named ``task_id`` in the attempt that it runs in.
    ``max_tokens`` bounds one reply, ``token_budget`` all replies together, ``cost_budget`` (US dollars)
    what they cost, by ``prices`` where these are known, ``time_limit`` (seconds) the whole conversation,
    in working time where a waiting clock is given. ``context_policy`` says what becomes of a conversation
    that no longer fits into ``context_length`` tokens, where that is known.
    """

    def __init__(
        self,
        server: ChatServer,
        tool_schemas: Sequence[dict[str, Any]] | None = None,
        valid_tool_names: set[str] | None = None,
        max_turns: int = 30,
        task_id: str | None = None,
        temperature: float | None = 1.0,
        max_tokens: int | None = None,
        extra_body: dict[str, Any] | None = None,
        *,
        toolbox: Toolbox | None = None,
        token_budget: int | None = None,
        cost_budget: float | None = None,
        prices: TokenPrices | None = None,
        repeated_calls_limit: int | None = None,
        next_message: NextMessage | None = None,
        sampling: dict[str, Any] | None = None,
        time_limit: float | None = None,
        waiting_clock: WaitingClock | None = None,
        context_policy: Policy = "stop",
        context_length: int | None = None,
    ) -> None:
        self.server = server
        self.tool_schemas = list(tool_schemas) if tool_schemas is not None else None
        self.valid_tool_names = valid_tool_names
        self.max_turns = max_turns
        self.task_id = task_id or str(uuid.uuid4())
        self.spending = Spending(token_budget, cost_budget, prices)
        self.repeated_calls_limit = repeated_calls_limit
        self.next_message = next_message
        self.toolbox = toolbox
        self.max_tokens = max_tokens
        self.time_limit, self.waiting_clock = time_limit, waiting_clock
        self.context_policy, self.context_length = context_policy, context_length
        self._sampling = {
            key: value
            for key, value in {
                "temperature": temperature,
                "extra_body": extra_body,
                **(sampling or {}),
            }.items()
            if value is not None
        }

    async def run(self, messages: Sequence[Message]) -> AgentResult:
        """Hold the conversation that begins with ``messages`` and return how it went."""
        toolbox, server = await self._find_rollout()
        conversation = _Conversation(self, server, toolbox, AgentResult(messages=list(messages)))
        result = await conversation.hold()
        managed_state = getattr(server, "managed_state", None)  # servers of user code may have none
        if callable(managed_state):
            result.managed_state = managed_state()
        return result

    async def _find_rollout(self) -> tuple[Toolbox, ChatServer]:
        if self.toolbox is not None:
            return self.toolbox, self.server
        from environments.named_rollouts import rollout_for_task, server_for

        rollout = await rollout_for_task(self.task_id)
        toolbox = await rollout.toolbox(self.valid_tool_names)
        return toolbox, server_for(rollout, self.server)


class _Conversation:
    """State of one run of the loop."""

    def __init__(
        self, loop: HermesAgentLoop, server: ChatServer, toolbox: Toolbox, result: AgentResult
    ) -> None:
        self.loop, self.server, self.toolbox, self.result = loop, server, toolbox, result
        schemas = loop.tool_schemas if loop.tool_schemas is not None else toolbox.schemas
        self.tools = schemas or None
        self.used_ids = {
            call.get("id")
            for message in result.messages
            for call in (message.get("tool_calls") or [] if isinstance(message, dict) else [])
        }
        self.last_calls: str | None = None
        self.repetitions = 0
        self.cut_by_context = False
        """Whether the last reply was bounded by what the context had left."""
        count = getattr(server, "count_tokens", None) if getattr(server, "phase", 1) == 2 else None
        exact = partial(count, **loop._sampling) if count else None
        self.context = ContextKeeper(loop.context_policy, loop.context_length, loop.max_tokens or 0, exact)

    async def hold(self) -> AgentResult:
        """Turn after turn, until something ends it."""
        result = self.result
        try:
            async with deadline(self.loop.time_limit, self.loop.waiting_clock):
                result.ending = await self._turns()
        except DeadlineReached:
            result.ending = Ending.TIME_LIMIT
        except ContextOverflow:
            result.ending = Ending.CONTEXT_LENGTH
        except SandboxBroken:
            result.ending = Ending.SANDBOX_BROKEN
        if result.ending is not Ending.STOPPED:
            self._answer_open_calls(f"not finished: the rollout ended ({result.ending})")
        result.finished_naturally = result.ending is Ending.STOPPED
        return result

    async def _turns(self) -> Ending:
        while self.result.turns_used < self.loop.max_turns:
            allowance = self._allowance()
            if allowance.ending is not None and allowance.tokens == 0:
                return allowance.ending
            reply = await self._ask(allowance.tokens)
            choice = reply.choices[0]
            calls = self._append_reply(choice)
            ending = ending_of_reply(choice, calls)
            if ending is None and not calls and choice.message.malformed_calls:
                self._explain_malformed(choice.message.malformed_calls)
                continue
            if ending is None and calls:
                await self._run_calls(calls)
                self._explain_malformed(choice.message.malformed_calls)
                if self._repeats(calls):
                    return Ending.REPEATED_CALLS
                continue
            if ending is None and not await self._append_next_message():
                return Ending.STOPPED
            if ending is not None:
                used = self.result.turns[-1].usage.completion_tokens
                if ending is Ending.OUTPUT_LIMIT and allowance.ending and used >= (allowance.tokens or 0):
                    return allowance.ending
                if ending is Ending.OUTPUT_LIMIT and self.cut_by_context:
                    return Ending.CONTEXT_LENGTH
                return ending
        return Ending.MAX_TURNS

    def _allowance(self) -> Allowance:
        """What the next reply may use up of the budgets."""
        turns = self.result.turns
        return self.loop.spending.next_reply(self.result.usage, turns[-1].usage if turns else Usage())

    async def _ask(self, budget: int | None) -> ChatCompletion:
        limits = [limit for limit in (self.loop.max_tokens, budget) if limit is not None]
        sampling = dict(self.loop._sampling)
        if limits:
            sampling["max_tokens"] = min(limits)
        reply = await self._reply(sampling)
        self.result.turns_used += 1
        self.result.turns.append(
            Turn(
                finish_reason=reply.choices[0].finish_reason,
                usage=reply.usage,
                started_at=reply.timing.started_at,
                first_token_at=reply.timing.first_token_at,
                ended_at=reply.timing.ended_at,
                retries=reply.timing.retries,
                waiting=reply.timing.waiting,
                calls_parsed_from_text=reply.calls_parsed_from_text,
                policy_version=reply.policy_version,
                server=reply.server,
            )
        )
        self.result.usage.add(reply.usage)
        self.loop.spending.check(reply.usage, reply.server)
        self.result.model_served = reply.model or self.result.model_served
        return reply

    async def _reply(self, sampling: dict[str, Any]) -> ChatCompletion:
        """The next reply, after room was made for it where that is the policy."""
        try:
            return await self._reply_within_context(sampling)
        except ContextOverflow:
            if self.context.policy == "stop":
                raise
            self.context.overflowed(self.result.messages, self.tools)
            return await self._reply_within_context(sampling)

    async def _reply_within_context(self, sampling: dict[str, Any]) -> ChatCompletion:
        messages, tools, context = self.result.messages, self.tools, self.context
        change = await context.make_room(messages, tools, self.result.turns_used + 1, self._summarise)
        if change is not None:
            self.result.context_changes.append(change)
        room = context.room(messages, tools)
        self.cut_by_context = room is not None and room < sampling.get("max_tokens", 0)
        if room is not None and self.cut_by_context:
            sampling = {**sampling, "max_tokens": room}
        reply = await self.server.chat_completion(messages=messages, tools=tools, **sampling)
        context.count(messages, tools, reply.usage)
        self.cut_by_context |= context.cut_short(reply.usage)
        return reply

    async def _summarise(self, messages: list[Message]) -> str:
        reply = await self.server.chat_completion(messages=messages, tools=None, **self.loop._sampling)
        self.result.usage.add(reply.usage)
        content = reply.choices[0].message.content
        return content if isinstance(content, str) else ""

    def _append_reply(self, choice: Choice) -> list[ToolCall]:
        message = choice.message
        calls = list(message.tool_calls or [])
        for call in calls:
            call.id = unused_id(call.id, self.used_ids)
            self.used_ids.add(call.id)
        self.result.reasoning_per_turn.append(message.reasoning)
        self.result.messages.append(message_of_reply(message.to_message()))
        return calls

    async def _run_calls(self, calls: list[ToolCall]) -> None:
        turn = self.result.turns[-1]
        outcomes = await self.toolbox.call_turn(
            [(call.id, call.function.name, call.function.arguments) for call in calls]
        )
        for call, outcome in zip(calls, outcomes, strict=True):
            name = str(call.function.name)
            turn.tool_calls.append(
                ToolCallRecord(call.id, name, outcome.started_at, outcome.ended_at, outcome.error)
            )
            if outcome.error is not None:
                self.result.tool_errors.append(
                    ToolError(
                        turn=self.result.turns_used,
                        tool_name=name,
                        arguments=argument_text(call.function.arguments)[:_KEPT_ARGUMENT_CHARS],
                        error=outcome.exception or str((outcome.result or {}).get("error") or outcome.error),
                        tool_result=outcome.content[:_KEPT_ARGUMENT_CHARS],
                    )
                )
            self.result.messages.append(
                {"role": "tool", "tool_call_id": call.id, "name": name, "content": outcome.content}
            )

    def _explain_malformed(self, problems: Sequence[str]) -> None:
        """Tell the model of calls that it began in its text and did not finish well.

        Beside calls that ran, it stands behind the last result: one more message of the user would be a
        turn of its own, for which chat templates rewrite the history.
        """
        if not problems:
            return
        for problem in problems:
            self.result.tool_errors.append(ToolError(self.result.turns_used, "", "", problem, ""))
        text = "A tool call in your message could not be read: " + "; ".join(problems) + ". Write it again."
        messages = self.result.messages
        if messages[-1].get("role") == "tool":
            messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{text}"}
        else:
            messages.append({"role": "user", "content": text})

    def _repeats(self, calls: list[ToolCall]) -> bool:
        if self.loop.repeated_calls_limit is None:
            return False
        signature = json.dumps([[str(c.function.name), argument_text(c.function.arguments)] for c in calls])
        self.repetitions = self.repetitions + 1 if signature == self.last_calls else 1
        self.last_calls = signature
        return self.repetitions >= self.loop.repeated_calls_limit

    async def _append_next_message(self) -> bool:
        if self.loop.next_message is None:
            return False
        message = await self.loop.next_message(self.result)
        if message is None:
            return False
        self.result.messages.append(
            {"role": "user", "content": message} if isinstance(message, str) else dict(message)
        )
        return True

    def _answer_open_calls(self, text: str) -> None:
        """Every tool call has a result, also where the rollout ended in between."""
        messages = self.result.messages
        answered = {message.get("tool_call_id") for message in messages if message.get("role") == "tool"}
        for message in [m for m in messages if m.get("role") == "assistant"]:
            for call in message.get("tool_calls") or []:
                if call.get("id") not in answered:
                    name = (call.get("function") or {}).get("name")
                    messages.append(
                        {
                            "role": "tool",
                            "tool_call_id": call.get("id"),
                            "name": str(name),
                            "content": json.dumps({"error": text}),
                        }
                    )
