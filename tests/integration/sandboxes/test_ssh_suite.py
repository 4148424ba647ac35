"""The suite of all backends, on a real machine reached by SSH."""

from __future__ import annotations

import pytest
from real_backends import RealWorld, ssh_settings, suite

pytestmark = pytest.mark.integration

globals().update(
    suite(
        unfit={
            "isolated_world": "ssh isolates nothing beyond the remote user's rights",
            "filtering_world": "ssh keeps no command off the network",
        }
    )
)


@pytest.fixture
def world() -> RealWorld:
    return RealWorld("ssh", ssh_settings())
