"""``hermes-env compare A B``: two results over the same tasks, paired task by task.

The difference of pass rates is of the tasks that both have, each with the same weight, from attempts that
have a score: failures of ours say nothing about a model. Its interval draws tasks anew (bootstrap), its
p-value is that of the paired permutation test: how often a difference as large comes up if the two were
alike, so that of each task either result could have been the other's. A task whose content is another in B
is marked, and the same is said of the others alone.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environments.cli_output import emit, plural
from environments.errors import ConfigError
from environments.results.metrics import Interval, bootstrap_interval, mean
from environments.results.rows import Row, read_rows

USAGE = """\
usage: hermes-env compare A B

Compare two results over the same tasks: directories of 'evaluate', or files of samples or attempts.
Prints both pass rates, the difference B - A with its 95 % interval and p-value, and the tasks that differ;
tasks that changed between A and B are named, and the difference is given without them, too.
"""

EXACT = 16
"""Tasks that differ, up to which every assignment of the permutation test is counted."""

_PERMUTATIONS = 20_000
_ROUNDING = 1e-12


@dataclass(slots=True)
class Side:
    """One of the two results. ``rates`` is the pass rate of each task, from attempts with a score."""

    name: str
    model: str = ""
    attempts: int = 0
    valid: int = 0
    passed: int = 0
    rates: dict[str, float] = field(default_factory=dict)
    contents: dict[str, set[str]] = field(default_factory=dict)
    """Hashes of each task's content when its attempts were made; empty ones where that is not known."""
    tokens: float | None = None
    seconds: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the tasks that both results have tell. ``differences`` are B's rate less A's."""

    tasks: int
    differences: Mapping[str, float]
    difference: float | None
    interval: Interval | None
    p_value: float | None
    only_a: Sequence[str]
    only_b: Sequence[str]
    changed: Sequence[str] = ()
    """Tasks with other content in B than in A."""
    unknown: Sequence[str] = ()
    """Tasks of which a result does not say what their content was."""


def side_of(rows: Iterable[Row], name: str) -> Side:
    """The sums of one result."""
    side = Side(name)
    passes: dict[str, list[float]] = {}
    tokens: list[float] = []
    seconds: list[float] = []
    costs: list[float] = []
    for row in rows:
        side.attempts += 1
        side.model = side.model or row.model
        side.passed += bool(row.passed)
        if row.outcome not in ("", "scored") or row.passed is None:
            continue
        side.valid += 1
        passes.setdefault(row.item, []).append(float(row.passed))
        side.contents.setdefault(row.item, set()).add(row.item_hash)
        tokens += [] if row.tokens is None else [row.tokens]
        seconds += [] if row.seconds is None else [row.seconds]
        costs += [] if row.cost is None else [row.cost]
    side.rates = {item: math.fsum(values) / len(values) for item, values in passes.items()}
    side.tokens, side.seconds, side.cost = mean(tokens), mean(seconds), math.fsum(costs) if costs else None
    return side


def compared(a: Side, b: Side, *, unchanged: bool = False) -> Comparison:
    """Pair two results by their tasks; with ``unchanged`` by those alone that did not change."""
    both = [item for item in a.rates if item in b.rates]
    known = [item for item in both if all(a.contents[item] | b.contents[item])]
    changed = [item for item in known if a.contents[item] != b.contents[item]]
    if unchanged:
        both = [item for item in both if item not in changed]
    differences = {item: b.rates[item] - a.rates[item] for item in both}
    values = list(differences.values())
    return Comparison(
        tasks=len(both),
        differences=differences,
        difference=mean(values),
        interval=bootstrap_interval([value] for value in values),
        p_value=permutation_p(values) if values else None,
        only_a=sorted(set(a.rates) - set(b.rates)),
        only_b=sorted(set(b.rates) - set(a.rates)),
        changed=sorted(changed),
        unknown=sorted(set(both) - set(known)),
    )


def permutation_p(differences: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p-value of the paired permutation test (Fisher 1935): exact for few differences.

    With one attempt per task it is McNemar's exact test.
    """
    values = [abs(value) for value in differences if abs(value) > _ROUNDING]
    least = abs(math.fsum(differences)) - _ROUNDING
    if not values:
        return 1.0
    if len(values) <= EXACT:
        signs: Iterable[Sequence[int]] = itertools.product((1, -1), repeat=len(values))
        extreme = sum(abs(sum(map(float.__mul__, values, map(float, s)))) >= least for s in signs)
        return float(extreme / 2 ** len(values))
    generator = random.Random(seed)
    extreme = 1  # the assignment that was seen counts, so that p is never 0
    for _ in range(_PERMUTATIONS):
        bits = generator.getrandbits(len(values))
        total = sum(value if bits >> n & 1 else -value for n, value in enumerate(values))
        extreme += abs(total) >= least
    return float(extreme / (_PERMUTATIONS + 1))


def main(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    if argv and argv[0] in ("-h", "--help"):
        return emit(USAGE)
    if len(argv) != 2 or any(word.startswith("--") for word in argv):
        raise ConfigError("'hermes-env compare' takes two results: hermes-env compare A B")
    a, b = (side_of(read_rows(Path(path)), path) for path in argv)
    if not set(a.rates) & set(b.rates):
        raise ConfigError(f"{a.name} and {b.name} have no task with a score in common")
    return emit(report(a, b, compared(a, b)))


def report(a: Side, b: Side, found: Comparison) -> str:
    """The comparison as text."""
    lines = [_side("A", a), _side("B", b), f"tasks with a score in both: {found.tasks}"]
    lines.append(f"pass rate B - A: {_difference(found)}")
    lines += _changes(a, b, found)
    for text, sign in (("better in B", 1), ("better in A", -1)):
        names = [item for item, value in found.differences.items() if value * sign > _ROUNDING]
        lines.append(f"{text}: {len(names)}")
        for item in sorted(names):
            mark = "  (the task changed)" if item in found.changed else ""
            lines.append(f"  {item}  {a.rates[item]:.2f} -> {b.rates[item]:.2f}{mark}")
    for text, missing in (("only in A", found.only_a), ("only in B", found.only_b)):
        if missing:
            more = ", ..." if len(missing) > 10 else ""
            lines.append(f"{text}: {len(missing)} ({', '.join(missing[:10])}{more})")
    return "\n".join(lines) + "\n"


def _difference(found: Comparison) -> str:
    low, high = found.interval or (None, None)
    interval = "no interval" if low is None or high is None else f"95 % interval {low:+.4f} to {high:+.4f}"
    return f"{found.difference or 0.0:+.4f} ({interval}), p = {found.p_value:.4g}"


def _changes(a: Side, b: Side, found: Comparison) -> list[str]:
    """What is said of tasks that are not the same in both results."""
    lines = []
    if found.changed:
        number = plural(len(found.changed), "task")
        lines.append(f"changed between A and B: {number}; what differs there need not be the agent's doing")
        lines += [f"  {item}  {a.rates[item]:.2f} -> {b.rates[item]:.2f}" for item in found.changed]
        same = compared(a, b, unchanged=True)
        if same.tasks:
            tasks = plural(same.tasks, "task")
            lines.append(f"pass rate B - A over the {tasks} that did not change: {_difference(same)}")
        else:
            lines.append("no task is the same in both")
    if found.unknown:
        lines.append(f"not known whether they changed, as a result does not say: {len(found.unknown)}")
    return lines


def _side(letter: str, side: Side) -> str:
    rate = side.passed / side.attempts if side.attempts else 0.0
    parts = [f"{letter} {side.name}"]
    parts += [side.model] if side.model else []
    attempts = plural(side.attempts, "attempt")
    parts.append(f"{side.passed} of {attempts} passed ({rate:.4f}), {side.valid} valid")
    parts += [] if side.tokens is None else [f"{side.tokens:.0f} tokens"]
    parts += [] if side.seconds is None else [f"{side.seconds:.1f} s"]
    parts += [] if side.cost is None else [f"${side.cost:.2f} in all"]
    return ": ".join(parts[:1]) + ": " + ", ".join(parts[1:])
