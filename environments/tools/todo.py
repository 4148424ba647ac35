"""``todo``: the model's own task list, one per rollout."""

from __future__ import annotations

from collections import Counter
from typing import Any

from environments.tools.base import JSON, Tool, ToolInputError, ToolState

STATUSES = ("pending", "in_progress", "completed", "cancelled")

_SLOT = "todo"

DESCRIPTION = (
    "Keep a task list for work of several steps. Without arguments it returns the list. todos replaces "
    "the list, or with merge=true updates entries by id and adds new ones. Keep one entry in_progress."
)


async def todo(state: ToolState, todos: list[dict[str, Any]] | None = None, merge: bool = False) -> JSON:
    """Read, replace or merge the list."""
    if todos is not None:
        entries = [_entry(item) for item in todos]
        # By id: of two entries with one id the later counts, at the place of the earlier.
        current = {entry["id"]: entry for entry in state.slots.get(_SLOT, [])} if merge else {}
        for entry in entries:
            current[entry["id"]] = entry
        state.slots[_SLOT] = list(current.values())
    items: list[dict[str, str]] = state.slots.get(_SLOT, [])
    counts = Counter(item["status"] for item in items)
    summary = {"total": len(items), **{status: counts[status] for status in STATUSES}}
    return {"todos": [dict(item) for item in items], "summary": summary}


def _entry(item: dict[str, Any]) -> dict[str, str]:
    entry = {key: item[key].strip() for key in ("id", "content", "status")}
    if not entry["id"] or not entry["content"]:
        raise ToolInputError("every entry of todos needs an id and a content that are not empty")
    return entry


TOOLS = (
    Tool(
        name="todo",
        description=DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {
                "todos": {
                    "type": "array",
                    "description": "Entries; left out: only read the list.",
                    "items": {
                        "type": "object",
                        "properties": {
                            "id": {"type": "string", "description": "Short name of the entry."},
                            "content": {"type": "string", "description": "What is to be done."},
                            "status": {"type": "string", "enum": list(STATUSES)},
                        },
                        "required": ["id", "content", "status"],
                    },
                },
                "merge": {
                    "type": "boolean",
                    "default": False,
                    "description": "Update by id instead of replacing the list.",
                },
            },
            "required": [],
        },
        function=todo,
        toolset="todo",
    ),
)
