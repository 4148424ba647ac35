from __future__ import annotations

import asyncio

import pytest

from environments.tools.base import ToolState
from environments.tools.shared import SharedResources


class Thing:
    def __init__(self, log: list[str], name: str, fails: bool = False) -> None:
        self.log, self.name, self.fails = log, name, fails

    async def close(self) -> None:
        self.log.append(self.name)
        if self.fails:
            raise OSError("no")


def test_one_is_made_for_all_and_closed_in_reverse() -> None:
    async def main() -> None:
        shared, closed, made = SharedResources(), [], []

        async def make(name: str, fails: bool = False) -> Thing:
            await asyncio.sleep(0)
            made.append(name)
            return Thing(closed, name, fails)

        things = await asyncio.gather(*(shared.get("a", lambda: make("a")) for _ in range(5)))
        assert len(set(map(id, things))) == 1
        await shared.get("b", lambda: make("b", fails=True))
        assert made == ["a", "b"]
        await shared.close()
        await shared.close()
        assert closed == ["b", "a"]
        with pytest.raises(RuntimeError, match="the run is over"):
            await shared.get("a", lambda: make("a"))

    asyncio.run(main())


def test_a_failure_to_make_it_is_not_remembered() -> None:
    async def main() -> None:
        shared = SharedResources()

        async def fail() -> Thing:
            raise OSError("not now")

        async def work() -> Thing:
            return Thing([], "x")

        with pytest.raises(OSError, match="not now"):
            await shared.get("x", fail)
        assert (await shared.get("x", work)).name == "x"

    asyncio.run(main())


def test_every_closer_of_a_rollout_is_called_though_one_fails() -> None:
    async def main() -> None:
        state = ToolState(sandbox=None)  # type: ignore[arg-type]
        log: list[str] = []
        state.closers += [Thing(log, "first").close, Thing(log, "second", fails=True).close]
        with pytest.raises(OSError, match="no"):
            await state.close()
        await state.close()
        assert log == ["second", "first"]

    asyncio.run(main())
