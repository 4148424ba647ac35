"""Daytona's SDK: imported late, and its errors as ours."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any

from environments.errors import ConfigError, ImageUnusable, MissingExtra, NotSupported, SandboxError
from environments.sandboxes.hosted.creation import TryAgain

_CURE = "set DAYTONA_API_KEY (https://app.daytona.io/dashboard/keys), and DAYTONA_API_URL for your own server"
_PATIENCE = 60.0
_FULL = ("quota", "limit", "exceeded", "capacity", "no available runner")
_FAILED_BUILD = ("build_failed", "build failed", "manifest unknown", "pull access denied")


def require_daytona() -> None:
    """``MissingExtra`` where the SDK is not installed."""
    if importlib.util.find_spec("daytona") is None:
        raise MissingExtra("the daytona backend", "daytona")


async def load() -> Any:
    """The SDK's module."""
    return await asyncio.to_thread(_import)


def _import() -> Any:
    sdk = importlib.import_module("daytona")
    _ = sdk.AsyncDaytona  # the module imports its parts, which takes seconds, when they are first named
    return sdk


def client_of(sdk: Any) -> Any:
    """A client, configured by Daytona's own variables. ``ConfigError`` with the cure without a key."""
    try:
        return sdk.AsyncDaytona()
    except sdk.DaytonaError as error:
        raise ConfigError(f"Daytona cannot be used ({text_of(error)}): {_CURE}") from error


async def log_in(client: Any) -> None:
    """Prove that the key is good. ``ConfigError`` where it is not, ``SandboxError`` without an answer."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await found(client, {"hermes-login": "none"})
    except Exception as error:  # the SDK's own and aiohttp's
        if status_of(error) in (401, 403):
            raise ConfigError(f"Daytona does not let us in ({text_of(error)}): {_CURE}") from error
        raise SandboxError(f"Daytona does not answer: {text_of(error)}") from error


async def found(client: Any, labels: dict[str, str]) -> list[Any]:
    """All sandboxes that bear these labels."""
    sdk = await load()
    query = sdk.ListSandboxesQuery(labels=labels) if hasattr(sdk, "ListSandboxesQuery") else labels
    answer = client.list(query)
    if hasattr(answer, "__aiter__"):
        return [sandbox async for sandbox in answer]
    return list((await answer).items)  # as older versions have it


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error, where there is one."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def creation_error(error: BaseException, image: str | None) -> SandboxError:
    """What an error of the SDK means while a sandbox is made."""
    status, message = status_of(error), text_of(error)
    lower = message.lower()
    if status == 429 or (status in (400, 403) and any(word in lower for word in _FULL)):
        return TryAgain(f"Daytona has no room for another sandbox now: {message}", pause=_pause_of(error))
    if status in (401, 403):
        return NotSupported(f"Daytona does not let us in ({message}): {_CURE}")
    if status in (400, 404, 409, 422) or any(word in lower for word in _FAILED_BUILD):
        text = f"Daytona makes no sandbox from {image or 'its default snapshot'}: {message}"
        return NotSupported(text) if image is None else ImageUnusable(text)
    return TryAgain(f"Daytona did not answer when asked for a sandbox: {message}", lost=True)


def text_of(error: BaseException) -> str:
    """One line on an error."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def _pause_of(error: BaseException) -> float | None:
    """Seconds that the server asks us to wait."""
    headers = getattr(error, "headers", None) or {}
    wish = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    return min(float(wish), 300.0) if str(wish).isdigit() else None
