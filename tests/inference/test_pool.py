"""The pool under random traffic: limits hold, nobody is lost, every slot comes back."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.inference.health import Health
from environments.inference.pool import NoServerAvailable, Pool, Slots, Split


@settings(max_examples=60, deadline=None)
@given(
    limits=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    calls=st.integers(1, 40),
)
def test_random_traffic(limits: list[tuple[int, int]], seed: int, calls: int) -> None:
    rng = random.Random(seed)
    ends: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        # The times are thousandths of real ones, so that back-offs happen during the test.
        health = {"threshold": 2, "shortest": 0.002, "longest": 0.01, "proving": 0.01}
        members = [
            Slots({"train": train, "eval": evaluation}, Health(**health)) for train, evaluation in limits
        ]
        pool = Pool(members, loop.time, rng)

        async def call(split: Split, preferred: Slots | None, outcome: str) -> None:
            lease = await pool.acquire(split, preferred=preferred, patience=0.05, pause_patience=0.05)
            slots = lease.slots
            finished = False
            try:
                assert all(slots.in_flight[s] <= slots.limits[s] for s in slots.limits)
                await asyncio.sleep(rng.random() * 0.002)
                finished = True
                if outcome == "ok":
                    slots.health.succeeded()
                elif outcome == "pause":
                    slots.health.pause(loop.time() + 0.003)
                    slots.health.succeeded()
                else:
                    slots.health.failed(lease.permit, loop.time(), decisive=outcome == "dead")
            finally:
                if not finished:
                    slots.health.abandoned(lease.permit, loop.time())
                pool.release(lease)
                if lease.permit.probe:
                    pool.recovered()

        async def counted(make: Any, cancel: bool) -> None:
            task = asyncio.create_task(make)
            if cancel:
                await asyncio.sleep(rng.random() * 0.003)
                task.cancel()
            try:
                await task
                ends.append("done")
            except NoServerAvailable:
                ends.append("none")
            except asyncio.CancelledError:
                ends.append("cancelled")

        work = []
        for _ in range(calls):
            split: Split = rng.choice(["train", "eval"])
            preferred = rng.choice([None, *members])
            outcome = rng.choice(["ok", "ok", "ok", "pause", "failed", "dead"])
            work.append(counted(call(split, preferred, outcome), rng.random() < 0.2))
        await asyncio.wait_for(asyncio.gather(*work), 20)
        assert pool.waiting == 0
        assert all(count == 0 for slots in members for count in slots.in_flight.values())

    asyncio.run(run())
    assert len(ends) == calls


def test_a_dead_server_is_waited_for_only_so_long() -> None:
    async def run() -> float | None:
        slots = Slots({"train": 1, "eval": 1}, Health(shortest=30.0))
        pool = Pool([slots], asyncio.get_running_loop().time, random.Random(0))
        lease = await pool.acquire("train")
        slots.health.failed(lease.permit, asyncio.get_running_loop().time(), decisive=True)
        waiting = asyncio.create_task(pool.acquire("train", patience=0.05))
        await asyncio.sleep(0)
        pool.release(lease)
        with pytest.raises(NoServerAvailable) as caught:
            await asyncio.wait_for(waiting, 10)
        return caught.value.retry_after

    retry_after = asyncio.run(run())
    assert retry_after is not None
    assert 20 < retry_after <= 30
