"""The suite of all backends, on every isolation of the local one that works here."""

from __future__ import annotations

import pytest
from real_backends import suite
from sandboxes.conftest import (  # fixtures and kinds of isolation
    ISOLATED,
    ROOTED,
    RUNGS,
    World,
    make_world,
    readable_bubblewrap,
)

pytestmark = pytest.mark.integration

globals().update(suite())

__all__ = ["readable_bubblewrap"]


@pytest.fixture(params=RUNGS)
def world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param)


@pytest.fixture
def strongest_world(world: World) -> World:
    return world


@pytest.fixture
def isolated_world(world: World) -> World:
    return world if world.rung in ISOLATED else pytest.skip("this rung isolates nothing")


@pytest.fixture
def rooted_world(world: World) -> World:
    return world if world.rung in ROOTED else pytest.skip("this rung has no root of its own")


@pytest.fixture
def filtering_world(rooted_world: World) -> World:
    return rooted_world


@pytest.fixture
def ending_world(world: World) -> World:
    return world
