"""The suite of all backends, on every isolation of the local one that works here."""

from __future__ import annotations

import pytest
from real_backends import suite
from sandboxes.conftest import (  # fixtures and kinds of isolation
    RUNGS,
    World,
    make_world,
    readable_bubblewrap,
    reason_against,
)

pytestmark = pytest.mark.integration

# The other parts run on all of them among the fast tests.
globals().update(suite(modules=["test_conformance"]))

__all__ = ["readable_bubblewrap"]


@pytest.fixture(params=RUNGS)
def world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param)


@pytest.fixture
def strongest_world() -> World:
    return next(World(rung) for rung in RUNGS if not reason_against(rung))
