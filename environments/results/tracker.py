"""Metrics and example tables to Weights & Biases, where it can be used; never in the run's way.

Everything is done by one thread of the tracker's own, in order, so that neither a slow start nor a
slow network holds up the event loop. Whatever goes wrong there is logged once and the run goes on.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import netrc
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from environments.results.fingerprint import scrub
from environments.results.plain import plain

logger = logging.getLogger(__name__)

FINISH_TIMEOUT = 60.0
"""Longest wait at the end for what was not yet uploaded, seconds."""

QUEUE_LENGTH = 1000
"""Calls that may wait; beyond it, a stuck tracker loses metrics and not memory."""

Task = Callable[[Any], object]


class Tracker:
    """A run's line to W&B. Made by ``open``; where W&B cannot be used, every method does nothing."""

    def __init__(self, start: Callable[[], Any] | None) -> None:
        """``start`` makes the W&B run; None is a tracker that does nothing."""
        self._tasks: queue.Queue[Task | None] = queue.Queue(QUEUE_LENGTH)
        self._dropped = False
        self._failed: set[str] = set()
        self._thread: threading.Thread | None = None
        if start is not None:
            self._thread = threading.Thread(target=self._work, args=(start,), name="wandb", daemon=True)
            self._thread.start()

    @classmethod
    def open(
        cls,
        use_wandb: bool,
        name: str,
        config: Any,
        project: str | None = None,
        *,
        group: str | None = None,
        directory: Path | None = None,
    ) -> Self:
        """Start logging to W&B, or say in one line why not and go on without.

        ``config`` is shown in W&B without its secrets. ``directory`` is where W&B keeps its files.
        Returns at once; the run is started in the background.
        """
        if not use_wandb:
            return cls(None)
        reason = why_not()
        if reason is not None:
            logger.warning("not logging to W&B: %s", reason)
            return cls(None)
        settings = scrub(config)

        def start() -> Any:
            wandb = importlib.import_module("wandb")
            return wandb.init(
                project=project,
                group=group,
                name=name,
                config=settings,
                dir=str(directory) if directory else None,
                settings=wandb.Settings(console="off", silent=True),  # our output is ours
            )

        return cls(start)

    @property
    def active(self) -> bool:
        """Whether anything is logged."""
        return self._thread is not None

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers; what is no number, text or W&B object is logged as plain data."""
        values = {name: _loggable(value) for name, value in metrics.items()}
        self._put(lambda run: run.log(values, step=step))

    def log_table(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], step: int | None = None
    ) -> None:
        """Log a table, for instance example rollouts with their scores."""
        data = [[_cell(value) for value in row] for row in rows]

        def task(run: Any) -> None:
            wandb = importlib.import_module("wandb")
            run.log({name: wandb.Table(columns=list(columns), data=data)}, step=step)

        self._put(task)

    def finish(self, timeout: float = FINISH_TIMEOUT) -> None:
        """Upload what is left and end the run; waits at most ``timeout`` seconds. Idempotent.

        Blocks: call it from a thread (``asyncio.to_thread``) where an event loop is running.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._tasks.put(None, timeout=timeout)
        except queue.Full:
            logger.warning("W&B does not take any more; its last metrics are lost")
            return
        thread.join(timeout)
        if thread.is_alive():
            logger.warning("W&B did not finish within %.0f s; left behind", timeout)

    def _put(self, task: Task) -> None:
        if self._thread is None:
            return
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            if not self._dropped:
                logger.warning("W&B is too slow; metrics are being lost")
            self._dropped = True

    def _work(self, start: Callable[[], Any]) -> None:
        run = self._guarded(start, "start")
        while (task := self._tasks.get()) is not None:
            if run is not None:
                self._guarded(partial(task, run), "log")
        if run is not None:
            self._guarded(run.finish, "finish")

    def _guarded(self, call: Callable[[], Any], what: str) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - a foreign service must never fail the run
            if what not in self._failed:
                logger.warning("W&B failed to %s, going on without: %s", what, error)
            self._failed.add(what)
            return None


def why_not() -> str | None:
    """Why W&B cannot be used here, None if it can. Imports nothing and asks no network."""
    if importlib.util.find_spec("wandb") is None:
        return "the package is not installed (pip install 'hermes-environments[wandb]')"
    mode = os.environ.get("WANDB_MODE", "").lower()
    if mode == "disabled" or os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1"):
        return "it is disabled by the environment (WANDB_MODE)"
    if mode in ("offline", "dryrun") or os.environ.get("WANDB_API_KEY") or _key_in_netrc():
        return None
    return "there is no key (set WANDB_API_KEY, run 'wandb login', or set WANDB_MODE=offline)"


def _key_in_netrc() -> bool:
    host = (
        os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0].split(":")[0]
    )
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _loggable(value: Any) -> Any:
    """Numbers and W&B's own objects as they are, all else as plain data."""
    if isinstance(value, int | float | str) or type(value).__module__.partition(".")[0] == "wandb":
        return value
    return plain(value)


def _cell(value: Any) -> Any:
    simple = plain(value)
    return simple if isinstance(simple, bool | int | float | str) or simple is None else str(simple)
