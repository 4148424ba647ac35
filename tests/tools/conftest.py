from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .bench import Bench

# Machines differ, and tests that start commands are slow at times: no property is about speed.
settings.register_profile("tools", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tools")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
