"""The suite of all backends, on real Docker and Podman engines."""

from __future__ import annotations

import pytest
from docker_engines import VARIABLES, EngineWorld, use_engine
from real_backends import suite

pytestmark = pytest.mark.integration

globals().update(
    suite(
        without={
            "test_another_user_is_refused": "containers have users, who may be asked for by name",
            "test_links_never_lead_out_of_the_sandbox": "the image has an /etc/shadow of its own",
        }
    )
)


@pytest.fixture(params=list(VARIABLES))
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EngineWorld:
    use_engine(request.param, monkeypatch)
    return EngineWorld()
