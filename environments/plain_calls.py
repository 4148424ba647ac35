"""Plain calls inside asynchronous user code.

Reward functions are written as ``async def compute_reward`` but call ``ctx.terminal("pytest")``
without ``await``. Such a call must not block the event loop. So user code runs inside a greenlet on
the main loop: a plain call switches out of it with the coroutine to be awaited, the surrounding task
awaits it like any other, and the result is switched back in. Locks, clients and semaphores made in
``setup()`` stay on their loop, ``asyncio.timeout`` and cancellation reach into a plain call, and a
thousand of them cost no thread. (SQLAlchemy's asyncio layer rests on the same idea.)

Known gap: code that blocks without calling us, such as ``time.sleep``, still blocks the loop; the
lag monitor of the scheduler names it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import greenlet

from environments.errors import UserCodeError

T = TypeVar("T")

_in_user_code: contextvars.ContextVar[bool] = contextvars.ContextVar("in_user_code", default=False)


class _UserCode(greenlet.greenlet):  # type: ignore[misc]
    """A greenlet that runs user code, told apart from greenlets of other libraries."""


class _Await:
    """Message of a plain call to the task around it: await this."""

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine


def call(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Run a coroutine to its end from plain code, wherever that code runs.

    In user code on the loop only the calling task is suspended; in another thread that thread waits.
    Raises ``RuntimeError`` on the loop outside user code, where waiting would deadlock.
    """
    current = greenlet.getcurrent()
    if isinstance(current, _UserCode):
        parent = current.parent
        del current
        return parent.switch(_Await(coroutine))  # type: ignore[no-any-return]
    if _running_loop() is loop:
        coroutine.close()
        raise RuntimeError("a plain ctx call cannot wait here; write `await ctx.aio.…` instead")
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def run_user_code(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function, plain or ``async``; plain calls of ours work in both.

    A plain function runs in a thread, as it may block in ways that we cannot see.
    """
    token = _in_user_code.set(True)
    try:
        with as_user_code(getattr(function, "__qualname__", str(function))):
            if inspect.iscoroutinefunction(function):
                return await _Drive(function(*arguments))
            result = await asyncio.to_thread(function, *arguments)
            if inspect.isawaitable(result):
                return await _Drive(_as_coroutine(result))
            return result
    finally:
        _in_user_code.reset(token)


@contextmanager
def as_user_code(name: str) -> Iterator[None]:
    """``UserCodeError`` for what would end more than the code called ``name``: ``sys.exit()``, or a
    cancellation that nobody asked for."""
    try:
        yield
    except SystemExit as error:
        raise UserCodeError(
            f"{name} called sys.exit({error.code!r}): raise an error or return instead"
        ) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # it is we who cancel
        raise UserCodeError(f"{name} raised CancelledError by itself") from error


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


class _Drive:
    """Awaitable that drives a coroutine inside a greenlet."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        runner: Any = _UserCode(_step_through(self.coroutine))
        runner.gr_context = contextvars.copy_context()
        message: Any = runner.switch()
        try:
            while True:
                if type(message) is _Await:
                    try:
                        result = yield from message.coroutine.__await__()
                    except BaseException as error:  # noqa: BLE001 - handed on to the user's code
                        message = runner.throw(error)
                    else:
                        message = runner.switch(result)
                elif message[0] == "done":
                    return message[1]
                else:
                    try:
                        value = yield message[1]
                    except BaseException as error:  # noqa: BLE001 - cancellation travels this way
                        message = runner.switch((False, error))
                    else:
                        message = runner.switch((True, value))
        finally:
            # The frames refer to each other; without this every finished drive waits for the collector.
            runner = message = None


def _step_through(coroutine: Coroutine[Any, Any, Any]) -> Callable[[], tuple[str, Any]]:
    def run() -> tuple[str, Any]:
        advance: Callable[[Any], Any] = coroutine.send
        value: Any = None
        while True:
            try:
                yielded = advance(value)
            except StopIteration as stop:
                return ("done", stop.value)
            parent: Any = greenlet.getcurrent().parent
            succeeded, value = parent.switch(("yield", yielded))
            advance = coroutine.send if succeeded else coroutine.throw

    return run


@contextmanager
def subtasks_of_user_code(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """While active, tasks that user code starts (``gather``, ``create_task``) may make plain calls too."""
    current: Any = loop.get_task_factory()
    factory = current if isinstance(current, _TaskFactory) else _TaskFactory(current)
    loop.set_task_factory(factory)
    factory.users += 1
    try:
        yield
    finally:
        factory.users -= 1
        if factory.users == 0 and loop.get_task_factory() is factory:
            loop.set_task_factory(factory.previous)


class _TaskFactory:
    """Task factory of a loop while any run is active on it; runs may end in any order."""

    def __init__(self, previous: Callable[..., Any] | None) -> None:
        self.previous = previous
        self.users = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        if not (_in_user_code.get() and asyncio.iscoroutine(coroutine)):
            return self._task(loop, coroutine, **options)
        task = self._task(loop, _drive(coroutine), **options)
        # A task that is cancelled before its first step leaves it unused, which Python warns of.
        task.add_done_callback(lambda _: coroutine.close())
        return task

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        if self.previous is not None:
            return self.previous(loop, coroutine, **options)
        return asyncio.Task(coroutine, loop=loop, **options)


async def _drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await _Drive(coroutine)
