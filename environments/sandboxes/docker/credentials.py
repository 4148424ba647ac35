"""Credentials of registries, as ``docker login`` stores them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping

from environments.errors import SandboxError
from environments.sandboxes.docker.address import read_configuration

DOCKER_HUB = "https://index.docker.io/v1/"

_HELPER_TIMEOUT = 30.0


def registry_of(image: str) -> str:
    """Key of an image's registry in Docker's configuration.

    >>> registry_of("ghcr.io/me/tool:1"), registry_of("python:3.12")
    ('ghcr.io', 'https://index.docker.io/v1/')
    """
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost") and first != "docker.io":
        return first
    return DOCKER_HUB


async def credentials_for(registry: str) -> dict[str, str]:
    """What the engine needs to pull from a registry; empty where nobody has logged in."""
    settings = read_configuration()
    helpers = settings.get("credHelpers")
    helper = helpers.get(registry) if isinstance(helpers, Mapping) else None
    helper = helper or settings.get("credsStore")
    if isinstance(helper, str) and helper:
        found = await _ask_helper(helper, registry)
        if found:
            return found
    auths = settings.get("auths")
    entry = auths.get(registry) or auths.get(f"https://{registry}") if isinstance(auths, Mapping) else None
    return _stored(entry, registry) if isinstance(entry, Mapping) else {}


async def authentication_header(image: str) -> dict[str, str]:
    """The header that goes with a pull of ``image``."""
    found = await credentials_for(registry_of(image))
    return {"X-Registry-Auth": encode(found)} if found else {}


async def build_header(registries: list[str]) -> dict[str, str]:
    """The header that goes with a build whose base images come from ``registries``."""
    found = {name: await credentials_for(name) for name in registries}
    known = {name: entry for name, entry in found.items() if entry}
    return {"X-Registry-Config": encode(known)} if known else {}


def encode(content: Mapping[str, object]) -> str:
    """JSON in the URL-safe base64 form that the engine's headers use."""
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode()


def _stored(entry: Mapping[str, object], registry: str) -> dict[str, str]:
    if token := entry.get("identitytoken"):
        return {"identitytoken": str(token), "serveraddress": registry}
    try:
        text = base64.b64decode(str(entry.get("auth", ""))).decode()
    except (binascii.Error, UnicodeDecodeError):
        return {}
    user, colon, password = text.partition(":")
    return {"username": user, "password": password, "serveraddress": registry} if colon else {}


async def _ask_helper(helper: str, registry: str) -> dict[str, str]:
    program = f"docker-credential-{helper}"
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "get",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise SandboxError(
            f"Docker's configuration names the credential helper {program}, which is not installed"
        ) from error
    try:
        async with asyncio.timeout(_HELPER_TIMEOUT):
            output, _ = await process.communicate(registry.encode())
    except TimeoutError as error:
        raise SandboxError(f"{program} did not answer within {_HELPER_TIMEOUT:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:  # nothing is stored for this registry
        return {}
    answer = json.loads(output)
    user, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    if user == "<token>":
        return {"identitytoken": secret, "serveraddress": registry}
    return {"username": user, "password": secret, "serveraddress": registry}
