"""What stands before the endpoints: the token, foreign web pages, the name of the server."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

import environments

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SERVER_HEADER = "X-Trajectory-Api"
"""Tells clients that this is not the original; its value is the version."""


class Guard:
    """Asks for the token, keeps web pages out, and names the server."""

    def __init__(self, app: ASGIApp, token: str | None, local: bool) -> None:
        self.app = app
        self.local = local
        self.expected = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self.expected is not None and scope["path"] != "/healthz":
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.expected):
                wanted = {"WWW-Authenticate": "Bearer"}
                reply = JSONResponse({"detail": "a valid bearer token is needed"}, 401, headers=wanted)
                await reply(scope, receive, send)
                return
        if _foreign(headers) or (self.local and self.expected is None and _rebound(headers)):
            # GET /reset_data changes state: no foreign web page may send a browser here.
            await JSONResponse({"detail": "cross-site requests are refused"}, 403)(scope, receive, send)
            return

        async def named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (SERVER_HEADER.lower().encode(), environments.__version__.encode()),
                ]
            await send(message)

        await self.app(scope, receive, named)


def _foreign(headers: dict[bytes, bytes]) -> bool:
    """Whether a web page of another site sends the request. Not every browser says so in the same way."""
    if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
        return True
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host", b"")


def _rebound(headers: dict[bytes, bytes]) -> bool:
    """Whether a server on loopback is asked under a public name: a page whose name was made to lead here."""
    name = headers.get(b"host", b"").decode("latin-1").rpartition("]")[0].strip("[")
    name = name or headers.get(b"host", b"").decode("latin-1").partition(":")[0].lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        private = name.endswith((".localhost", ".local", ".internal")) or name == socket.gethostname()
        return "." in name and not private
    return False
