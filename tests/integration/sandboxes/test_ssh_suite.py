"""The suite of all backends, on a real machine reached by SSH."""

from __future__ import annotations

import pytest
from real_backends import RealWorld, shared_tests, ssh_settings

pytestmark = pytest.mark.integration

globals().update(shared_tests())


@pytest.fixture
def world() -> RealWorld:
    return RealWorld("ssh", ssh_settings())


@pytest.fixture
def strongest_world(world: RealWorld) -> RealWorld:
    return world


@pytest.fixture
def isolated_world() -> RealWorld:
    return pytest.skip("ssh isolates nothing beyond the remote user's rights")


@pytest.fixture
def rooted_world(world: RealWorld) -> RealWorld:
    return world


@pytest.fixture
def filtering_world() -> RealWorld:
    return pytest.skip("ssh keeps no command off the network")
