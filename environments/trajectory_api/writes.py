"""What is written to the database, as work to be given to ``Store.write``."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from environments.trajectory_api.wire import WireGroup

Write = Callable[[sqlite3.Connection], Any]


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
            "(SELECT namespace FROM runs WHERE run_id=?) ORDER BY rowid DESC LIMIT -1 OFFSET ?",
            (run_id, keep),
        ).fetchall()
        for (name,) in old:
            connection.execute(
                "DELETE FROM payloads WHERE group_id IN (SELECT id FROM groups WHERE run_id=?)", (name,)
            )
            for table in ("groups", "keys", "batches", "runs"):
                connection.execute(f"DELETE FROM {table} WHERE run_id=?", (name,))

    return write


def add_groups(run_id: str, groups: Sequence[WireGroup]) -> Callable[[sqlite3.Connection], list[int | None]]:
    """Store waiting groups; the id of each, None where a group with its key is known already."""
    works = [
        _add_group(run_id, g.env_id, g.members, g.rows, g.policy_version, g.key, g.payload) for g in groups
    ]
    return lambda connection: [work(connection) for work in works]


def _add_group(
    run_id: str, env_id: int | None, size: int, rows: int, version: int | None, key: str | None, data: bytes
) -> Callable[[sqlite3.Connection], int | None]:
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
