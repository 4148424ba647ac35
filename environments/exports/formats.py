"""Rows as they are written: chat messages, as TRL and others take them, or ShareGPT-like text.

Columns have one type in every row, so that tables can be made of them; tool schemas are therefore JSON
text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from environments.exports.candidates import Candidate
from environments.exports.messages import calls_of, decoded, has_media, reasoning_of, text_of

JSON = dict[str, Any]
Convert = Callable[[Sequence[JSON]], list[JSON]]

_SHAREGPT_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "human",
    "assistant": "gpt",
    "tool": "tool",
}


def information(candidate: Candidate) -> JSON:
    """What a row says of its rollout."""
    return {
        "score": candidate.score,
        "item_id": candidate.item,
        "attempt": candidate.attempt,
        "branch": candidate.branch,
        "ending": candidate.ending,
        "model": candidate.model,
        "removed_turns": candidate.removed_turns,
    }


def tools_text(candidate: Candidate) -> str:
    """The tool schemas as JSON text."""
    return orjson.dumps(candidate.tools or []).decode()


# Chat.


def chat_messages(messages: Sequence[JSON], *, arguments_as_text: bool = False) -> list[JSON]:
    """Messages in OpenAI's form with arguments as objects, which is what chat templates want."""
    media = has_media(messages)
    return [_chat_message(message, media, arguments_as_text) for message in messages]


def _chat_message(message: Mapping[str, Any], media: bool, arguments_as_text: bool) -> JSON:
    content = message.get("content")
    row: JSON = {"role": message.get("role"), "content": text_of(content)}
    if media:
        row["content"] = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    if reasoning := reasoning_of(message):
        row["reasoning_content"] = reasoning
    if calls := calls_of(message):
        row["tool_calls"] = [
            {
                "id": identifier,
                "type": "function",
                "function": {"name": name, "arguments": _form(value, arguments_as_text)},
            }
            for identifier, name, value in calls
        ]
    for name in ("tool_call_id", "name"):
        if isinstance(message.get(name), str):
            row[name] = message[name]
    return row


def _form(arguments: Any, as_text: bool) -> Any:
    if as_text:
        return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def chat_sft(candidate: Candidate, *, arguments_as_text: bool = False) -> JSON:
    """A row for supervised fine-tuning: ``messages``, ``tools``."""
    messages = chat_messages(candidate.messages, arguments_as_text=arguments_as_text)
    return {"messages": messages, "tools": tools_text(candidate), **information(candidate)}


# ShareGPT.


def sharegpt(messages: Sequence[JSON], tools: Sequence[JSON] | None = None) -> list[JSON]:
    """``from`` and ``value`` per message, with calls, results and thoughts as tagged text.

    Results of one turn stand in one entry. ``tools`` adds the entry that explains them.
    """
    entries: list[JSON] = []
    names: dict[str, str] = {}
    for message in messages:
        role = _SHAREGPT_ROLES.get(str(message.get("role")), "human")
        value = text_of(message.get("content"))
        if role == "gpt":
            names |= {identifier: name for identifier, name, _ in calls_of(message)}
            value = _spoken(message, value)
        elif role == "tool":
            value = _response(message, value, names)
            if entries and entries[-1]["from"] == "tool":
                entries[-1]["value"] += f"\n{value}"
                continue
        entries.append({"from": role, "value": value})
    if tools is None:
        return entries
    own = entries.pop(0)["value"] if entries and entries[0]["from"] == "system" else ""
    return [{"from": "system", "value": _introduction(tools, own)}, *entries]


def _spoken(message: Mapping[str, Any], text: str) -> str:
    reasoning = reasoning_of(message).strip()
    parts = [] if "<think>" in text else ["<think>\n" + (f"{reasoning}\n" if reasoning else "") + "</think>"]
    parts += [text] if text.strip() else []
    for _, name, arguments in calls_of(message):
        call = orjson.dumps({"name": name, "arguments": _form(arguments, False)}).decode()
        parts.append(f"<tool_call>\n{call}\n</tool_call>")
    return "\n".join(parts)


def _response(message: Mapping[str, Any], text: str, names: Mapping[str, str]) -> str:
    identifier = str(message.get("tool_call_id") or "")
    value = decoded(text) if text.lstrip()[:1] in ("{", "[") else text
    name = message.get("name") or names.get(identifier, "")
    body = {"tool_call_id": identifier, "name": name, "content": value}
    return f"<tool_response>\n{orjson.dumps(body).decode()}\n</tool_response>"


def _introduction(tools: Sequence[JSON], own: str) -> str:
    if not tools:
        return own
    functions = [{**function_of(tool), "required": None} for tool in tools]
    return (f"{own}\n\n" if own else "") + (
        "You can call functions. Their signatures, as a JSON list:\n"
        f"<tools>\n{orjson.dumps(functions).decode()}\n</tools>\n"
        "To call one, write a JSON object with its name and arguments between tags, once per call:\n"
        '<tool_call>\n{"name": "<name>", "arguments": {<arguments>}}\n</tool_call>\n'
        "The results come back between <tool_response> and </tool_response>."
    )


def function_of(tool: Mapping[str, Any]) -> JSON:
    """Name, description and parameters of a tool, with or without the wrapping of OpenAI's form."""
    function = tool.get("function")
    source = function if isinstance(function, dict) else tool
    return {name: source.get(name) for name in ("name", "description", "parameters")}


def sharegpt_sft(candidate: Candidate, number: int) -> JSON:
    """A row with the keys of Hermes' batch runner; ``number`` counts the rows."""
    used: dict[str, int] = {}
    for message in candidate.messages:
        for _, name, _ in calls_of(message):
            used[name] = used.get(name, 0) + 1
    known = [str(function_of(tool)["name"]) for tool in candidate.tools or []] or candidate.tool_names
    failed = {name: min(candidate.tool_errors.get(name, 0), used.get(name, 0)) for name in {*known, *used}}
    stats = {
        name: {"count": (n := used.get(name, 0)), "success": n - failed[name], "failure": failed[name]}
        for name in dict.fromkeys([*known, *used])
    }
    assistants = sum(message.get("role") == "assistant" for message in candidate.messages)
    return {
        "prompt_index": number,
        "conversations": sharegpt(candidate.messages, candidate.tools or []),
        "metadata": information(candidate),
        "completed": candidate.ending in ("stopped", ""),
        "partial": candidate.ending not in ("stopped", ""),
        "api_calls": candidate.turns if candidate.turns is not None else assistants,
        "toolsets_used": toolsets_of(used),
        "tool_stats": stats,
        "tool_error_counts": {name: entry["failure"] for name, entry in stats.items()},
    }


def toolsets_of(tools: Mapping[str, int]) -> list[str]:
    """The smallest toolset of each tool, sorted; tools of nobody's set are left out."""
    from environments.tools.toolsets import toolset_names, toolset_tools

    sets = {name: toolset_tools(name) for name in toolset_names()}
    found = set()
    for tool in tools:
        holding = [name for name, members in sets.items() if tool in members]
        if holding:
            found.add(min(holding, key=lambda name: (len(sets[name]), name)))
    return sorted(found)


# Preferences.


def chat_dpo(
    prompt: Sequence[JSON], chosen: Candidate, rejected: Candidate, *, arguments_as_text: bool = False
) -> JSON:
    """A row for preference training: ``prompt``, ``chosen``, ``rejected``, ``tools``."""

    def convert(messages: Sequence[JSON]) -> list[JSON]:
        return chat_messages(messages, arguments_as_text=arguments_as_text)

    return {"prompt": convert(prompt), **_answers(len(prompt), chosen, rejected, convert)}


def sharegpt_dpo(prompt: Sequence[JSON], chosen: Candidate, rejected: Candidate) -> JSON:
    """A row for preference training in the ShareGPT-like form; ``conversations`` is the prompt."""
    conversations = sharegpt(prompt, chosen.tools or [])
    return {"conversations": conversations, **_answers(len(prompt), chosen, rejected, sharegpt)}


def _answers(start: int, chosen: Candidate, rejected: Candidate, convert: Convert) -> JSON:
    return {
        "chosen": convert(chosen.messages[start:]),
        "rejected": convert(rejected.messages[start:]),
        "tools": tools_text(chosen),
        "chosen_score": chosen.score,
        "rejected_score": rejected.score,
        "item_id": chosen.item,
    }
