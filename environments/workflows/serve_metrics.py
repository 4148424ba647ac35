"""Numbers of a ``serve`` run by their names in Atropos, and why groups were not sent."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from environments.records import Attempt
from environments.results.tracker import Tracker


class ServeMetrics:
    """Gathers between two logs; ``take`` returns the numbers and begins anew."""

    def __init__(self, max_token_length: int) -> None:
        self._limit = max_token_length
        self._lengths: list[int] = []
        self._succeeded: list[float] = []
        self._failed: list[float] = []
        self._staleness: list[int] = []
        self._not_sent: dict[str, int] = {}
        self._outcomes: Counter[str] = Counter()
        self._loops: list[float] = []
        self._added: list[int] = []
        self._waits: list[float] = []
        self.sent = 0

    def group_ended(self, seconds: float, *, succeeded: bool) -> None:
        """A group was rolled out, with something to send or not."""
        (self._succeeded if succeeded else self._failed).append(seconds)

    def group_made(self, trained_tokens: Iterable[int]) -> None:
        """A group is ready to be sent; trained tokens of each row."""
        self._lengths.extend(trained_tokens)

    def group_sent(self, staleness: int, waited: float) -> None:
        """A group was confirmed, so many steps after it was begun and seconds after it was ready."""
        self.sent += 1
        self._staleness.append(staleness)
        self._waits.append(waited)

    def attempts_ended(self, attempts: Iterable[Attempt]) -> None:
        """Attempts of a group, whatever became of them."""
        for attempt in attempts:
            self._outcomes[f"outcome/{attempt.outcome}"] += 1
            self._outcomes[f"ending/{attempt.ending}"] += 1

    def looked(self, seconds: float, added: int) -> None:
        """One look at the training, so long after the last one, in which so many groups were begun."""
        self._loops.append(seconds)
        self._added.append(added)

    def not_sent(self, reason: str, count: int = 1) -> None:
        """Groups, or rows of one, were not sent."""
        self._not_sent[reason] = self._not_sent.get(reason, 0) + count

    def take(self) -> dict[str, Any]:
        """The numbers since the last call."""
        metrics: dict[str, Any] = {
            "train/items_sent_to_api": self.sent,
            "train/items_rejected": sum(self._not_sent.values()),
        }
        metrics |= {f"train/{name}": count for name, count in self._outcomes.items()}
        for reason, count in self._not_sent.items():
            metrics[f"train/not_sent/{reason}"] = count
        if self._lengths:
            long = sum(length > 0.95 * self._limit for length in self._lengths)
            metrics["train/completion_lengths"] = statistics.fmean(self._lengths)
            metrics["train/completion_lengths_std"] = statistics.pstdev(self._lengths)
            metrics["train/completion_lengths_max"] = max(self._lengths)
            metrics["train/completion_lengths_min"] = min(self._lengths)
            metrics["train/completion_lengths_p95"] = long / len(self._lengths)
        durations: dict[str, Sequence[float]] = {
            "task_duration": self._succeeded + self._failed,
            "succeeded_task_duration": self._succeeded,
            "failed_task_duration": self._failed,
            "mainloop_timings": self._loops,
            "workers_added_per_attempt": self._added,
            "send_latency": self._waits,
        }
        for name, values in durations.items():
            metrics |= spread(f"train_perf/{name}", values)
        metrics |= spread("train/staleness", self._staleness)
        self._lengths, self._succeeded, self._failed = [], [], []
        self._loops, self._added, self._waits, self._outcomes = [], [], [], Counter()
        self._staleness, self._not_sent, self.sent = [], {}, 0
        return metrics


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, deviation and extremes of some values; nothing where there are none."""
    if not values:
        return {}
    return {
        f"{name}_mean": statistics.fmean(values),
        f"{name}_std": statistics.pstdev(values),
        f"{name}_max": max(values),
        f"{name}_min": min(values),
    }


class PrefixedTracker(Tracker):
    """Puts the environment's name on a training in front of each metric but those of the servers."""

    def __init__(self, tracker: Tracker, prefix: str) -> None:
        super().__init__(None)
        self._inner, self._prefix = tracker, prefix

    @property
    def active(self) -> bool:
        """Whether anything is logged."""
        return self._inner.active

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """See ``Tracker.log``."""
        self._inner.log({self._named(name): value for name, value in metrics.items()}, step)

    def log_table(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], step: int | None = None
    ) -> None:
        """See ``Tracker.log_table``."""
        self._inner.log_table(self._named(name), columns, rows, step)

    def finish(self, timeout: float = 60.0) -> None:
        """See ``Tracker.finish``."""
        self._inner.finish(timeout)

    def _named(self, name: str) -> str:
        return name if name.startswith("server/") else f"{self._prefix}_{name}"
