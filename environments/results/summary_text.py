"""Short plain texts of conversations and metrics, for logs and W&B tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def trajectory_text(messages: Iterable[dict[str, Any]]) -> str:
    """A conversation as readable text."""
    parts = []
    for message in messages:
        role = str(message.get("role", "?")).upper()
        content = message.get("content")
        parts.append(f"[{role}] {content if isinstance(content, str) else content or ''}")
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            parts.append(f"[CALL] {function.get('name')} {function.get('arguments')}")
    return "\n\n".join(parts)


def metric_lines(metrics: dict[str, Any]) -> list[str]:
    """Metrics as aligned lines of text."""
    width = max((len(name) for name in metrics), default=0)
    return [
        f"{name:<{width}}  {value:.4f}" if isinstance(value, float) else f"{name:<{width}}  {value}"
        for name, value in metrics.items()
    ]
