"""One rollout that may become a row, whatever file or server it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from environments.records import Attempt
from environments.results.plain import plain
from environments.results.rows import Row

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A conversation with its score and what selection goes by. ``None`` is what the source does not say."""

    messages: list[JSON]
    score: float | None
    group: str
    """Rollouts with the same text were tries at the same item, side by side."""
    item: str = ""
    attempt: int | None = None
    branch: int = 0
    outcome: str = ""
    ending: str = ""
    model: str = ""
    turns: int | None = None
    tools: list[JSON] | None = None
    """Tool schemas that the model was given."""
    tool_names: list[str] = field(default_factory=list)
    tool_errors: dict[str, int] = field(default_factory=dict)
    """Failed calls by tool."""
    tampered: bool = False
    removed_turns: int = 0
    """Turns that compression has replaced by a note."""


def candidates_of(row: Row, tools: Mapping[str, list[JSON]], *, by_item: bool) -> Iterator[Candidate]:
    """The candidates of one row of a result file, one per branch.

    ``tools`` are the schemas of the run by hash. ``by_item`` groups by item where the file has no groups.
    """
    schemas, names, extra = _tools_of(row, tools)
    candidate = Candidate(
        messages=row.messages,
        score=row.reward,
        group=_group_of(row, by_item=by_item),
        item=row.item,
        attempt=row.attempt,
        outcome=row.outcome or ("scored" if row.reward is not None else ""),
        ending=row.ending,
        model=row.model,
        turns=row.turns,
        tools=schemas,
        tool_names=names,
        tool_errors=_errors_by_tool(row.details.get("tool_errors")),
        tampered=bool(row.verdict.get("tampered")),
    )
    yield replace(candidate, branch=extra)
    if isinstance(row.raw, Attempt):
        for number, sequence in enumerate(row.raw.sequences):
            messages = sequence.extra.get("messages")
            if isinstance(messages, list) and messages != row.messages:
                yield replace(candidate, messages=messages, branch=number)


def _group_of(row: Row, *, by_item: bool) -> str:
    if isinstance(row.raw, Attempt):
        return f"{row.raw.group_id}\n{row.item}"
    if by_item:
        return row.item or row.place
    return row.place.partition(".")[0]


def _tools_of(row: Row, tools: Mapping[str, list[JSON]]) -> tuple[list[JSON] | None, list[str], int]:
    """Tool schemas, names of tools, and the branch."""
    if isinstance(row.raw, Attempt):
        return tools.get(row.raw.provenance.tools_hash), list(row.raw.tool_names), 0
    raw = row.raw if isinstance(row.raw, dict) else {}
    inner = raw.get("metadata")
    metadata = inner if isinstance(inner, dict) else raw  # a failed attempt is its own metadata
    provenance = metadata.get("provenance")
    key = provenance.get("tools_hash") if isinstance(provenance, dict) else None
    names = metadata.get("tools")
    branch = metadata.get("branch")
    return (
        tools.get(str(key)),
        [name for name in names if isinstance(name, str)] if isinstance(names, list) else [],
        branch if isinstance(branch, int) else 0,
    )


def _errors_by_tool(errors: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in errors if isinstance(errors, list) else []:
        name = plain(entry).get("tool_name") if isinstance(entry, dict) else None
        if isinstance(name, str):
            counts[name] = counts.get(name, 0) + 1
    return counts
