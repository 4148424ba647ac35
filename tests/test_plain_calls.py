"""Plain calls in user code suspend only their own task, wherever they are made."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from environments import plain_calls


class Context:
    """Stands where a ToolContext would: one coroutine, called plainly."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.cancelled = 0

    async def _work(self, value: Any, delay: float) -> Any:
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(value, Exception):
            raise value
        return value

    def work(self, value: Any, delay: float = 0.01) -> Any:
        return plain_calls.call(self._work(value, delay), self.loop)


def in_user_code(function: Callable[[Context], Any]) -> Any:
    async def main() -> Any:
        loop = asyncio.get_running_loop()
        with plain_calls.subtasks_of_user_code(loop):
            return await plain_calls.run_user_code(function, Context(loop))

    return asyncio.run(main())


def test_plain_call_in_async_code_returns_its_result() -> None:
    async def reward(ctx: Context) -> list[Any]:
        return [ctx.work(1), await asyncio.sleep(0, "between"), ctx.work(2)]

    assert in_user_code(reward) == [1, "between", 2]


def test_plain_call_works_in_nested_helpers_and_callbacks() -> None:
    def deep(ctx: Context, depth: int) -> Any:
        return ctx.work("deep") if depth == 0 else deep(ctx, depth - 1)

    async def reward(ctx: Context) -> Any:
        return deep(ctx, 50), sorted(["b", "a"], key=ctx.work), max(map(ctx.work, [1, 3, 2]))

    assert in_user_code(reward) == ("deep", ["a", "b"], 3)


def test_exception_of_a_plain_call_reaches_user_code() -> None:
    async def reward(ctx: Context) -> str:
        try:
            ctx.work(ValueError("gone"))
        except ValueError as error:
            return f"caught {error}"
        return "not raised"

    assert in_user_code(reward) == "caught gone"


def test_asyncio_timeout_reaches_into_a_plain_call() -> None:
    async def reward(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                ctx.work("late", 30)
        except TimeoutError:
            return f"timed out, {ctx.cancelled} cancelled"
        return "not timed out"

    assert in_user_code(reward) == "timed out, 1 cancelled"


def test_plain_calls_in_gathered_subtasks_run_side_by_side() -> None:
    async def reward(ctx: Context) -> list[Any]:
        async def check(number: int) -> Any:
            return ctx.work(number, 2)

        started = time.monotonic()
        results = await asyncio.gather(*(check(number) for number in range(10)))
        assert time.monotonic() - started < 15
        return list(results)

    assert in_user_code(reward) == list(range(10))


def test_plain_calls_work_in_threads_and_plain_functions() -> None:
    async def reward(ctx: Context) -> Any:
        return await asyncio.to_thread(ctx.work, "thread")

    def plain_reward(ctx: Context) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return ctx.work("plain")

    assert in_user_code(reward) == "thread"
    assert in_user_code(plain_reward) == "plain"


def test_plain_function_may_return_an_awaitable() -> None:
    async def later(ctx: Context) -> Any:
        return ctx.work("later")

    def reward(ctx: Context) -> Awaitable[Any]:
        return later(ctx)

    assert in_user_code(reward) == "later"


def test_plain_call_on_the_loop_outside_user_code_says_what_to_write() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"await ctx\.aio"):
            Context(asyncio.get_running_loop()).work(1)

    asyncio.run(main())


def test_semaphore_made_in_setup_is_shared_by_two_thousand_rewards() -> None:
    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        ctx, gate, highest, inside = Context(loop), asyncio.Semaphore(100), 0, 0

        async def reward(number: int) -> int:
            nonlocal highest, inside
            async with gate:
                inside += 1
                highest = max(highest, inside)
                for _ in range(3):
                    ctx.work(number, 30 if number == 7 else 0.001)
                inside -= 1
            return number

        tasks = [loop.create_task(plain_calls.run_user_code(reward, n)) for n in range(2000)]
        started = time.monotonic()
        await asyncio.gather(*(task for n, task in enumerate(tasks) if n != 7))
        elapsed = time.monotonic() - started
        assert not tasks[7].done()
        tasks[7].cancel()
        await asyncio.gather(tasks[7], return_exceptions=True)
        assert ctx.cancelled == 1
        return elapsed, highest

    elapsed, highest = asyncio.run(main())
    assert elapsed < 25
    assert highest <= 100


def test_cancelled_drives_leave_no_greenlet_behind() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        ctx = Context(loop)

        async def reward() -> None:
            ctx.work(None, 30)

        tasks = [loop.create_task(plain_calls.run_user_code(reward)) for _ in range(200)]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()
        gc.collect()
        return sum(isinstance(thing, plain_calls._UserCode) for thing in gc.get_objects())

    assert asyncio.run(main()) == 0


def test_a_subtask_that_is_cancelled_before_it_begins_is_no_coroutine_left_unawaited(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def nothing() -> None:
        """Never begun."""

    async def reward(ctx: Context) -> str:
        task = asyncio.ensure_future(nothing())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task
        gc.collect()
        return "done"

    assert in_user_code(reward) == "done"
    gc.collect()
    assert not recwarn.list


def test_context_variables_of_the_caller_are_visible() -> None:
    from contextvars import ContextVar

    variable: ContextVar[str] = ContextVar("variable", default="unset")

    async def main() -> str:
        variable.set("set")

        async def reward() -> str:
            return variable.get()

        return str(await plain_calls.run_user_code(reward))

    assert asyncio.run(main()) == "set"
