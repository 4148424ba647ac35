"""A real HTTP server on loopback that answers as a script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from servers.listening import LocalServer

from environments.config import APIServerConfig

Step = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class ScriptedServer(LocalServer):
    """Serves one step per call; the last one is repeated. ``requests`` are the bodies it got."""

    def __init__(self, steps: Sequence[Step], models: Sequence[str] = ()) -> None:
        self.steps = list(steps)
        self.models = list(models)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.in_flight = 0
        self.most_in_flight = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

    def config(self, **changes: Any) -> APIServerConfig:
        return APIServerConfig(base_url=self.url, model_name="m", **changes)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/{path:.*}", self._answer)
        app.router.add_get("/v1/models", self._list_models)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        try:
            return await step(request, body)
        finally:
            self.in_flight -= 1

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})


@asynccontextmanager
async def serving(*steps: Step, models: Sequence[str] = ()) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(steps or [says("hello")], models)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def completion(message: dict[str, Any], finish_reason: str = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {"id": "c1", "object": "chat.completion", "model": "served", "choices": [choice], **fields}


def says(text: str, delay: float = 0.0, **fields: Any) -> Step:
    """A whole reply, streamed where the request asks for it."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(delay)
        if body.get("stream"):
            chunks = [delta({"content": part}) for part in text] + [delta({}, "stop")]
            return await stream([*chunks, "[DONE]"])(request, body)
        return web.json_response(completion({"content": text}, **fields))

    return step


def replies(payload: Any, status: int = 200, headers: dict[str, str] | None = None) -> Step:
    """A reply as given: JSON, or text where it is a string."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.Response:
        text = payload if isinstance(payload, str) else json.dumps(payload)
        return web.Response(text=text, status=status, headers=headers or {}, content_type="application/json")

    return step


def fails(status: int, message: str = "no", headers: dict[str, str] | None = None, **fields: Any) -> Step:
    return replies({"error": {"message": message, **fields}}, status, headers)


def hangs(seconds: float = 60.0) -> Step:
    async def step(request: web.Request, body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(seconds)
        return web.Response()

    return step


def drops() -> Step:
    """The connection is closed without a word."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return step


def delta(fields: dict[str, Any], finish_reason: str | None = None, index: int = 0) -> dict[str, Any]:
    return {
        "id": "c1",
        "model": "served",
        "choices": [{"index": index, "delta": fields, "finish_reason": finish_reason}],
    }


def stream(events: Sequence[Any], *, pause: float = 0.0, cut: bool = False) -> Step:
    """Server-sent events: dicts as JSON, strings as they are; ``cut`` breaks the connection after them."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            line = event if isinstance(event, str) else json.dumps(event)
            text = line if line.startswith(":") else f"data: {line}"
            await response.write(text.encode() + b"\n\n")
            await asyncio.sleep(pause)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        else:
            await response.write_eof()
        return response

    return step
