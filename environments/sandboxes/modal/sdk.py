"""Modal's SDK: imported late, connected once, and its errors as ours.

Every call is made by the SDK's ``aio`` form, which works on a loop of the SDK's own, so that nothing
blocks ours. Errors are told apart by the names of their classes, which differ less between versions
than the places they are defined in.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from environments.errors import ConfigError, ImageUnusable, MissingExtra, NotSupported, SandboxError
from environments.sandboxes.hosted.creation import TryAgain

APP = "hermes-environments"
"""The Modal app that all sandboxes belong to."""

_PATIENCE = 60.0
_CURE = (
    "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET (https://modal.com/settings/tokens), or run `modal token new`"
)
_REFUSED = {"AuthError", "PermissionDeniedError"}
_IMPOSSIBLE = {"InvalidError", "NotFoundError", "RemoteError", "UnimplementedError", "VersionError"}


def require_modal() -> None:
    """``MissingExtra`` where the SDK is not installed."""
    if importlib.util.find_spec("modal") is None:
        raise MissingExtra("the modal backend", "modal")


@dataclass(frozen=True, slots=True)
class Modal:
    """The module, our client and our app."""

    sdk: Any
    client: Any
    app: Any


async def connect() -> Modal:
    """Log in and find our app. ``ConfigError`` with the cure where there is no token, or a wrong one;
    ``SandboxError`` where Modal does not answer."""
    try:
        sdk = await asyncio.to_thread(importlib.import_module, "modal")
    except Exception as error:  # it reads its configuration file when it is imported
        raise ConfigError(f"Modal's SDK cannot be used: {text_of(error)}") from error
    try:
        async with asyncio.timeout(_PATIENCE):
            client = await sdk.Client.from_env.aio()
            app = await sdk.App.lookup.aio(APP, client=client, create_if_missing=True)
    except (sdk.exception.Error, OSError, TimeoutError) as error:
        if is_refusal(error):
            raise ConfigError(f"Modal does not let us in ({text_of(error)}): {_CURE}") from error
        raise SandboxError(f"Modal does not answer: {text_of(error)}") from error
    return Modal(sdk, client, app)


def kinds(error: BaseException) -> set[str]:
    """Names of an error's classes."""
    return {kind.__name__ for kind in type(error).__mro__}


def is_refusal(error: BaseException) -> bool:
    """Whether the token is missing or wrong."""
    return bool(kinds(error) & _REFUSED)


def creation_error(error: BaseException, image: str | None) -> SandboxError:
    """What an error of the SDK means while a sandbox is made."""
    names = kinds(error)
    message = text_of(error)
    if names & _REFUSED:
        return NotSupported(f"Modal does not let us in ({message}): {_CURE}")
    if "ResourceExhaustedError" in names:
        return TryAgain(f"Modal has no room for another sandbox now: {message}")
    if names & _IMPOSSIBLE and "ConflictError" not in names:
        text = f"Modal makes no sandbox from {image or 'its default image'}: {message}"
        return NotSupported(text) if image is None else ImageUnusable(text)
    return TryAgain(f"Modal did not answer when asked for a sandbox: {message}", lost=True)


def text_of(error: BaseException) -> str:
    """One line on an error."""
    return " ".join(str(error).split())[:500] or type(error).__name__
