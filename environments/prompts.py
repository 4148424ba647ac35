"""Messages that an environment's code makes, checked before a model server sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from environments.errors import UserCodeError
from environments.records import Message

ROLES = ("system", "developer", "user", "assistant", "tool")

THINKING_PROMPT = (
    "Think before you act: work the problem out step by step between <think> and </think>, then act or "
    "answer after </think>."
)
"""Text of ``thinking_mode`` where ``custom_thinking_prompt`` gives none."""


def conversation_of(prompt: str | Message | Sequence[Message], *system: str | None) -> list[Message]:
    """A prompt as messages. The parts of ``system`` that are there stand in front, unless it has its own.

    Raises ``UserCodeError`` for what no chat API takes.
    """
    if isinstance(prompt, str | dict):
        prompt = [as_user_message(prompt)]
    messages = [checked_message(message) for message in prompt]
    if not messages:
        raise UserCodeError("format_prompt returned no message")
    text = "\n\n".join(filter(None, system))
    if text and not any(message.get("role") == "system" for message in messages):
        messages.insert(0, {"role": "system", "content": text})
    return messages


def as_user_message(prompt: str | Message) -> Message:
    """Text as a message of the user; a message stays what it is."""
    return {"role": "user", "content": prompt} if isinstance(prompt, str) else prompt


def checked_message(message: Any) -> Message:
    """A copy of a message. Raises ``UserCodeError`` for what no chat API takes."""
    if not isinstance(message, dict):
        raise UserCodeError(f"a message must be a dictionary with role and content, not {message!r:.200}")
    if message.get("role") not in ROLES:
        raise UserCodeError(f"a message has the role {message.get('role')!r}; roles are {', '.join(ROLES)}")
    content = message.get("content")
    if not isinstance(content, str | list) and not message.get("tool_calls"):
        raise UserCodeError(f"a message of the {message['role']} has content {content!r:.99}, not text")
    if not content and message["role"] == "user":
        raise UserCodeError("the user's message is empty")
    return dict(message)
