"""Statistics of attempts: pure functions, no rounding, ``None`` where a number is not defined.

Of several tries of an attempt only the last counts. A failure of ours counts as not passed in the
rate over all attempts, and is left out of the rate over valid ones; both are always given, with the
coverage, so that neither hides the other.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.records import Attempt, Usage
from environments.results.groups import is_scored
from environments.results.reading import final_attempts

Z95 = 1.959963984540054
"""Quantile of the normal distribution for a two-sided interval of 95 %."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Planned:
    """How many attempts there should be at an item. ``info`` is what results say of the item, such as its
    category."""

    environment: str
    item_id: str
    attempts: int
    info: Mapping[str, Any] = field(default_factory=dict)


def passed(attempt: Attempt) -> bool:
    """Whether an attempt counts as solved: the verifier's word, else a reward of 1."""
    verdict = attempt.verdict
    if not is_scored(attempt) or verdict is None:
        return False
    if verdict.passed is not None:
        return verdict.passed
    return verdict.reward is not None and verdict.reward >= 1.0 - 1e-9


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None


def standard_error(clusters: Iterable[Sequence[float]]) -> float | None:
    """Standard error of the mean of all values, where values of one cluster are not independent.

    The cluster-robust estimate of Miller, "Adding Error Bars to Evals" (2024), eq. 4, with the usual
    factor G / (G - 1) for few clusters. For clusters of one value it is s / sqrt(n). None below two
    clusters.
    """
    groups = [list(values) for values in clusters if len(values)]
    values = [value for group in groups for value in group]
    if len(groups) < 2:
        return None
    centre = math.fsum(values) / len(values)
    squares = math.fsum(math.fsum(value - centre for value in group) ** 2 for group in groups)
    return math.sqrt(squares * len(groups) / (len(groups) - 1)) / len(values)


def wilson_interval(successes: float, total: float, z: float = Z95) -> Interval | None:
    """Score interval of a proportion (Wilson 1927); keeps its coverage near 0 and 1 and for few trials.

    The counts may be effective ones, and so need not be whole.
    """
    if total <= 0:
        return None
    share = successes / total
    denominator = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / denominator
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / denominator
    return (min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def effective_size(clusters: Iterable[Sequence[float]]) -> float:
    """How many independent attempts the outcomes (0 or 1) of all clusters are worth: n / deff.

    The design effect deff is the variance of the rate with its clusters over that of a simple random sample
    of the same size (Kish, "Survey Sampling", 1965, 8.2): ``standard_error`` squared, with its factor
    m / (m - 1) for m clusters, over p (1 - p) / (n - 1), as survey software computes it. n / deff goes into
    Wilson's formula as Korn and Graubard, Survey Methodology 24 (1998), do for proportions of few cases.

    deff is taken to be at least 1, and is 1 where each cluster has one attempt. Clusters that all have the
    same rate tell nothing about the attempts within them, and count as one attempt each.
    """
    groups = [list(values) for values in clusters if len(values)]
    total = sum(map(len, groups))
    if total == len(groups) or len({math.fsum(values) / len(values) for values in groups}) < 2:
        return float(len(groups))
    rate = math.fsum(value for values in groups for value in values) / total
    clustered = standard_error(groups) or 0.0
    return total / max(1.0, clustered**2 / (rate * (1 - rate) / (total - 1)))


def bootstrap_interval(
    clusters: Iterable[Sequence[float]], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval | None:
    """Percentile bootstrap interval of a mean (Efron 1979), drawing whole clusters with replacement.

    Items are drawn, not attempts, since attempts of an item resemble each other. The same input
    gives the same interval. None where the clusters do not differ (or there is only one): drawing them
    again then shows nothing of how far the mean may be off.
    """
    sums = [(math.fsum(values), len(values)) for values in clusters if len(values)]
    rates = [total / count for total, count in sums]
    if not rates or math.isclose(min(rates), max(rates), rel_tol=1e-9):
        return None
    rounds = max(200, min(resamples, 4_000_000 // len(sums)))
    generator = random.Random(seed)
    means = []
    for _ in range(rounds):
        drawn = generator.choices(sums, k=len(sums))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    tail = (1 - level) / 2
    return (_quantile(means, tail), _quantile(means, 1 - tail))


def pass_at_k(total: int, correct: int, k: int) -> float:
    """Chance that at least one of ``k`` attempts passes, from ``correct`` of ``total`` (``k <= total``).

    The unbiased estimate 1 - C(n - c, k) / C(n, k) of Chen et al., "Evaluating Large Language Models
    Trained on Code" (2021).
    """
    return 1.0 - math.comb(total - correct, k) / math.comb(total, k)


def pass_hat_k(total: int, correct: int, k: int) -> float:
    """Chance that all of ``k`` attempts pass: C(c, k) / C(n, k), Yao et al., "tau-bench" (2024)."""
    return math.comb(correct, k) / math.comb(total, k)


def by_item(attempts: Iterable[Attempt]) -> dict[tuple[str, str], list[Attempt]]:
    """Attempts of each item (environment and item id), in order of first appearance."""
    items: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in attempts:
        items.setdefault((attempt.environment, attempt.item_id), []).append(attempt)
    return items


def summary(attempts: Iterable[Attempt], *, planned: int | Iterable[Planned] | None = None) -> dict[str, Any]:
    """Everything one wants to know of a run, as plain data.

    ``planned`` is how many attempts there should have been, in all or for each item; those that are not
    there count as not passed in every rate but the valid one (a plain number says nothing of their items,
    so it leaves rates of categories and pass@k alone). Intervals are of 95 %: Wilson for pass rates, with
    the effective number of attempts where items have several; bootstrap over items for rewards.
    """
    every = final_attempts(attempts)
    valid = [attempt for attempt in every if is_scored(attempt)]
    works = _works(every, planned)
    total = sum(work.size for work in works)
    count = sum(map(passed, every))
    verdicts = [attempt.verdict for attempt in valid if attempt.verdict is not None]
    rewards = [[attempt.reward or 0.0 for attempt in group] for group in by_item(valid).values()]
    return {
        "attempts": total,
        "finished": len(every),
        "valid": len(valid),
        "items": sum(work.named for work in works),
        "passed": count,
        "passed_items": sum(work.passed > 0 for work in works),
        "pass_rate": count / total if total else None,
        "pass_rate_interval": _interval(works),
        "valid_pass_rate": count / len(valid) if valid else None,
        "valid_pass_rate_interval": _interval(_works(valid, None)),
        "coverage": len(valid) / total if total else None,
        "mean_reward": mean([value for group in rewards for value in group]),
        "mean_reward_stderr": standard_error(rewards),
        "mean_reward_interval": bootstrap_interval(rewards),
        **_repeated(works),
        "endings": dict(Counter(str(a.ending) if a.ending else "unknown" for a in every).most_common()),
        "outcomes": dict(Counter(str(a.outcome) if a.outcome else "unknown" for a in every).most_common()),
        "contested": sum(verdict.contested for verdict in verdicts),
        "tampered": sum(verdict.tampered for verdict in verdicts),
        "tool_errors": sum(len(attempt.tool_errors) for attempt in every),
        "turns": mean([len(attempt.turns) for attempt in every]),
        "usage": _usage(every),
        "time": _time(every),
        "categories": _rates(works, "category"),
        "difficulties": _rates(works, "difficulty"),
    }


@dataclass(slots=True)
class _Work:
    """What there is, and what should be, of one item."""

    attempts: list[Attempt] = field(default_factory=list)
    planned: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    named: bool = True

    @property
    def size(self) -> int:
        """Attempts that count in rates: those that are missing, too."""
        return max(len(self.attempts), self.planned)

    @property
    def passed(self) -> int:
        return sum(map(passed, self.attempts))

    @property
    def outcomes(self) -> list[float]:
        """1 for each attempt that passed, 0 for the others and those that are missing."""
        found = [float(passed(attempt)) for attempt in self.attempts]
        return found + [0.0] * (self.size - len(found))

    def of(self, name: str) -> str:
        """What results say of the item under a name, such as its category; empty where they do not."""
        told = (info.get(name) for info in (self.info, *((a.item or {}) for a in self.attempts)))
        return next((str(value) for value in told if value), "")


def _works(attempts: Sequence[Attempt], planned: int | Iterable[Planned] | None) -> list[_Work]:
    works = {key: _Work(group) for key, group in by_item(attempts).items()}
    if planned is None or isinstance(planned, int):
        missing = max(0, (planned or 0) - len(attempts))
        return [*works.values(), *(_Work(planned=1, named=False) for _ in range(missing))]
    for plan in planned:
        work = works.setdefault((plan.environment, plan.item_id), _Work())
        work.planned, work.info = plan.attempts, plan.info
    return [work for work in works.values() if work.size]


def _rates(works: Iterable[_Work], name: str) -> dict[str, dict[str, Any]]:
    """Count and pass rate for each category (or value under another name), sorted by it."""
    groups: dict[str, list[_Work]] = {}
    for work in works:
        if value := work.of(name):
            groups.setdefault(value, []).append(work)
    return {value: _rate(group) for value, group in sorted(groups.items())}


def _rate(works: Sequence[_Work]) -> dict[str, Any]:
    total, count = sum(work.size for work in works), sum(work.passed for work in works)
    return {
        "attempts": total,
        "passed": count,
        "valid": sum(is_scored(attempt) for work in works for attempt in work.attempts),
        "pass_rate": count / total if total else None,
        "pass_rate_interval": _interval(works),
    }


def evaluation_metrics(
    attempts: Iterable[Attempt],
    *,
    elapsed: float | None = None,
    planned: int | Iterable[Planned] | None = None,
) -> dict[str, float]:
    """The flat ``eval/...`` metrics, for W&B and ``metrics.json``; what is not defined is left out.

    Tasks are items, of which each may have several attempts: a task has passed where one of them has. The
    pass rates are of attempts.
    """
    found = summary(attempts, planned=planned)
    low, high = found["pass_rate_interval"] or (None, None)
    metrics: dict[str, float | None] = {
        "eval/pass_rate": found["pass_rate"] or 0.0,
        "eval/total_tasks": found["items"],
        "eval/passed_tasks": found["passed_items"],
        "eval/total_attempts": found["attempts"],
        "eval/passed_attempts": found["passed"],
        "eval/evaluation_time_seconds": elapsed,
        "eval/items": found["items"],
        "eval/valid_pass_rate": found["valid_pass_rate"],
        "eval/coverage": found["coverage"],
        "eval/pass_rate_ci95_low": low,
        "eval/pass_rate_ci95_high": high,
        "eval/contested_attempts": found["contested"],
        "eval/tampered_attempts": found["tampered"],
        "eval/mean_reward": found["mean_reward"],
        "eval/mean_reward_stderr": found["mean_reward_stderr"],
        "eval/mean_turns": found["turns"],
        "eval/completion_tokens": found["usage"]["completion_tokens"],
        "eval/cost": found["usage"]["cost"],
    }
    for name in ("pass_at", "pass_hat"):
        metrics.update({f"eval/{name}_{k}": value for k, value in found[name].items()})
    for category, rate in _merged(found["categories"]).items():
        name = f"eval/pass_rate_{category}"
        if name in metrics or category.startswith("difficulty_"):  # a category may be called ci95_low
            name = f"eval/pass_rate_category_{category}"
        metrics[name] = rate
    for difficulty, rate in _merged(found["difficulties"]).items():
        metrics[f"eval/pass_rate_difficulty_{difficulty}"] = rate
    return {name: value for name, value in metrics.items() if value is not None}


def _merged(rates: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Pass rates by the names that metrics can have, which several categories may share."""
    sums: dict[str, tuple[int, int]] = {}
    for name, rate in rates.items():
        count, total = sums.get(metric_name(name), (0, 0))
        sums[metric_name(name)] = (count + rate["passed"], total + rate["attempts"])
    return {name: count / total for name, (count, total) in sums.items()}


def metric_name(text: str) -> str:
    """A category as part of a metric's name.

    >>> metric_name("Data Science-Tools")
    'data_science_tools'
    """
    return text.strip().lower().replace(" ", "_").replace("-", "_")


def _interval(works: Sequence[_Work]) -> Interval | None:
    """Wilson's interval of the pass rate, with the effective number of attempts."""
    clusters = [work.outcomes for work in works]
    total = sum(map(len, clusters))
    if not total:
        return None
    size = effective_size(clusters)
    if size == total:
        return wilson_interval(sum(work.passed for work in works), total)
    return wilson_interval(size * sum(work.passed for work in works) / total, size)


def _repeated(works: Sequence[_Work]) -> dict[str, dict[int, float]]:
    """pass@k and pass^k, averaged over the items, for k = 1, 2, 4, ... that all items have."""
    counts = [(work.size, work.passed) for work in works if work.named]
    least = min((total for total, _ in counts), default=0)
    if least < 2:
        return {"pass_at": {}, "pass_hat": {}}
    powers = [2**exponent for exponent in range(least.bit_length()) if 2**exponent <= least]
    ks = sorted({*powers, least})
    return {
        "pass_at": {k: math.fsum(pass_at_k(n, c, k) for n, c in counts) / len(counts) for k in ks},
        "pass_hat": {k: math.fsum(pass_hat_k(n, c, k) for n, c in counts) / len(counts) for k in ks},
    }


def _usage(attempts: Iterable[Attempt]) -> dict[str, float | None]:
    total = Usage()
    for attempt in attempts:
        total.add(attempt.usage)
    return {
        "prompt_tokens": total.prompt_tokens,
        "cached_tokens": total.cached_tokens,
        "completion_tokens": total.completion_tokens,
        "reasoning_tokens": total.reasoning_tokens,
        "cost": total.cost,
    }


def _time(attempts: Sequence[Attempt]) -> Mapping[str, float | None]:
    parts = ("queue", "sandbox_start", "model", "tools", "waiting", "verification", "wall", "working")
    return {part: mean([getattr(attempt.clock, part) for attempt in attempts]) for part in parts}


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
