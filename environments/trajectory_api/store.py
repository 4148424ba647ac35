"""The server's memory on disk: one SQLite file in WAL mode, written by one thread.

A write that was awaited survives ``kill -9`` of the server; with ``durable=True`` also the loss of power.
Writes that wait at the same time share one transaction. Payloads are read apart, by connections that
never block the writer, and never more than one group is in memory for a reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from environments.errors import StoreError
from environments.trajectory_api.reserve import Reserve
from environments.trajectory_api.writes import Write

T = TypeVar("T")

logger = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY, namespace TEXT NOT NULL, current INTEGER NOT NULL,
  created_at REAL NOT NULL, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS groups (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, env_id INTEGER, size INTEGER NOT NULL,
  rows INTEGER NOT NULL, policy_version INTEGER, state TEXT NOT NULL, batch_id INTEGER,
  received_at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS groups_by_run ON groups (run_id, state);
CREATE TABLE IF NOT EXISTS payloads (group_id INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS keys (
  run_id TEXT NOT NULL, key TEXT NOT NULL, group_id INTEGER NOT NULL, PRIMARY KEY (run_id, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
  run_id TEXT NOT NULL, batch_id INTEGER NOT NULL, step INTEGER NOT NULL, size INTEGER NOT NULL,
  consumer TEXT, state TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (run_id, batch_id)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Work that waits for its transaction."""

    work: Write
    settle: Callable[[Any, BaseException | None], None]
    growing: int


APPLICATION = 0x48654E76
"""Marks our databases in their header."""

VERSION = 1
"""Version of the tables. A server reads those up to its own."""

_PAGES_AT_ONCE = 32
"""Free pages given back to a full disk in one step, which itself needs their room for a moment."""

_PAGE = 1 << 14

CHECKPOINT = 8 << 20
"""Bytes after which the log is copied into the database, and most bytes of groups in one transaction.

Both together are less than the reserve, so that on a full disk a checkpoint still works.
"""

SHARED_WRITES = 64
"""Most writes in one transaction."""


class NotStored(StoreError):
    """A group that was asked for is not there any more."""


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands at a path; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Store:
    """Open with ``Store(directory)``, close with ``close``. Raises ``StoreError``."""

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        self.path = directory / "trajectories.sqlite3"
        self._durable = durable
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot use {directory}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StoreError(f"another run-api works in {directory}; give this one its own --data") from None
        self._reserve = Reserve(directory / "reserve")
        try:
            self._connection = self._open_again()
        except StoreError:
            os.close(self._lock)
            raise
        self._readers = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._reserve.take()
        self._queue: queue.Queue[_Waiting | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="trajectory-store", daemon=True)
        self._thread.start()

    def _open_again(self) -> sqlite3.Connection:
        """The database; on a full disk with the help of the reserve."""
        try:
            return self._open()
        except StoreError:
            if not self._reserve.give():
                raise
            return self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            self._check_kind(connection)
            connection.execute(f"PRAGMA page_size={_PAGE}")
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            connection.execute("PRAGMA secure_delete=OFF")  # deleting a group must not write its whole length
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'NORMAL'}")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT // _PAGE}")
            connection.execute("PRAGMA cache_size=-8192")
            connection.execute("PRAGMA journal_size_limit=67108864")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA application_id={APPLICATION}")
            connection.execute(f"PRAGMA user_version={VERSION}")
            self._file = _identity(self.path)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open {self.path}: {error}") from error
        return connection

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        """Keep away from databases of others, and of later versions. Raises ``StoreError``."""
        kind = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        unmarked = kind == 0 and version == 0 and (not tables or {"runs", "payloads"} <= tables)
        if kind != APPLICATION and not unmarked:
            connection.close()
            raise StoreError(f"{self.path} is a database of something else; name another --data")
        if version > VERSION:
            connection.close()
            raise StoreError(f"{self.path} was written by a later version of run-api; update this one")

    def trouble(self) -> str | None:
        """What keeps the store from working for good; None where it works or the disk is just full."""
        if _identity(self.path) != self._file:
            return f"{self.path} has been removed or replaced; start run-api again"
        return None

    async def write(self, work: Callable[[sqlite3.Connection], T], *, growing: int = 0) -> T:
        """Do some work in a transaction; returns when it is on disk.

        ``growing`` is how many bytes of groups the work adds. Such work is refused (``StoreError``) while
        the disk is full, so that there is room for what lets groups go.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def wake(result: Any, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone; nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        self._queue.put(_Waiting(work, wake, growing))
        # A commit that has begun is waited for: the memory must not differ from the disk.
        return await asyncio.shield(future)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            closing = False
            while len(batch) < SHARED_WRITES and sum(w.growing for w in batch) < CHECKPOINT and not closing:
                try:
                    entry = self._queue.get_nowait()
                except queue.Empty:
                    break
                if entry is None:
                    closing = True
                else:
                    batch.append(entry)
            self._commit(batch)
            if closing:
                return

    def _commit(self, batch: list[_Waiting]) -> None:
        trouble = self.trouble()
        if trouble is not None:  # SQLite would write on into a file without a name
            self._fail(batch, trouble)
            return
        if any(waiting.growing for waiting in batch) and not (self._reserve.take() or self._make_room()):
            batch = self._refuse_growing(batch)
        try:
            results = self._transaction(batch)
        except BaseException as error:  # noqa: BLE001 - handed to those who wait
            self._salvage(batch, error)
            return
        for waiting, result in zip(batch, results, strict=True):
            waiting.settle(result, None)

    def _salvage(self, batch: list[_Waiting], error: BaseException) -> None:
        """Do what can be done of a transaction that failed."""
        operational = isinstance(error, sqlite3.OperationalError)
        if operational and "full" in str(error) and self._reserve.give():
            self._commit(self._refuse_growing(batch))
        elif not operational and len(batch) > 1:  # one of them is to blame
            for waiting in batch:
                self._commit([waiting])
        else:
            self._fail(batch, error)

    def _transaction(self, batch: list[_Waiting]) -> list[Any]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            results = [waiting.work(self._connection) for waiting in batch]
            self._connection.execute("COMMIT")
        except BaseException:  # nothing of a batch is half written
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise
        return results

    def _make_room(self) -> bool:
        """Give back to the disk what deleted groups have left free; whether that was enough."""
        try:
            while True:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                if self._reserve.take():
                    return True
                if self._connection.execute("PRAGMA freelist_count").fetchone()[0] == 0:
                    return False
                self._connection.execute(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})").fetchall()
        except sqlite3.OperationalError:
            return False

    def _refuse_growing(self, batch: list[_Waiting]) -> list[_Waiting]:
        """Refuse what needs room that is not there; the rest is returned."""
        self._fail([w for w in batch if w.growing], "the disk is full; groups are taken again when it is not")
        return [waiting for waiting in batch if not waiting.growing]

    def _fail(self, batch: list[_Waiting], reason: object) -> None:
        text = StoreError(f"cannot write {self.path}: {reason}")
        if batch:
            logger.error("%s", text)
        for waiting in batch:
            waiting.settle(None, text)

    def payload(self, group_id: int) -> bytes:
        """The stored JSON text of a group. Blocks; for a worker thread. Raises ``StoreError``."""
        rows = self._read("SELECT data FROM payloads WHERE group_id=?", (group_id,))
        if not rows:
            raise NotStored(f"group {group_id} is no longer stored")
        return bytes(rows[0][0])

    def group_numbers(self, run_id: str, after: int, limit: int) -> list[int]:
        """Numbers of a run's stored groups above ``after``, oldest first. Blocks, as ``payload`` does."""
        rows = self._read(
            "SELECT id FROM groups WHERE run_id=? AND id>? ORDER BY id LIMIT ?", (run_id, after, limit)
        )
        return [number for (number,) in rows]

    def _read(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._reader().execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {self.path}: {error}") from error

    def _reader(self) -> sqlite3.Connection:
        """This thread's own connection for reading."""
        connection: sqlite3.Connection | None = getattr(self._readers, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            connection.execute("PRAGMA cache_size=-256")
            self._readers.connection = connection
            self._opened.append(connection)
        return connection

    def load(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Namespace, run id and snapshot of each current run."""
        rows = self._loaded("SELECT namespace, run_id, data FROM runs WHERE current=1")
        try:
            return [(namespace, run_id, json.loads(data)) for namespace, run_id, data in rows]
        except ValueError as error:
            raise StoreError(f"cannot read {self.path}: {error}") from error

    def _loaded(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {self.path}: {error}") from error

    def load_groups(self, run_id: str, state: str = "queued") -> list[tuple[Any, ...]]:
        """id, size, rows, env_id, policy_version, batch_id of a run's groups, oldest first."""
        return self._loaded(
            "SELECT id, size, rows, env_id, policy_version, batch_id FROM groups "
            "WHERE run_id=? AND state=? ORDER BY id",
            (run_id, state),
        )

    def load_batches(self, run_id: str) -> list[tuple[Any, ...]]:
        """batch_id, step, size, consumer, state, at of a run's unfinished batches."""
        return self._loaded(
            "SELECT batch_id, step, size, consumer, state, at FROM batches WHERE run_id=?", (run_id,)
        )

    def close(self) -> None:
        """Finish what waits and close. Idempotent."""
        if not self._thread.is_alive():
            return
        self._queue.put(None)
        self._thread.join()
        for connection in [*self._opened, self._connection]:
            connection.close()
        os.close(self._lock)
