"""The body of a chat request: our parameters in the words of the provider.

Nothing of the caller's is changed; messages that need another form are copied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from environments.errors import ConfigError
from environments.inference.providers import OPENAI, OPENROUTER, Echo, Provider
from environments.records import Message

_SCHEMA = frozenset({"role", "content", "name"})
_SCHEMA_OF_ROLE = {
    "assistant": _SCHEMA | {"refusal", "audio"},
    "tool": _SCHEMA | {"tool_call_id"},
}
_CALL_SCHEMA = frozenset({"id", "type", "function"})
_REASONING_MODEL = re.compile(r"(^|/)(o\d|gpt-5)")
_FIXED_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_EPHEMERAL = {"type": "ephemeral"}
_MARKED_MESSAGES = 2


def chat_body(
    provider: Provider,
    model: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    sampling: Mapping[str, Any],
    echo: Echo,
) -> dict[str, Any]:
    """The body of ``POST /chat/completions``, without the fields of streaming.

    ``extra_body`` is merged last, at the top level. Parameters that are None are left out.
    """
    parameters = {key: value for key, value in sampling.items() if value is not None}
    extra = parameters.pop("extra_body", {})
    body: dict[str, Any] = {"model": model, "messages": wire_messages(messages, provider, echo)}
    if tools:
        body["tools"] = list(tools)
    else:
        parameters.pop("tool_choice", None)
        parameters.pop("parallel_tool_calls", None)
    _add_reasoning(body, parameters, provider)
    if provider is OPENAI and _REASONING_MODEL.search(model):
        for name in _FIXED_SAMPLING:
            parameters.pop(name, None)
    if "max_tokens" in parameters:
        parameters.setdefault(provider.max_tokens_field, parameters.pop("max_tokens"))
    if parameters.get("n") == 1:
        del parameters["n"]
    body.update(parameters)
    if provider is OPENROUTER:
        body["usage"] = {"include": True}
        if model.startswith("anthropic/"):
            body["messages"] = _with_cache_marks(body["messages"])
    body.update(extra)
    return body


def completion_body(model: str, prompt: Any, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The body of ``POST /completions``."""
    parameters = {key: value for key, value in sampling.items() if value is not None}
    extra = parameters.pop("extra_body", {})
    return {"model": model, "prompt": prompt, **parameters, **extra}


def wire_messages(messages: Sequence[Message], provider: Provider, echo: Echo) -> list[Message]:
    """The messages with only the keys that the provider knows, and reasoning where it wants it."""
    return [_wire_message(message, provider, echo) for message in messages]


def _wire_message(message: Message, provider: Provider, echo: Echo) -> Message:
    role = message.get("role")
    allowed = _SCHEMA_OF_ROLE.get(role, _SCHEMA) if isinstance(role, str) else _SCHEMA
    wire = {key: message[key] for key in message if key in allowed}
    if role != "assistant":
        return wire
    if calls := message.get("tool_calls"):
        wire["tool_calls"] = [_wire_call(call, provider) for call in calls]
    elif wire.get("content") is None and "content" in wire:
        wire["content"] = ""  # null without tool calls is refused by several servers
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if echo == "reasoning_content" and reasoning:
        wire["reasoning_content"] = reasoning
    elif echo == "reasoning_details":
        if message.get("reasoning_details"):
            wire["reasoning_details"] = message["reasoning_details"]
        elif reasoning:
            wire["reasoning"] = reasoning
    return wire


def _wire_call(call: Mapping[str, Any], provider: Provider) -> dict[str, Any]:
    keep = provider.keeps_call_extras
    wire = {key: call[key] for key in call if keep or key in _CALL_SCHEMA}
    function = dict(call.get("function") or {})
    function["arguments"] = _wire_arguments(function.get("arguments"))
    return {"type": "function", **wire, "function": function}


def _wire_arguments(arguments: Any) -> str:
    """Arguments as the text of a JSON object, because many servers refuse a history with anything else.

    What the model wrote wrongly is kept under a key of ours, so that it sees its own mistake.
    """
    if isinstance(arguments, str):
        try:
            if isinstance(orjson.loads(arguments), dict):
                return arguments
        except orjson.JSONDecodeError:
            pass
        arguments = {"malformed_arguments": arguments} if arguments.strip() else {}
    elif arguments is None:
        arguments = {}
    elif not isinstance(arguments, dict):
        arguments = {"malformed_arguments": arguments}
    return orjson.dumps(arguments, option=orjson.OPT_NON_STR_KEYS).decode()


def _add_reasoning(body: dict[str, Any], parameters: dict[str, Any], provider: Provider) -> None:
    effort = parameters.pop("reasoning_effort", None)
    limit = parameters.pop("max_reasoning_tokens", None)
    if limit is not None and provider.reasoning_request == "effort":
        raise ConfigError(
            f"max_reasoning_tokens: {provider.name} has no such limit; use reasoning_effort or extra_body"
        )
    if provider.reasoning_request == "openrouter" and (effort or limit):
        body["reasoning"] = {"max_tokens": limit} if limit else {"effort": effort}
    elif provider.reasoning_request == "thinking_budget" and limit:
        body["thinking"] = {"type": "enabled", "budget_tokens": limit}
    elif effort:
        body["reasoning_effort"] = effort


def _with_cache_marks(messages: list[Message]) -> list[Message]:
    """Anthropic's prompt cache is asked for by marks: on the system message and the latest turns."""
    marked = list(messages)
    latest = [i for i, m in enumerate(messages) if m.get("role") in ("user", "tool")][-_MARKED_MESSAGES:]
    system = [i for i, m in enumerate(messages) if m.get("role") == "system"][:1]
    for index in {*system, *latest}:
        marked[index] = {**messages[index], "content": _marked_content(messages[index].get("content"))}
    return marked


def _marked_content(content: Any) -> Any:
    if isinstance(content, str) and content:
        return [{"type": "text", "text": content, "cache_control": _EPHEMERAL}]
    if isinstance(content, list) and content and isinstance(content[-1], dict):
        return [*content[:-1], {**content[-1], "cache_control": _EPHEMERAL}]
    return content
