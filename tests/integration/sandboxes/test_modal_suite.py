"""The suite of all backends, through Modal's real SDK, on a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hosted_world import hosted_suite, modal_server
from real_backends import RealWorld

pytestmark = pytest.mark.integration

globals().update(hosted_suite())


@pytest.fixture(scope="module")
def provider() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        yield from modal_server(patch)


@pytest.fixture
def world(provider: Any) -> RealWorld:
    return RealWorld("modal", {}, server=provider)
