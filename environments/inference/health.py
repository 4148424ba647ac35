"""Whether a server may be called: a circuit breaker learnt from real calls, without probe traffic.

A pure state machine. Time is whatever monotonic clock the caller passes in.

- closed: calls go through; ``threshold`` failures in a row, or a decisive one, open it;
- open: nobody calls until the back-off is over; it doubles with each opening up to ``longest``;
- half-open: one call is let through; its success closes, its failure opens again. A long reply must not
  keep everybody out meanwhile: a call that has not failed after ``proving`` seconds closes as well, and
  then the next failure of any call opens again.

Beside it a pause that the server asked for (Retry-After): not a failure, only a time not to call.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """State of the breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to make one call. Its outcome must be reported with it."""

    epoch: int
    probe: bool


@dataclass(slots=True)
class Health:
    """Breaker of one server. Durations are seconds."""

    threshold: int = 3
    shortest: float = 1.0
    longest: float = 60.0
    proving: float = 5.0
    state: State = State.CLOSED
    paused_until: float = 0.0
    _failures: int = 0
    _openings: int = 0
    _reopens_at: float = 0.0
    _proven_at: float = 0.0
    _epoch: int = 0

    def admissible(self, now: float) -> bool:
        """Whether ``admit`` would give a permit."""
        return now >= self.paused_until and now >= self._barred_until()

    def paused(self, now: float) -> bool:
        """Whether only a pause stands in the way."""
        return self.state is State.CLOSED and now < self.paused_until

    def next_change(self, now: float) -> float | None:
        """When the passing of time alone makes the server admissible, None where it is already."""
        return None if self.admissible(now) else max(self.paused_until, self._barred_until())

    def admit(self, now: float) -> Permit | None:
        """Leave to call now, or None."""
        if not self.admissible(now):
            return None
        if self.state is State.OPEN:
            self.state = State.HALF_OPEN
            self._proven_at = now + self.proving
            return Permit(self._epoch, probe=True)
        if self.state is State.HALF_OPEN:
            self.state = State.CLOSED
            self._failures = self.threshold - 1
        return Permit(self._epoch, probe=False)

    def succeeded(self) -> None:
        """The server answered, whatever it said: it lives."""
        self.state = State.CLOSED
        self._failures = self._openings = 0

    def failed(self, permit: Permit, now: float, *, decisive: bool = False) -> None:
        """A call broke down. Failures of calls older than the last opening say nothing new."""
        if permit.epoch != self._epoch:
            return
        if self.state is State.CLOSED:
            self._failures += 1
            if decisive or self._failures >= self.threshold:
                self._open(now)
        elif permit.probe:
            self._open(now)

    def abandoned(self, permit: Permit, now: float) -> None:
        """A call was cancelled before anything was learnt: the next one may probe at once."""
        if permit.probe and permit.epoch == self._epoch and self.state is State.HALF_OPEN:
            self.state = State.OPEN
            self._reopens_at = now

    def pause(self, until: float) -> None:
        """The server asked not to be called before ``until``."""
        self.paused_until = max(self.paused_until, until)

    def _barred_until(self) -> float:
        if self.state is State.CLOSED:
            return 0.0
        return self._reopens_at if self.state is State.OPEN else self._proven_at

    def _open(self, now: float) -> None:
        self.state = State.OPEN
        self._reopens_at = now + min(self.longest, self.shortest * 2**self._openings)
        self._openings = min(self._openings + 1, 30)
        self._failures = 0
        self._epoch += 1
