"""Attempts to test with."""

from __future__ import annotations

from typing import Any

from environments.records import (
    AgentInfo,
    Attempt,
    Ending,
    Failure,
    Outcome,
    Provenance,
    ToolCallRecord,
    Turn,
    Usage,
    Verdict,
)
from environments.results.store import Manifest


def manifest(**settings: Any) -> Manifest:
    return Manifest("run-1", "toy", "0.1", 1.0, {}, settings)


def scored(item: str = "a", attempt: int = 0, reward: float = 1.0, **fields: Any) -> Attempt:
    return Attempt(
        "run-1",
        "toy",
        item,
        fields.pop("group_id", "g"),
        attempt,
        agent=AgentInfo(model="m"),
        provenance=Provenance(item_hash=f"hash-{item}"),
        messages=fields.pop(
            "messages", [{"role": "user", "content": "do"}, {"role": "assistant", "content": "ok"}]
        ),
        turns=[
            Turn("stop", Usage(5, 0, 7), 1.0, 1.5, 2.0, tool_calls=[ToolCallRecord("c", "terminal", 1, 2)])
        ],
        usage=Usage(5, 0, 7),
        ending=fields.pop("ending", Ending.STOPPED),
        outcome=Outcome.SCORED,
        verdicts=[Verdict(reward)],
        **fields,
    )


def failed(item: str = "a", attempt: int = 0, try_number: int = 0, **fields: Any) -> Attempt:
    return Attempt(
        "run-1",
        "toy",
        item,
        fields.pop("group_id", "g"),
        attempt,
        try_number,
        ending=Ending.ERROR,
        outcome=Outcome.MODEL_ERROR,
        failures=[Failure(try_number, Outcome.MODEL_ERROR, "ServerUnavailable", "no answer")],
        **fields,
    )
