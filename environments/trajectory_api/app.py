"""The HTTP face of the service, as an ASGI application."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount

from environments.errors import StoreError
from environments.trajectory_api.endpoints import Endpoints
from environments.trajectory_api.guard import Guard
from environments.trajectory_api.refusals import Refused
from environments.trajectory_api.replies import refusal_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from environments.trajectory_api.service import Service


def make_app(service: Service, *, token: str | None = None, local: bool = False) -> Starlette:
    """The ASGI application. ``token`` is asked of every caller but ``/healthz``, where it is given.

    ``local`` says that it is reached through loopback only.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.store.close)

    routes = Endpoints(service).routes()
    return Starlette(
        routes=[*routes, Mount("/ns/{namespace}", routes=routes)],
        middleware=[Middleware(Guard, token=token, local=local)],
        exception_handlers={
            Refused: _refused,
            ValidationError: _invalid,
            StoreError: _no_store,
            ClientDisconnect: _gone,
        },
        lifespan=lifespan,
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return JSONResponse(error.detail(), error.status, headers=refusal_headers(error.status))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    detail = [
        {"type": entry["type"], "loc": ["body", *entry["loc"]], "msg": entry["msg"]}
        for entry in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return JSONResponse({"detail": detail}, 422)


async def _no_store(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 503, headers={"Retry-After": "5"})


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
