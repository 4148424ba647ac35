"""A deadline in working time moves with what was spent waiting."""

from __future__ import annotations

import asyncio
import time

import pytest

from environments.waiting import DeadlineReached, WaitingClock, counted, deadline, waiting


def test_overlapping_waits_count_once() -> None:
    async def main() -> float:
        clock = WaitingClock()

        async def wait() -> None:
            with waiting():
                await asyncio.sleep(0.2)

        with counted(clock):
            await asyncio.gather(wait(), wait(), wait())
        return clock.total

    assert 0.15 < asyncio.run(main()) < 0.55


def test_deadline_ends_work_and_not_waiting() -> None:
    async def main() -> float:
        clock = WaitingClock()
        started = time.monotonic()
        with counted(clock), pytest.raises(DeadlineReached):
            async with deadline(1.0, clock):
                with waiting():
                    await asyncio.sleep(2.0)
                await asyncio.sleep(30)
        return time.monotonic() - started

    assert asyncio.run(main()) >= 2.8


def test_a_timeout_of_the_block_itself_is_not_the_deadline() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError) as caught:
            async with deadline(30):
                raise TimeoutError("the block's own")
        assert not isinstance(caught.value, DeadlineReached)

    asyncio.run(main())


def test_no_deadline() -> None:
    async def main() -> str:
        async with deadline(None):
            return "done"

    assert asyncio.run(main()) == "done"
