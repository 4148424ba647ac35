"""The state of a job under any order of calls: nothing lost, nothing doubled, every step counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from environments.trajectory_api.job import Group, Job
from environments.trajectory_api.messages import RegisterEnv, Registration
from environments.trajectory_api.refusals import Refused
from tests.trajectory_api.running import REGISTRATION


def registration(**changes: Any) -> Registration:
    return Registration.model_validate({**REGISTRATION, **changes})


def joining(**changes: Any) -> RegisterEnv:
    request = {"max_token_length": 100, "desired_name": "e", "weight": 1.0, "group_size": 2}
    return RegisterEnv.model_validate({**request, **changes})


class JobMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.job = Job.begin(registration(batch_size=8, starting_step=3), lease=10.0)
        self.now = 0.0
        self.added: list[int] = []
        self.finished: set[int] = set()
        self.batches = 0

    @rule(size=st.integers(1, 8), env=st.sampled_from([None, 0, 1]))
    def add(self, size: int, env: int | None) -> None:
        if env is not None and env >= len(self.job.environments):
            with pytest.raises(Refused):
                self.job.check(env, size)
            return
        self.job.check(env, size)
        self.added.append(len(self.added) + 1)
        self.job.add(Group(self.added[-1], size, size, env))

    @rule(size=st.integers(1, 4), minimum=st.sampled_from([None, 0.25, 0.5, 0.9]))
    def join(self, size: int, minimum: float | None) -> None:
        if len(self.job.environments) < 2:
            self.job.register_environment(joining(group_size=size, min_batch_allocation=minimum), self.now)

    @rule(consumer=st.sampled_from([None, None, "a", "b"]))
    def fetch(self, consumer: str | None) -> None:
        for batch in self.job.finished_batches() if consumer is None else []:
            self.finished |= {group.id for group in batch.groups}
            self.job.finish(batch)
        held = {b.id for b in self.job.batches.values() if b.consumer == consumer}
        batch, stale = self.job.next_batch(self.now, consumer=consumer)
        assert not stale
        if batch is None:
            return
        if consumer is not None and held:
            assert batch.id == min(held)
            return
        self.batches += 1
        assert 0 < batch.size <= 8 and batch.size == sum(group.size for group in batch.groups)
        assert batch.step == 2 + self.batches
        if consumer is None:
            batch.state = "delivered"

    @precondition(lambda self: any(b.consumer for b in self.job.batches.values()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        held = [b for b in self.job.batches.values() if b.consumer]
        batch = data.draw(st.sampled_from(held))
        self.finished |= {group.id for group in batch.groups}
        self.job.finish(batch)

    @precondition(lambda self: self.job.batches)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        self.job.requeue(data.draw(st.sampled_from(list(self.job.batches.values()))))

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.job.environments)
    @rule()
    def look(self) -> None:
        status = self.job.status_of(0, self.now)
        assert status["queue_size"] >= 0 and 0 <= status["unallocated_fraction"] <= 1

    @rule()
    def restart(self) -> None:
        queue, batches = self.job.queue, self.job.batches
        data = json.loads(json.dumps(self.job.snapshot()))
        self.job = Job.restore(self.job.run_id, data, self.now, 10.0)
        self.job.queue, self.job.batches = queue, batches

    @invariant()
    def each_group_is_in_one_place(self) -> None:
        waiting = [group.id for group in self.job.queue]
        out = [group.id for batch in self.job.batches.values() for group in batch.groups]
        assert sorted([*waiting, *out, *self.finished]) == self.added
        assert waiting == sorted(waiting)

    @invariant()
    def steps_are_batches_handed_out(self) -> None:
        assert self.job.step == 3 + self.batches


TestJob = JobMachine.TestCase
TestJob.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_environment_that_is_gone_blocks_nobody() -> None:
    job = Job.begin(registration(batch_size=4), lease=10.0)
    job.register_environment(joining(min_batch_allocation=0.5), now=0.0)
    job.register_environment(joining(), now=0.0)
    for number in range(4):
        job.add(Group(number, 2, 2, env_id=1))
    assert job.next_batch(5.0)[0] is None
    job.heard_of(1, 11.0)
    batch, _ = job.next_batch(11.0)
    assert batch is not None and [group.id for group in batch.groups] == [0, 1]


def test_too_old_groups_are_not_handed_out() -> None:
    job = Job.begin(registration(batch_size=2, max_staleness=2))
    for number, version in enumerate([1, 3, None]):
        job.add(Group(number, 2, 2, policy_version=version))
    batch, stale = job.next_batch(0.0, version=5)
    assert batch is not None and [group.id for group in stale] == [0]
    assert [group.id for group in batch.groups] == [1]
    assert job.stale == 1


def test_the_same_instance_comes_back_as_itself() -> None:
    job = Job.begin(registration())
    first = job.register_environment(joining(instance="x"), 0.0)
    other = job.register_environment(joining(), 0.0)
    again = job.register_environment(joining(instance="x", weight=2.0), 1.0)
    assert (first.env_id, other.env_id, again.env_id) == (0, 1, 0)
    assert (again.name, other.name, again.weight) == ("e_0", "e_1", 2.0)


def test_what_cannot_fit_is_said_at_registration() -> None:
    job = Job.begin(registration(batch_size=12))
    with pytest.raises(Refused) as refused:
        job.register_environment(joining(group_size=13), 0.0)
    assert refused.value.path == ("group_size",)
    eight = job.register_environment(joining(group_size=8), 0.0)
    assert "8 sequences" in (job.warning_for(eight, 0.0) or "")
    four = job.register_environment(joining(group_size=4), 0.0)
    assert job.warning_for(four, 0.0) is None


def test_weights_and_shares_as_in_the_original() -> None:
    job = Job.begin(registration(batch_size=8))
    job.register_environment(joining(weight=3.0, min_batch_allocation=0.25), 0.0)
    job.register_environment(joining(weight=-1.0), 0.0)
    job.register_environment(joining(weight=1.0), 0.0)
    for number, env in enumerate([0, 1, 1, 0, 2]):
        job.add(Group(number, 2, 2, env_id=env))
    status = job.status_of(0, 0.0)
    assert status["env_weight"] == 0.75 and status["unallocated_fraction"] == 0.75
    assert (status["queue_size"], status["self_queue_size"], status["max_group_size"]) == (5, 2, 2)
    assert job.status_of(1, 0.0)["env_weight"] == 0.01
    assert job.status_of(1, 0.0)["queue_size"] == 4  # what fills another's minimum does not count
