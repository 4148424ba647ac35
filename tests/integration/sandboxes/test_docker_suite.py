"""The suite of all backends, on real Docker and Podman engines and on two kinds of image."""

from __future__ import annotations

import pytest
from docker_engines import VARIABLES, EngineWorld, use_engine
from real_backends import shared_tests

pytestmark = pytest.mark.integration

# Containers have users, who may be asked for by name, and an /etc/shadow of their own; for their
# links see test_docker_engine.py.
globals().update(
    shared_tests(
        without=frozenset({"test_another_user_is_refused", "test_links_never_lead_out_of_the_sandbox"})
    )
)


@pytest.fixture(params=list(VARIABLES))
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EngineWorld:
    use_engine(request.param, monkeypatch)
    return EngineWorld()


@pytest.fixture
def strongest_world(world: EngineWorld) -> EngineWorld:
    return world


@pytest.fixture
def isolated_world(world: EngineWorld) -> EngineWorld:
    return world


@pytest.fixture
def rooted_world(world: EngineWorld) -> EngineWorld:
    return world


@pytest.fixture
def filtering_world(world: EngineWorld) -> EngineWorld:
    return world
