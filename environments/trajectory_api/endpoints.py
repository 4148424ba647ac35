"""One method per endpoint: reads the request, asks the service, writes the reply.

Replies to good input are those of Atropos; ``openapi.ENDPOINTS`` lists them all.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

import environments
from environments.trajectory_api import openapi
from environments.trajectory_api.bodies import decode_body, read_body
from environments.trajectory_api.messages import EnvIdentifier, RegisterEnv, Registration
from environments.trajectory_api.metrics import render
from environments.trajectory_api.refusals import Refused
from environments.trajectory_api.replies import GroupsReply, negotiate
from environments.trajectory_api.service import Service
from environments.trajectory_api.store import NotStored
from environments.trajectory_api.wire import LARGEST, parse, read_group, read_groups

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

BACKPRESSURE_HEADER = "X-Accept-Backpressure"
"""A client that sends it understands 429; the original drops the data."""

KEY_HEADER = "Idempotency-Key"

_READERS = 2
"""Groups that are checked at the same time; a large one takes many times its size while it is."""

_MOST_GROUPS = 64
"""Groups in one reply to ``/groups``."""

_NOT_REGISTERED = {
    "status": "error",
    "message": "Trainer not registered. Call /register first.",
    "batch": [],
}
_NO_EXAMPLE: dict[str, list[Any]] = {
    name: []
    for name in (
        "tokens",
        "masks",
        "scores",
        "advantages",
        "ref_logprobs",
        "generation_params",
        "inference_logprobs",
        "messages",
        "images",
    )
}


class Endpoints:
    """The handlers of one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._reading = asyncio.Semaphore(_READERS)

    def routes(self) -> list[BaseRoute]:
        """One route per endpoint; ``openapi.ENDPOINTS`` says what each is for."""
        return [
            Route(path, getattr(self, name), methods=[method]) for method, path, name, _ in openapi.ENDPOINTS
        ]

    async def root(self, request: Request) -> Response:
        return JSONResponse({"message": "AtroposLib API"})

    async def healthz(self, request: Request) -> Response:
        trouble = await asyncio.to_thread(self.service.store.trouble)
        if trouble is not None:
            return JSONResponse({"status": "error", "detail": trouble}, 503)
        return JSONResponse({"status": "ok", "version": environments.__version__})

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(render(self.service), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi.document(environments.__version__))

    async def docs(self, request: Request) -> Response:
        return Response(openapi.page(), media_type="text/html")

    # The trainer.

    async def register(self, request: Request) -> Response:
        registration = await self._read(request, Registration)
        job, resumed = await self.service.register(_namespace(request), registration)
        # The stdlib's json: the identifier has 128 bits.
        body = json.dumps({"uuid": job.uuid, "run_id": job.run_id, "resumed": resumed, "step": job.step})
        return Response(body, media_type="application/json")

    async def batch(self, request: Request) -> Response:
        namespace = _namespace(request)
        if self.service.job(namespace).registration is None:
            return JSONResponse(_NOT_REGISTERED)
        batch = await self.service.next_batch(
            namespace,
            consumer=request.query_params.get("consumer"),
            acknowledge=_number(request, "acknowledge"),
            version=_number(request, "policy_version"),
        )
        if batch is None:
            return JSONResponse({"batch": None})

        async def sent(whole: bool) -> None:
            await self.service.delivered(namespace, batch, whole=whole)

        return GroupsReply(  # type: ignore[return-value]  # any ASGI application may be returned
            "batch",
            [group.id for group in batch.groups],
            self.service.payload,
            {"batch_id": batch.id, "step": batch.step},
            encoding=_encoding(request),
            stall=self.service.limits.stall,
            headers={"X-Batch-Id": str(batch.id)},
            sent=sent,
        )

    async def acknowledge(self, request: Request) -> Response:
        value = await self._json(request)
        await self.service.acknowledge(_namespace(request), _batch_id(value))
        return JSONResponse({"status": "success"})

    async def batches(self, request: Request) -> Response:
        job = self.service.job(_namespace(request))
        return JSONResponse(
            {
                "batches": [
                    {
                        "batch_id": batch.id,
                        "step": batch.step,
                        "state": batch.state,
                        "sequences": batch.size,
                        "groups": [group.id for group in batch.groups],
                        "consumer": batch.consumer,
                        "handed_out_at": batch.at,
                    }
                    for batch in job.batches.values()
                ]
            }
        )

    async def requeue(self, request: Request) -> Response:
        await self.service.requeue(_namespace(request), _batch_id(await self._json(request)))
        return JSONResponse({"status": "success"})

    async def reset_data(self, request: Request) -> Response:
        await self.service.reset(_namespace(request))
        return PlainTextResponse("Reset successful")

    # Everybody.

    async def groups(self, request: Request) -> Response:
        namespace = _namespace(request)
        after, limit = _number(request, "after") or 0, _number(request, "limit")
        if limit is not None and limit < 1:
            raise Refused("limit", "at least 1 is needed")
        ids = await self.service.stored_groups(namespace, after, min(limit or _MOST_GROUPS, _MOST_GROUPS))
        return GroupsReply(  # type: ignore[return-value]  # any ASGI application may be returned
            "groups",
            ids,
            self.service.payload_if_stored,
            {"last": max(ids, default=after), "run_id": self.service.job(namespace).run_id},
            encoding=_encoding(request),
            stall=self.service.limits.stall,
        )

    async def wandb_info(self, request: Request) -> Response:
        registration = self.service.job(_namespace(request)).registration
        return JSONResponse(
            {
                "group": registration.wandb_group if registration else None,
                "project": registration.wandb_project if registration else None,
            }
        )

    async def info(self, request: Request) -> Response:
        registration = self.service.job(_namespace(request)).registration
        return JSONResponse(
            {
                "batch_size": registration.batch_size if registration else -1,
                "max_token_len": registration.max_token_len if registration else -1,
            }
        )

    async def status(self, request: Request) -> Response:
        job = self.service.job(_namespace(request))
        return JSONResponse({"current_step": job.step, "queue_size": len(job.queue)})

    async def latest_example(self, request: Request) -> Response:
        latest = self.service.job(_namespace(request)).latest
        if latest is None:
            return JSONResponse(_NO_EXAMPLE)
        try:
            return Response(await self.service.payload(latest), media_type="application/json")
        except NotStored:  # handed out and finished with
            return JSONResponse(_NO_EXAMPLE)

    # Environments.

    async def register_env(self, request: Request) -> Response:
        wish = await self._read(request, RegisterEnv)
        namespace = _namespace(request)
        job = self.service.job(namespace)
        if job.registration is None or not job.started:
            return JSONResponse({"status": "wait for trainer to start"})
        environment = await self.service.register_environment(namespace, wish)
        reply: dict[str, Any] = {
            "status": "success",
            "env_id": environment.env_id,
            "wandb_name": environment.name,
            "checkpoint_dir": job.registration.checkpoint_dir,
            "starting_step": job.step,
            "checkpoint_interval": job.registration.save_checkpoint_interval,
            "num_steps": job.registration.num_steps,
            "run_id": job.run_id,
            "rollout_ids": job.registration.rollout_ids,
        }
        warning = job.warning_for(environment, environment.seen)
        if warning is not None:
            reply["warning"] = warning
        return JSONResponse(reply)

    async def disconnect_env(self, request: Request) -> Response:
        wish = await self._read(request, EnvIdentifier)
        try:
            await self.service.disconnect(_namespace(request), wish.env_id)
        except Refused as refusal:
            return JSONResponse({"status": "failure", "error": refusal.message})
        return JSONResponse({"status": "success"})

    async def status_env(self, request: Request) -> Response:
        if "env_id" in request.query_params:
            env_id = _number(request, "env_id")
            assert env_id is not None
        else:
            env_id = (await self._read(request, EnvIdentifier)).env_id
        job = self.service.job(_namespace(request))
        return JSONResponse(job.status_of(env_id, time.monotonic()))

    async def scored_data(self, request: Request) -> Response:
        namespace = _namespace(request)
        self._push_back(request, namespace)
        key = request.headers.get(KEY_HEADER)
        group = await self._groups(request, namespace, lambda body: read_group(body, key))
        new = await self._counted(namespace, self.service.add(namespace, [group]))
        reply: dict[str, Any] = {"status": "received"}
        return JSONResponse(reply if new else {**reply, "duplicate": True})

    async def scored_data_list(self, request: Request) -> Response:
        namespace = _namespace(request)
        self._push_back(request, namespace)
        key = request.headers.get(KEY_HEADER)
        groups = await self._groups(request, namespace, lambda body: read_groups(body, key))
        new = await self._counted(namespace, self.service.add(namespace, groups, listed=True))
        reply: dict[str, Any] = {"status": "received", "groups_processed": len(groups)}
        return JSONResponse(reply if new == len(groups) else {**reply, "duplicates": len(groups) - new})

    def _push_back(self, request: Request, namespace: str) -> None:
        """Ask a client to wait that said it understands; others would lose their data."""
        if BACKPRESSURE_HEADER not in request.headers:
            return
        waiting = len(self.service.job(namespace).queue)
        if waiting >= self.service.limits.queue:
            self.service.counters["deferred", namespace] += 1
            raise Refused("queue", f"{waiting} groups wait for the trainer already", status=429)

    async def _groups(self, request: Request, namespace: str, read: Callable[[bytes], T]) -> T:
        body = await self._body(request)
        encoding = request.headers.get("content-encoding", "")
        limit = self.service.limits.body

        def work() -> T:
            return read(decode_body(body, encoding, limit))

        async with self._reading:
            return await self._counted(namespace, asyncio.to_thread(work))

    async def _counted(self, namespace: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except Refused:
            self.service.counters["groups_refused", namespace] += 1
            raise

    # Bodies.

    async def _read(self, request: Request, model: type[M]) -> M:
        return model.model_validate(await self._json(request))

    async def _json(self, request: Request) -> Any:
        body = await self._body(request)
        encoding = request.headers.get("content-encoding", "")
        return parse(decode_body(body, encoding, self.service.limits.body))

    async def _body(self, request: Request) -> bytes:
        limits = self.service.limits
        declared = request.headers.get("content-length")
        return await read_body(request.stream(), limits.body, limits.stall, declared)


def _encoding(request: Request) -> Any:
    client = request.client.host if request.client else None
    return negotiate(request.headers.get("accept-encoding", ""), client)


def _namespace(request: Request) -> str:
    return str(request.path_params.get("namespace", "default"))


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise Refused(name, f"an integer is needed, not {text!r:.40}") from None
    if abs(number) > LARGEST:
        raise Refused(name, f"an integer of at most {LARGEST} is needed")
    return number


def _batch_id(value: Any) -> int:
    batch_id = value.get("batch_id") if isinstance(value, dict) else None
    if type(batch_id) is not int:
        raise Refused("batch_id", "an integer is needed")
    return batch_id
