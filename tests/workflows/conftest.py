"""A trajectory API for the tests of ``serve``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trajectory_api.running import Server, server


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "api") as running:
        yield running
