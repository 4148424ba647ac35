"""The suite of all backends, on the real engine."""

from __future__ import annotations

import pytest
from real_backends import RealWorld, shared_tests, singularity_settings

pytestmark = pytest.mark.integration

# What these take for granted of the local backend is otherwise here: root is the user and may be asked
# for by name, and the image has files of its own in his home and in /etc. test_singularity.py has their like.
LOCAL = frozenset(
    {"test_another_user_is_refused", "test_modes_and_links", "test_links_never_lead_out_of_the_sandbox"}
)

globals().update(shared_tests(without=LOCAL))


@pytest.fixture
def world() -> RealWorld:
    return RealWorld("singularity", singularity_settings())


@pytest.fixture
def strongest_world(world: RealWorld) -> RealWorld:
    return world


@pytest.fixture
def isolated_world(world: RealWorld) -> RealWorld:
    return world


@pytest.fixture
def rooted_world(world: RealWorld) -> RealWorld:
    return world


@pytest.fixture
def filtering_world(world: RealWorld) -> RealWorld:
    return world
