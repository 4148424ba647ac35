"""What the attempts of a validation say about each task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from environments.records import Attempt, Ending, Outcome, Verdict
from environments.tasks.model import Keep

ORACLE, NOP = "oracle", "nop"
POLICIES = (ORACLE, NOP)
NEEDS = "needs_keep"
"""Key of a verdict's evidence: the least of the agent's processes that the solution needs alive."""

Status = Literal["ok", "wrong", "not run"]

_KEEPS: tuple[Keep, ...] = ("none", "listeners", "all")
_WHO = {ORACLE: "the oracle", NOP: "doing nothing"}
_SHOWN_LINES = 8
_SHOWN = 160


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What was found out about one task."""

    name: str
    status: Status
    oracle: float | None = None
    """Mean reward of the oracle's attempts; None where one of them has none."""
    nop: float | None = None
    seconds: float | None = None
    """Mean time of the oracle's attempts, from the start of the sandbox to the verdict."""
    keep: str = ""
    """The least of the agent's processes that its solution needs alive while the tests run: a value of
    ``[verifier] keep``; empty where that is not known."""
    problem: str = ""
    details: tuple[str, ...] = ()
    """The end of what the solution and the tests printed, where something is wrong."""


@dataclass(slots=True)
class Seen:
    """What a validation found before and while it ran, by task."""

    names: list[str] = field(default_factory=list)
    faults: dict[str, list[str]] = field(default_factory=dict)
    misfits: dict[str, list[str]] = field(default_factory=dict)


def report_of(name: str, seen: Seen, attempts: Mapping[str, Sequence[Attempt]], planned: int) -> TaskReport:
    """One task, from its attempts by policy, of which there should be ``planned`` each."""
    if name in seen.faults:
        return TaskReport(name, "wrong", problem="; ".join(seen.faults[name]))
    if name in seen.misfits:
        return TaskReport(name, "not run", problem="; ".join(seen.misfits[name]))
    ended = {p: [a for a in attempts.get(p, ()) if a.outcome is not Outcome.CANCELLED] for p in POLICIES}
    found = [attempt for policy in POLICIES for attempt in ended[policy]]
    for kind, status in ((_fault, "wrong"), (_misfit, "not run")):
        if texts := [text for attempt in found if (text := kind(attempt, name))]:
            return TaskReport(name, status, problem=texts[0])  # type: ignore[arg-type]
    problems = [text for policy in POLICIES for text in _problems(policy, ended[policy], planned)]
    if not problems and any(len(ended[policy]) < planned for policy in POLICIES):
        done = f" ({len(found)} of {2 * planned} attempts)" if found else ""
        return TaskReport(name, "not run", problem=f"the run ended before it{done}")
    oracle = ended[ORACLE]
    return TaskReport(
        name,
        "wrong" if problems else "ok",
        _mean([attempt.reward for attempt in oracle]),
        _mean([attempt.reward for attempt in ended[NOP]]),
        _mean([attempt.clock.wall for attempt in oracle]),
        "" if problems else _keep(oracle),
        "; ".join(dict.fromkeys(problems)),
        _details(ended) if problems else (),
    )


def _fault(attempt: Attempt, name: str) -> str:
    """Why no machine can be made for a task through a fault of its own."""
    failure = attempt.failures[-1] if attempt.failures else None
    return _without(failure.message, name) if failure is not None and failure.type == "FaultyMachine" else ""


def _misfit(attempt: Attempt, name: str) -> str:
    if attempt.outcome is not Outcome.SANDBOX_ERROR:
        return ""
    text = _without(attempt.failures[-1].message, name) if attempt.failures else "no word"
    return f"no machine as it needs: {text}"


def _without(text: str, name: str) -> str:
    return text.removeprefix(f"{name}: ").removeprefix(f"{name}: ")


def _problems(policy: str, attempts: Sequence[Attempt], planned: int) -> list[str]:
    found = [text for attempt in attempts if (text := _problem(policy, attempt))]
    if not found:
        return []
    often = f", in {len(found)} of {len(attempts)} attempts" if planned > 1 else ""
    return [f"{found[0]}{often}"]


def _problem(policy: str, attempt: Attempt) -> str:
    who = _WHO[policy]
    if attempt.outcome is not Outcome.SCORED:
        message = attempt.failures[-1].message if attempt.failures else "no word"
        if attempt.outcome is Outcome.VERIFIER_ERROR:
            return message.removeprefix("verification 1: ")
        return f"{attempt.outcome}: {message}"
    reward = attempt.reward or 0.0
    if policy == NOP:
        return f"{who} gets {reward:g}" if reward > 0.0 else ""
    if reward >= 1.0:
        return ""
    reasons = [_of_solution(attempt), _of_verdict(attempt.verdict)]
    return f"{who} gets {reward:g} ({'; '.join(filter(None, reasons)) or 'the tests say nothing'})"


def _of_solution(attempt: Attempt) -> str:
    """How the solution failed, as far as it says so."""
    if attempt.ending not in (None, Ending.STOPPED):
        return f"the solution ended with {attempt.ending}"
    for code, output in _ran(attempt):
        if code:
            return f"solve.sh ended with exit code {code}: {_last_line(output)}"
    return ""


def _of_verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    if verdict.tampered or verdict.contested or "no agent has touched" in verdict.explanation:
        return verdict.explanation
    outputs = [str(found.get("output", "")) for found in _evidence(verdict)]
    said = next((line for output in reversed(outputs) if (line := _last_line(output, ""))), "")
    return f"the tests: {said}" if said else ""


def _evidence(verdict: Verdict) -> list[Mapping[str, Any]]:
    steps = verdict.evidence.get("steps")
    return list(steps.values()) if isinstance(steps, Mapping) else [verdict.evidence]


def _ran(attempt: Attempt) -> list[tuple[int, str]]:
    """Exit code and output of each solution that was run."""
    found = []
    for message in attempt.messages:
        if message.get("role") != "tool":
            continue
        try:
            result = json.loads(message.get("content") or "")
        except (TypeError, ValueError):
            continue
        if isinstance(result, dict) and isinstance(result.get("exit_code"), int):
            found.append((result["exit_code"], str(result.get("output") or result.get("error") or "")))
    return found


def _details(attempts: Mapping[str, Sequence[Attempt]]) -> tuple[str, ...]:
    """What solution and tests printed last, of the first attempt with which something is wrong."""
    wrong = [(p, attempt) for p in POLICIES for attempt in attempts[p] if _problem(p, attempt)]
    policy, attempt = wrong[0]
    lines: list[str] = []
    for code, output in _ran(attempt) if policy == ORACLE else []:
        lines += _excerpt(f"solve.sh (exit code {code})", output)
    for found in _evidence(attempt.verdict) if attempt.verdict is not None else []:
        lines += _excerpt(f"tests/test.sh (exit code {found.get('exit_code')})", str(found.get("output", "")))
    return tuple(lines)


def _excerpt(title: str, output: str) -> list[str]:
    lines = [line.rstrip()[:_SHOWN] for line in output.strip().splitlines()]
    if not lines:
        return []
    cut = ["…"] if len(lines) > _SHOWN_LINES else []
    return [f"{title} printed:", *(f"  {line}" for line in [*cut, *lines[-_SHOWN_LINES:]])]


def _last_line(text: str, otherwise: str = "no output") -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:_SHOWN] if lines else otherwise


def _keep(attempts: Sequence[Attempt]) -> str:
    """The most that one of the attempts needed."""
    needed = [e.get(NEEDS) for a in attempts if a.verdict is not None for e in _evidence(a.verdict)]
    known = [keep for keep in needed if keep in _KEEPS]
    return max(known, key=_KEEPS.index) if known else ""


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
