"""The suite of all backends, through Daytona's real SDK, on a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hosted_world import daytona_server
from real_backends import RealWorld, shared_tests

pytestmark = pytest.mark.integration

# Commands run as root, whom this test asks for as somebody else.
globals().update(shared_tests(without=frozenset({"test_another_user_is_refused"})))


@pytest.fixture(scope="module")
def provider() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for _ in daytona_server(patch):
            yield


@pytest.fixture
def world(provider: None) -> RealWorld:
    return RealWorld("daytona", {})


@pytest.fixture
def strongest_world(world: RealWorld) -> RealWorld:
    return world


@pytest.fixture
def isolated_world() -> RealWorld:
    return pytest.skip("the server's machines share the files of this one")


@pytest.fixture
def rooted_world(world: RealWorld) -> RealWorld:
    return world


@pytest.fixture
def filtering_world() -> RealWorld:
    return pytest.skip("the server of this test filters no network")
