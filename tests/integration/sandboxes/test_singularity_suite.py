"""The suite of all backends, on the real engine."""

from __future__ import annotations

import pytest
from real_backends import RealWorld, singularity_settings, suite

pytestmark = pytest.mark.integration

globals().update(
    suite(
        without={
            "test_another_user_is_refused": "root is the user here, and may be asked for by name",
            "test_modes_and_links": "the image has files of its own in the home; see test_singularity.py",
            "test_links_never_lead_out_of_the_sandbox": "the image has /etc/shadow; see test_singularity.py",
        }
    )
)


@pytest.fixture
def world() -> RealWorld:
    return RealWorld("singularity", singularity_settings())
