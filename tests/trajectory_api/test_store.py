"""The store's transactions: shared by those who wait, and spoilt for nobody by one of them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from environments.errors import StoreError
from environments.trajectory_api.store import VERSION, Store
from environments.trajectory_api.wire import WireGroup
from environments.trajectory_api.writes import add_groups, put_run


def test_one_that_fails_does_not_spoil_the_others(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        store = Store(tmp_path)
        await store.write(put_run("default", "r", {}))

        def broken(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO groups (run_id) VALUES (?)", (2**70,))

        def add(number: int) -> Any:
            return store.write(add_groups("r", [WireGroup(b"{}", 2, 2, 2, key=f"{number}")]), growing=2)

        works = [add(0), store.write(broken), add(1), add(1)]
        results = await asyncio.gather(*works, return_exceptions=True)
        numbers = store.group_numbers("r", 0, 10)
        store.close()
        return [results, numbers]

    results, numbers = asyncio.run(run())
    assert isinstance(results[1], StoreError)
    assert results[0] != [None] and results[2] != [None] and results[3] == [None]  # the same key again
    assert numbers == results[0] + results[2]


def test_a_damaged_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "trajectories.sqlite3").write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="cannot open"):
        Store(tmp_path)


def test_databases_of_others_and_of_later_versions_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE letters (text)")
        other.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="of something else"):
        Store(tmp_path)
    assert path.read_bytes() == before
    path.unlink()
    Store(tmp_path).close()
    Store(tmp_path).close()
    with contextlib.closing(sqlite3.connect(path)) as later:
        later.execute(f"PRAGMA user_version={VERSION + 1}")
    with pytest.raises(StoreError, match="later version"):
        Store(tmp_path)


def test_damage_that_is_found_later_is_said_too(tmp_path: Path) -> None:
    async def fill(store: Store) -> None:
        await store.write(put_run("default", "r", {}))
        for number in range(50):
            one = WireGroup(b'{"x":"%s"}' % (b"y" * 9000), 2, 2, 2, key=f"{number}")
            await store.write(add_groups("r", [one]), growing=9000)

    store = Store(tmp_path)
    asyncio.run(fill(store))
    store.close()
    with store.path.open("r+b") as file:
        file.seek(16384)
        file.write(b"\xa5" * (store.path.stat().st_size - 16384))
    with contextlib.suppress(StoreError):  # SQLite may notice at opening
        damaged = Store(tmp_path)
        try:
            with pytest.raises(StoreError, match="malformed"):
                damaged.load()
            with pytest.raises(StoreError, match="malformed"):
                damaged.payload(1)
        finally:
            damaged.close()
