"""The breaker as a state machine, over random histories."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from environments.inference.health import Health, Permit, State


def test_it_opens_after_repeated_failures_and_lets_one_call_try() -> None:
    health = Health(threshold=2, shortest=1.0)
    for _ in range(2):
        permit = health.admit(0.0)
        assert permit is not None
        health.failed(permit, 0.0)
    assert health.admit(0.5) is None
    assert health.next_change(0.5) == 1.0
    probe = health.admit(1.0)
    assert probe is not None
    assert probe.probe
    assert health.admit(1.0) is None
    health.succeeded()
    assert health.admit(1.0) is not None


def test_a_decisive_failure_opens_at_once_and_the_back_off_doubles() -> None:
    health = Health(shortest=1.0, longest=3.0)
    now, waits = 0.0, []
    for _ in range(4):
        permit = health.admit(now)
        assert permit is not None
        health.failed(permit, now, decisive=True)
        again = health.next_change(now)
        assert again is not None
        waits.append(again - now)
        now = again
    assert waits == [1.0, 2.0, 3.0, 3.0]


def test_failures_of_calls_from_before_the_opening_say_nothing_new() -> None:
    health = Health(threshold=1, shortest=1.0)
    early, late = health.admit(0.0), health.admit(0.0)
    assert early and late
    health.failed(early, 0.0)
    probe = health.admit(1.0)
    assert probe is not None
    health.failed(late, 1.0)
    assert health.state is State.HALF_OPEN


def test_a_long_reply_does_not_keep_everybody_out() -> None:
    health = Health(shortest=1.0, proving=5.0)
    first = health.admit(0.0)
    assert first is not None
    health.failed(first, 0.0, decisive=True)
    probe = health.admit(1.0)
    assert probe is not None
    assert health.admit(5.9) is None
    assert health.next_change(5.9) == 6.0
    assert health.admit(6.0) is not None
    health.failed(probe, 7.0)
    assert health.admit(7.0) is None


class Breaker(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.health = Health(threshold=3, shortest=1.0, longest=8.0)
        self.now = 0.0
        self.permits: list[Permit] = []

    @rule(seconds=st.integers(0, 10))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def call(self) -> None:
        promised = self.health.admissible(self.now)
        permit = self.health.admit(self.now)
        assert (permit is not None) == promised
        if permit:
            self.permits.append(permit)

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), outcome=st.sampled_from(["ok", "failed", "decisive", "abandoned"]))
    def finish(self, data: st.DataObject, outcome: str) -> None:
        permit = self.permits.pop(data.draw(st.integers(0, len(self.permits) - 1)))
        if outcome == "ok":
            self.health.succeeded()
            assert self.health.state is State.CLOSED
        elif outcome == "abandoned":
            self.health.abandoned(permit, self.now)
        else:
            self.health.failed(permit, self.now, decisive=outcome == "decisive")

    @rule(seconds=st.integers(0, 20))
    def pause(self, seconds: float) -> None:
        self.health.pause(self.now + seconds)
        assert not self.health.admissible(self.now) or seconds == 0

    @invariant()
    def there_is_always_a_way_back(self) -> None:
        change = self.health.next_change(self.now)
        if self.health.state is State.HALF_OPEN:
            assert any(permit.probe for permit in self.permits)
        if change is not None:
            assert change > self.now
            assert self.health.admissible(change)
        else:
            assert self.health.admissible(self.now)

    @invariant()
    def the_back_off_is_bounded(self) -> None:
        change = self.health.next_change(self.now)
        if change is not None:
            assert change - self.now <= max(8.0, self.health.paused_until - self.now)


Breaker.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBreaker = Breaker.TestCase
