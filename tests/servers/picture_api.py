"""An OpenAI-compatible API for pictures, as far as tools use it."""

from __future__ import annotations

import base64
from typing import Any

from aiohttp import web

from .listening import LocalServer
from .web_site import DOT


class PictureApi(LocalServer):
    """``async with PictureApi() as api``; ``api.requests`` holds the bodies that came."""

    def __init__(
        self, *, key: str = "", statuses: list[int] | None = None, address: str | None = None
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.key, self.statuses, self.address = key, list(statuses or []), address
        self.text: Any = "a red dot"
        self.encoded = base64.b64encode(DOT).decode()

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

    def application(self) -> web.Application:
        app = web.Application(client_max_size=30_000_000)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/images/generations", self._image)
        return app

    async def __aenter__(self) -> PictureApi:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _take(self, request: web.Request) -> None:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            raise web.HTTPUnauthorized(text="bad key " + request.headers.get("Authorization", ""))
        self.requests.append(await request.json())
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            raise _failure(status)

    async def _chat(self, request: web.Request) -> web.Response:
        await self._take(request)
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": self.text}}]})

    async def _image(self, request: web.Request) -> web.Response:
        await self._take(request)
        entry = {"url": self.address} if self.address else {"b64_json": self.encoded}
        return web.json_response({"data": [entry]})


def _failure(status: int) -> Exception:
    failures = {500: web.HTTPInternalServerError, 429: web.HTTPTooManyRequests, 400: web.HTTPBadRequest}
    return failures[status](text="no")
