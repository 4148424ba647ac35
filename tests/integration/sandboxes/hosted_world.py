"""Worlds whose sandboxes are made by a provider's real SDK on a server of ``tests/servers``."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from real_backends import suite

if TYPE_CHECKING:
    from servers.daytona_server import DaytonaServer
    from servers.modal_server import ModalServer


def hosted_suite() -> dict[str, Any]:
    """The suite of all backends, as far as a server of ``tests/servers`` can stand in for a provider."""
    return suite(
        without={"test_another_user_is_refused": "root is the user here, and may be asked for by name"},
        unfit={
            "isolated_world": "the server's machines share the files of this one",
            "filtering_world": "the server filters no network; the provider does",
            "ending_world": "the server ends no sandbox by itself; the provider does",
        },
    )


def require(sdk: str) -> None:
    """Skip where the SDK is not installed."""
    if importlib.util.find_spec(sdk) is None:
        pytest.skip(f"the SDK of {sdk} is not installed: pip install '.[{sdk}]'")


def modal_server(patch: pytest.MonkeyPatch) -> Iterator[ModalServer]:
    """A server for Modal's SDK, which is pointed to it."""
    require("modal")
    from servers.modal_server import ModalServer

    server = ModalServer()
    server.start()
    patch.setenv("MODAL_SERVER_URL", server.url)
    patch.setenv("MODAL_TOKEN_ID", "ak-test")
    patch.setenv("MODAL_TOKEN_SECRET", "as-test")
    forget_clients()
    yield server
    forget_clients()
    server.stop()


def daytona_server(patch: pytest.MonkeyPatch) -> Iterator[DaytonaServer]:
    """A server for Daytona's SDK, which is pointed to it."""
    require("daytona")
    from servers.daytona_server import DaytonaServer

    server = DaytonaServer()
    server.start()
    patch.setenv("DAYTONA_API_URL", server.url)
    patch.setenv("DAYTONA_API_KEY", "test-key")
    patch.setenv("DAYTONA_TARGET", "us")
    yield server
    server.stop()


def forget_clients() -> None:
    """Modal's SDK keeps its first client for as long as the process lives."""
    from modal.client import _Client

    _Client._client_from_env = None
