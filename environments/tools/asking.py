"""Asking a paid or limited HTTP API on a tool's behalf: patience with limits, silence about keys."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import environments
from environments.waiting import waiting

if TYPE_CHECKING:
    from aiohttp import ClientSession

TRIES = 4

USER_AGENT = f"Mozilla/5.0 (compatible; HermesEnvironments/{environments.__version__})"

_LONGEST_PAUSE = 30.0
_PART = 1 << 16
_LONGEST_QUOTE = 10_000
_PASSING = (408, 425, 429)
_REFUSING = (401, 402, 403)


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. ``key`` is taken out of whatever is said about it."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    form: Mapping[str, str] | None = None
    key: str = field(default="", repr=False)


class NoAnswer(Exception):
    """The API gave no good answer. ``refused``: it will give none, as the key or its credit is bad."""

    def __init__(self, message: str, *, refused: bool) -> None:
        self.refused = refused
        super().__init__(message)


def without_key(text: bytes, key: str) -> bytes:
    """What a server said, should it have repeated our key."""
    return text.replace(key.encode(), b"***") if key else text


async def ask(call: Call, *, timeout: float, longest: int) -> bytes:
    """The body of the answer, at most ``longest`` bytes. Each try has ``timeout`` seconds.

    Rate limits, failures of the server and lost connections are tried again. Raises ``NoAnswer``.
    """
    from aiohttp import ClientSession, ClientTimeout

    async with ClientSession(timeout=ClientTimeout(total=timeout), trust_env=True) as session:
        number = 0
        while True:
            status, body, pause = await _exchange(session, call, longest)
            if status == 200:
                return without_key(body, call.key)
            number += 1
            final = status and status not in _PASSING and status < 500
            if final or number == TRIES:
                text = without_key(body[:_LONGEST_QUOTE], call.key)[:300].decode("utf-8", "replace").strip()
                said = f"{status} {text}".strip() if status else text
                raise NoAnswer(said, refused=status in _REFUSING)
            with waiting():
                own = random.uniform(0.5, 1.0) * 2 ** (number - 1)
                await asyncio.sleep(min(own if pause is None else pause, _LONGEST_PAUSE))


async def _exchange(session: ClientSession, call: Call, longest: int) -> tuple[int, bytes, float | None]:
    """Status (0: no answer), body, and the pause in seconds that the server asks for."""
    from aiohttp import ClientError

    try:
        async with session.request(
            call.method,
            call.url,
            headers={"User-Agent": USER_AGENT, **call.headers},
            params=call.parameters or None,
            json=call.body,
            data=call.form,
            allow_redirects=False,  # a key goes to whom it is for and to nobody else
        ) as response:
            body = bytearray()
            async for part in response.content.iter_chunked(_PART):
                body += part
                if len(body) >= longest:
                    break
            pause = response.headers.get("Retry-After", "")
            return response.status, bytes(body[:longest]), float(pause) if pause.isdigit() else None
    except TimeoutError:
        return 0, f"no answer within {session.timeout.total:g} s".encode(), None
    except (ClientError, OSError) as error:
        return 0, (str(error) or type(error).__name__).encode(), None
