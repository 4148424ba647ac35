"""What stands before the endpoints: the token, foreign web pages, the name of the server."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

import environments

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SERVER_HEADER = "X-Trajectory-Api"
"""Tells clients that this is not the original; its value is the version."""


class Guard:
    """Asks for the token, keeps web pages out, and names the server."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self.expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self.expected is not None and scope["path"] != "/healthz":
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):
                reply = JSONResponse({"detail": "a valid bearer token is needed"}, 401)
                await reply(scope, receive, send)
                return
        if headers.get(b"sec-fetch-site") == b"cross-site":
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
