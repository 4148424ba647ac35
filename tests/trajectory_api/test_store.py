"""The store's transactions: shared by those who wait, and spoilt for nobody by one of them."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from environments.errors import StoreError
from environments.trajectory_api.store import Store
from environments.trajectory_api.writes import add_group, put_run


def test_one_that_fails_does_not_spoil_the_others(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        store = Store(tmp_path)
        await store.write(put_run("default", "r", {}))

        def broken(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO groups (run_id) VALUES (?)", (2**70,))

        def add(number: int) -> Any:
            return store.write(add_group("r", None, 2, 2, None, f"{number}", b"{}"), growing=2)

        works = [add(0), store.write(broken), add(1), add(1)]
        results = await asyncio.gather(*works, return_exceptions=True)
        numbers = store.group_numbers("r", 0, 10)
        store.close()
        return [results, numbers]

    results, numbers = asyncio.run(run())
    assert isinstance(results[1], StoreError)
    assert results[0] and results[2] and results[3] is None  # the same key again
    assert numbers == [results[0], results[2]]


def test_a_damaged_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "trajectories.sqlite3").write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="cannot open"):
        Store(tmp_path)
