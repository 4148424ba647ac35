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
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from environments.errors import StoreError

T = TypeVar("T")
Write = Callable[[sqlite3.Connection], Any]

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

SHARED_WRITES = 64
"""Most writes in one transaction."""


class Store:
    """Open with ``Store(directory)``, close with ``close``. Raises ``StoreError``."""

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        self.path = directory / "trajectories.sqlite3"
        self._durable = durable
        self._failed: BaseException | None = None
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
        self._connection = self._open()
        self._readers = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._queue: queue.Queue[tuple[Write, Callable[[Any, BaseException | None], None]] | None]
        self._queue = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="trajectory-store", daemon=True)
        self._thread.start()

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            connection.execute("PRAGMA page_size=16384")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'NORMAL'}")
            connection.execute("PRAGMA cache_size=-8192")
            connection.execute("PRAGMA journal_size_limit=67108864")
            connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open {self.path}: {error}") from error
        return connection

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work in a transaction; returns when it is on disk."""
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

        self._queue.put((work, wake))
        # A commit that has begun is waited for: the memory must not differ from the disk.
        return await asyncio.shield(future)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            closing = False
            while len(batch) < SHARED_WRITES and not closing:
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

    def _commit(self, batch: list[tuple[Write, Callable[[Any, BaseException | None], None]]]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            results = [work(self._connection) for work, _ in batch]
            self._connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - handed to those who wait
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            text = StoreError(f"cannot write {self.path}: {error}")
            logger.error("%s", text)
            for _, settle in batch:
                settle(None, text)
            return
        for (_, settle), result in zip(batch, results, strict=True):
            settle(result, None)

    def payload(self, group_id: int) -> bytes:
        """The stored JSON text of a group. Blocks; for a worker thread. Raises ``StoreError``."""
        row = self._reader().execute("SELECT data FROM payloads WHERE group_id=?", (group_id,)).fetchone()
        if row is None:
            raise StoreError(f"group {group_id} is no longer stored")
        return bytes(row[0])

    def group_numbers(self, run_id: str, after: int, limit: int) -> list[int]:
        """Numbers of a run's stored groups above ``after``, oldest first. Blocks, as ``payload`` does."""
        rows = self._reader().execute(
            "SELECT id FROM groups WHERE run_id=? AND id>? ORDER BY id LIMIT ?", (run_id, after, limit)
        )
        return [number for (number,) in rows]

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
        rows = self._connection.execute("SELECT namespace, run_id, data FROM runs WHERE current=1").fetchall()
        return [(namespace, run_id, json.loads(data)) for namespace, run_id, data in rows]

    def load_groups(self, run_id: str, state: str = "queued") -> list[tuple[Any, ...]]:
        """id, size, rows, env_id, policy_version, batch_id of a run's groups, oldest first."""
        return self._connection.execute(
            "SELECT id, size, rows, env_id, policy_version, batch_id FROM groups "
            "WHERE run_id=? AND state=? ORDER BY id",
            (run_id, state),
        ).fetchall()

    def load_batches(self, run_id: str) -> list[tuple[Any, ...]]:
        """batch_id, step, size, consumer, state, at of a run's unfinished batches."""
        return self._connection.execute(
            "SELECT batch_id, step, size, consumer, state, at FROM batches WHERE run_id=?", (run_id,)
        ).fetchall()

    def close(self) -> None:
        """Finish what waits and close. Idempotent."""
        if not self._thread.is_alive():
            return
        self._queue.put(None)
        self._thread.join()
        for connection in [*self._opened, self._connection]:
            connection.close()
        os.close(self._lock)


# Writes, to be given to ``Store.write``.


def put_run(namespace: str, run_id: str, data: dict[str, Any]) -> Write:
    """Store a run's snapshot."""
    text = json.dumps(data)

    def write(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO runs VALUES (?,?,1,?,?) ON CONFLICT (run_id) DO UPDATE SET data=excluded.data",
            (run_id, namespace, time.time(), text),
        )

    return write


def archive_run(run_id: str, keep: int) -> Write:
    """Set a run aside, and delete the groups of all but the ``keep`` latest runs set aside."""

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE runs SET current=0 WHERE run_id=?", (run_id,))
        old = connection.execute(
            "SELECT run_id FROM runs WHERE current=0 AND namespace="
            "(SELECT namespace FROM runs WHERE run_id=?) ORDER BY created_at DESC LIMIT -1 OFFSET ?",
            (run_id, keep),
        ).fetchall()
        for (name,) in old:
            connection.execute(
                "DELETE FROM payloads WHERE group_id IN (SELECT id FROM groups WHERE run_id=?)", (name,)
            )
            for table in ("groups", "keys", "batches", "runs"):
                connection.execute(f"DELETE FROM {table} WHERE run_id=?", (name,))

    return write


def add_group(
    run_id: str, env_id: int | None, size: int, rows: int, version: int | None, key: str | None, data: bytes
) -> Callable[[sqlite3.Connection], int | None]:
    """Store a waiting group; its id, None where a group with this key is known already."""

    def write(connection: sqlite3.Connection) -> int | None:
        if (
            key is not None
            and connection.execute("SELECT 1 FROM keys WHERE run_id=? AND key=?", (run_id, key)).fetchone()
        ):
            return None
        group_id = connection.execute(
            "INSERT INTO groups (run_id, env_id, size, rows, policy_version, state, received_at) "
            "VALUES (?,?,?,?,?,'queued',?)",
            (run_id, env_id, size, rows, version, time.time()),
        ).lastrowid
        if key is not None:
            connection.execute("INSERT INTO keys VALUES (?,?,?)", (run_id, key, group_id))
        connection.execute("INSERT INTO payloads VALUES (?,?)", (group_id, data))
        return group_id

    return write


def put_batch(run_id: str, batch: Any, groups: Iterable[int]) -> Write:
    """Store that a batch is out."""
    ids = list(groups)

    def write(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT OR REPLACE INTO batches VALUES (?,?,?,?,?,?,?)",
            (run_id, batch.id, batch.step, batch.size, batch.consumer, batch.state, batch.at),
        )
        connection.executemany(
            "UPDATE groups SET state='out', batch_id=? WHERE id=?", [(batch.id, group) for group in ids]
        )

    return write


def set_batch_state(run_id: str, batch_id: int, state: str) -> Write:
    """Store how far a batch has come."""

    def write(connection: sqlite3.Connection) -> None:
        connection.execute(
            "UPDATE batches SET state=? WHERE run_id=? AND batch_id=?", (state, run_id, batch_id)
        )

    return write


def finish_batch(run_id: str, batch_id: int, groups: Iterable[int], *, keep: bool = False) -> Write:
    """Delete a batch that the trainer is done with; with its groups, unless they are kept for readers."""
    return _together(_delete_batch(run_id, batch_id), _retire(groups) if keep else drop_groups(groups))


def requeue_batch(run_id: str, batch_id: int, groups: Iterable[int]) -> Write:
    """Let the groups of a batch wait again."""
    ids = [(group,) for group in groups]

    def write(connection: sqlite3.Connection) -> None:
        connection.executemany("UPDATE groups SET state='queued', batch_id=NULL WHERE id=?", ids)

    return _together(_delete_batch(run_id, batch_id), write)


def drop_groups(groups: Iterable[int]) -> Write:
    """Delete groups; their keys stay known."""
    ids = [(group,) for group in groups]

    def write(connection: sqlite3.Connection) -> None:
        connection.executemany("DELETE FROM payloads WHERE group_id=?", ids)
        connection.executemany("DELETE FROM groups WHERE id=?", ids)

    return write


def together(*writes: Write) -> Write:
    """Several writes as one."""
    return _together(*writes)


def _together(*writes: Write) -> Write:
    def write(connection: sqlite3.Connection) -> None:
        for one in writes:
            one(connection)

    return write


def _retire(groups: Iterable[int]) -> Write:
    ids = [(group,) for group in groups]

    def write(connection: sqlite3.Connection) -> None:
        connection.executemany("UPDATE groups SET state='finished', batch_id=NULL WHERE id=?", ids)

    return write


def _delete_batch(run_id: str, batch_id: int) -> Write:
    def write(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM batches WHERE run_id=? AND batch_id=?", (run_id, batch_id))

    return write
