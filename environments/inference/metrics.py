"""Counters and timings of the calls to one server."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from environments.inference.pool import Split
from environments.inference.types import CallTiming


@dataclass(slots=True)
class ServerMetrics:
    """Plain numbers. Timings look back on the last ``window`` calls of each split; seconds."""

    window: int
    requests: int = 0
    retries: int = 0
    waiting: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    _durations: dict[Split, deque[float]] = field(default_factory=dict)
    _tries: dict[Split, deque[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._durations = {"train": deque(maxlen=self.window), "eval": deque(maxlen=self.window)}
        self._tries = {"train": deque(maxlen=self.window), "eval": deque(maxlen=self.window)}

    def record(self, split: Split, duration: float, timing: CallTiming) -> None:
        """A call that ended well; ``duration`` is the time its last request was in flight."""
        self._durations[split].append(duration)
        self._tries[split].append(timing.retries + 1)
        self.waiting += timing.waiting

    def summary(self, name: str) -> dict[str, float]:
        """Metrics by the names that Atropos logs, for a server called ``name``."""
        result: dict[str, float] = {}
        for split, durations in self._durations.items():
            label = "request_time" if split == "train" else "eval_request_time"
            if values := sorted(durations):
                prefix = f"server/{name}_{label}"
                result[f"{prefix}_avg"] = fmean(values)
                result[f"{prefix}_std"] = pstdev(values)
                result[f"{prefix}_50p"] = percentile(values, 0.50)
                result[f"{prefix}_95p"] = percentile(values, 0.95)
                result[f"{prefix}_99p"] = percentile(values, 0.99)
        for split, label in (("train", "average_num_attempts"), ("eval", "eval_retry_rate")):
            if tries := self._tries[split]:
                result[f"server/{name}_{label}"] = fmean(tries)
        return result


def percentile(ordered: list[float], share: float) -> float:
    """Value below which ``share`` of the ordered values lie (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
