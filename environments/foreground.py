"""Runs a workflow as a program: signals, the closing line, the exit code.

The first Ctrl-C or SIGTERM cancels what is in flight, writes what is finished and releases the rest;
a second one ends the process at once (sandboxes and model servers die with it).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from environments.cli_output import tell
from environments.errors import UnknownName, UserCodeError
from environments.open_files import more_open_files, shortage

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.configuration import Subcommand
    from environments.run import RunReport

logger = logging.getLogger(__name__)

_WORKFLOWS = {"process": "process_manager", "evaluate": "evaluate_manager", "serve": "env_manager"}


def as_workflow(name: str) -> Subcommand:
    """The name of a workflow. Raises ``UnknownName``."""
    if name not in _WORKFLOWS:
        raise UnknownName("workflow", name, _WORKFLOWS)
    return cast("Subcommand", name)


def manager_of(environment: BaseEnv, workflow: str) -> Callable[[], Awaitable[RunReport]]:
    """The method that runs a workflow."""
    manager: Callable[[], Awaitable[RunReport]] = getattr(environment, _WORKFLOWS[as_workflow(workflow)])
    return manager


RESUMED = "what is finished is on disk, the same command goes on"


def run_in_foreground(
    cls: type[BaseEnv], subcommand: str, effective: Any, *, when_stopped: str = RESUMED
) -> int:
    """Run to the end and return the exit code: 0 complete and valid, 1 not, 128 + n after signal n.

    ``when_stopped`` tells the user who stopped it what he has.
    """
    stopped_by: list[int] = []

    async def main(files: int) -> RunReport | None:
        # asyncio's own default is cores + 4; code of the original runs its blocking tools in this pool.
        threads = getattr(effective.env, "tool_pool_size", 32)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads))
        environment = cls(effective.env, effective.servers)
        if short := shortage(files, _rollouts_at_once(environment, subcommand)):
            logger.warning("%s", short)
        task = asyncio.ensure_future(manager_of(environment, subcommand)())
        _on_signals(task, stopped_by)
        try:
            return await task
        except asyncio.CancelledError:
            if not stopped_by:
                raise
            return None

    try:
        with more_open_files() as files:
            report = asyncio.run(main(files))
    except SystemExit as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UserCodeError(
            f"{place.name} called sys.exit({error.code!r}) ({place.filename}:{place.lineno}): raise an error "
            "or return instead"
        ) from error
    if report is None:
        name = signal.Signals(stopped_by[0]).name
        tell(f"stopped by {name}; {when_stopped}\n")
        return 128 + stopped_by[0]
    if report.message:
        tell(f"{'done' if report.complete else 'incomplete'}: {report.message}\n")
    return report.exit_code


def _rollouts_at_once(environment: BaseEnv, subcommand: str) -> int:
    if subcommand == "evaluate":
        return environment.evaluation_concurrency()
    return environment.group_concurrency() * int(environment.config.group_size)


def _on_signals(task: asyncio.Future[Any], stopped_by: list[int]) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if stopped_by:
            os._exit(128 + number)
        stopped_by.append(number)
        tell("stopping; once more to stop at once\n")
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup, or a background job of a shell
                signal.signal(number, _take_no_notice)
            elif number != signal.SIGQUIT:
                loop.add_signal_handler(number, stop, number)


def _take_no_notice(number: int, frame: object) -> None:
    """Programs that we start would inherit that a signal is ignored, but not that it has a handler."""
