"""A server that speaks Daytona's protocol, so that Daytona's real SDK can be tested without an account.

It answers the calls that our backend makes: sandboxes with labels and states, commands, and terminals
over web sockets. What it does was learned from the SDK; of the real service's limits, images, speeds and
failures it knows nothing. Commands run for real, on a ``Machine`` per sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from .machine import Machine, until_ended
from .thread import LoopThread

_PART = 1 << 16


@dataclass
class Faults:
    """What is to go wrong; counters are used up."""

    rate_limited_creations: int = 0
    lost_creations: int = 0
    """The sandbox is made, and the answer is an error."""
    slow_start: float = 0.0
    failing_image: str = ""
    wrong_token: bool = False


@dataclass
class Terminal:
    """One terminal session."""

    process: asyncio.subprocess.Process
    master: int
    socket: web.WebSocketResponse
    transport: asyncio.Transport


@dataclass
class Record:
    """One sandbox."""

    id: str
    request: dict[str, Any]
    machine: Machine
    state: str = "creating"
    error: str = ""
    created_at: float = field(default_factory=time.time)
    terminals: dict[str, Terminal] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        return self.request.get("labels") or {}


class DaytonaServer:
    """Start it, point the SDK to ``url``, look at ``sandboxes``, set ``faults``."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.sandboxes: dict[str, Record] = {}
        self.calls: dict[str, int] = {}
        self.creating = self.most_creating = 0
        self._thread = LoopThread()
        self._runner: web.AppRunner | None = None
        self._starting: set[asyncio.Task[None]] = set()
        self._base = ""

    @property
    def url(self) -> str:
        """What ``DAYTONA_API_URL`` is to be."""
        return f"{self._base}/api"

    # -- for tests ------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen on a free port."""
        self._thread.run(self._start())

    def stop(self) -> None:
        """End all sandboxes and stop listening."""
        self._thread.run(self._stop())
        self._thread.stop()

    def running(self) -> list[Record]:
        """The sandboxes that live."""
        return [record for record in self.sandboxes.values() if record.state not in ("destroyed", "error")]

    def end(self, record: Record, state: str = "destroyed") -> None:
        """End a sandbox from outside."""
        self._thread.run(self._end(record, state))

    def cut_terminals(self, record: Record) -> None:
        """Cut the web sockets of all terminals; what runs in them goes on."""

        async def cut() -> None:
            for terminal in list(record.terminals.values()):
                terminal.transport.abort()

        self._thread.run(cut())

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._middleware], client_max_size=1 << 30)
        toolbox = "/toolbox/{id}/process"
        app.add_routes(
            [
                web.post("/api/sandbox", self._create),
                web.get("/api/sandbox", self._list),
                web.get("/api/sandbox/{id}", self._get),
                web.delete("/api/sandbox/{id}", self._delete),
                web.put("/api/sandbox/{id}/labels", self._set_labels),
                web.post(f"{toolbox}/execute", self._execute),
                web.get(f"{toolbox}/pty/create-connect", self._terminal),
                web.delete(f"{toolbox}/pty/{{session}}", self._kill_terminal),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._base = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        await asyncio.gather(*(self._end(record, "destroyed") for record in self.running()))
        await asyncio.gather(*self._starting, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _end(self, record: Record, state: str) -> None:
        record.state = state
        await record.machine.stop()

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        resource = request.match_info.route.resource
        name = f"{request.method} {resource.canonical if resource is not None else request.path}"
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.faults.wrong_token and request.path.startswith("/api/sandbox"):
            return _failure(401, "Invalid credentials")
        return await handler(request)

    # -- sandboxes ------------------------------------------------------------------------------

    async def _create(self, request: web.Request) -> web.Response:
        if self.faults.rate_limited_creations:
            self.faults.rate_limited_creations -= 1
            return _failure(429, "ThrottlerException: Too Many Requests", {"Retry-After": "1"})
        body = await request.json()
        machine = Machine(body.get("env") or {}, network=not body.get("networkBlockAll"))
        record = Record(str(uuid.uuid4()), body, machine)
        self.sandboxes[record.id] = record
        starting = asyncio.ensure_future(self._begin(record))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        if not self.faults.slow_start:
            await asyncio.shield(starting)
        if self.faults.lost_creations:
            self.faults.lost_creations -= 1
            return _failure(502, "Bad Gateway")
        return web.json_response(self._described(record))

    async def _begin(self, record: Record) -> None:
        self.creating += 1
        self.most_creating = max(self.creating, self.most_creating)
        try:
            build = record.request.get("buildInfo") or {}
            await asyncio.sleep(self.faults.slow_start)
            if self.faults.failing_image and self.faults.failing_image in build.get("dockerfileContent", ""):
                record.state, record.error = "build_failed", "manifest unknown"
                return
            await record.machine.start("sleep", "100000")
            if record.state == "creating":
                record.state = "started"
            else:  # ended before it had started
                await record.machine.stop()
        finally:
            self.creating -= 1
        watching = asyncio.ensure_future(self._watch(record))
        self._starting.add(watching)
        watching.add_done_callback(self._starting.discard)

    async def _watch(self, record: Record) -> None:
        """Note the end of the first process."""
        await record.machine.wait()
        if record.state == "started":
            await self._end(record, "error")

    def _described(self, record: Record) -> dict[str, Any]:
        body = record.request
        return {
            "id": record.id,
            "organizationId": "organization",
            "name": body.get("name") or record.id,
            "user": "root",
            "env": body.get("env") or {},
            "labels": record.labels,
            "public": False,
            "networkBlockAll": bool(body.get("networkBlockAll")),
            "kvm": False,
            "target": body.get("target") or "us",
            "cpu": body.get("cpu") or 1,
            "gpu": 0,
            "memory": body.get("memory") or 1,
            "disk": body.get("disk") or 3,
            "state": record.state,
            "errorReason": record.error or None,
            "toolboxProxyUrl": f"{self._base}/toolbox",
        }

    def _record(self, request: web.Request) -> Record:
        record = self.sandboxes.get(request.match_info["id"])
        if record is None or record.state == "destroyed":
            raise web.HTTPNotFound(text=json.dumps({"message": "Sandbox not found"}))
        return record

    async def _list(self, request: web.Request) -> web.Response:
        wanted = json.loads(request.query.get("labels") or "{}")
        start = int(request.query.get("cursor") or 0)
        all_found = [record for record in self.running() if record.labels.items() >= wanted.items()]
        page = all_found[start : start + 3]  # small pages, so that turning them is tested
        more = start + 3 < len(all_found)
        items = [self._described(record) for record in page]
        answer: dict[str, Any] = {"items": items, "total": len(all_found)}
        answer["nextCursor"] = str(start + 3) if more else None
        return web.json_response(answer)

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._described(self._record(request)))

    async def _delete(self, request: web.Request) -> web.Response:
        record = self._record(request)
        await self._end(record, "destroyed")
        return web.json_response(self._described(record))

    async def _set_labels(self, request: web.Request) -> web.Response:
        record = self._record(request)
        record.request["labels"] = (await request.json())["labels"]
        return web.json_response({"labels": record.labels})

    # -- inside of them -------------------------------------------------------------------------

    def _started(self, request: web.Request) -> Record:
        record = self._record(request)
        if record.state != "started":
            raise web.HTTPBadRequest(text=json.dumps({"message": "Sandbox is not started"}))
        return record

    async def _execute(self, request: web.Request) -> web.Response:
        record = self._started(request)
        body = await request.json()
        process = await record.machine.spawn(
            "bash", "-c", body["command"], directory=body.get("cwd") or "", environment=body.get("envs")
        )
        try:
            async with asyncio.timeout(body.get("timeout") or None):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            process.kill()
            return _failure(408, "command execution timeout")
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        return web.json_response({"exitCode": code, "result": (stdout + stderr).decode("utf-8", "replace")})

    async def _terminal(self, request: web.Request) -> web.WebSocketResponse:
        record = self._started(request)
        offered = [word.strip() for word in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        variables = next((word[19:] for word in offered if word.startswith("X-Daytona-Pty-Envs~")), "")
        environment = json.loads(base64.urlsafe_b64decode(variables + "===") or "{}")
        socket = web.WebSocketResponse(max_msg_size=1 << 24, protocols=("X-Daytona-Pty-Exit-Control",))
        await socket.prepare(request)
        process, master = await record.machine.spawn_terminal(
            *("bash", "--noprofile", "--norc", "-i"), environment=environment
        )
        name = request.query["id"]
        terminal = record.terminals[name] = Terminal(process, master, socket, request.transport)
        await socket.send_str(json.dumps({"type": "control", "status": "connected"}))
        reading = asyncio.ensure_future(_to_socket(terminal))
        try:
            async for message in socket:
                if message.type in (WSMsgType.BINARY, WSMsgType.TEXT):
                    data = message.data.encode() if message.type == WSMsgType.TEXT else message.data
                    await _to_terminal(terminal, data)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            record.terminals.pop(name, None)
            await _hang_up(terminal)
        return socket

    async def _kill_terminal(self, request: web.Request) -> web.Response:
        terminal = self._record(request).terminals.get(request.match_info["session"])
        if terminal is None:
            return _failure(404, "PTY session not found")
        with contextlib.suppress(ProcessLookupError):
            terminal.process.send_signal(signal.SIGKILL)
        await terminal.socket.close()
        return web.json_response({"message": "PTY session deleted"})


async def _to_socket(terminal: Terminal) -> None:
    """Pass on what is printed, at the pace of the reader; then the exit code."""
    while True:
        try:
            data = os.read(terminal.master, _PART)
        except BlockingIOError:
            await _until_ready(terminal.master, writing=False)
            continue
        except OSError:  # how a terminal says that nobody is at its other end
            break
        await terminal.socket.send_bytes(data)
    code = await until_ended(terminal.process)
    await terminal.socket.close(message=json.dumps({"exitCode": code}).encode())


async def _to_terminal(terminal: Terminal, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(terminal.master, data[:4096]) :]
        except BlockingIOError:
            await _until_ready(terminal.master, writing=True)
        except OSError:
            return


async def _until_ready(descriptor: int, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    copy = os.dup(descriptor)  # reading and writing may wait at the same time
    add(copy, ready.set)
    try:
        await ready.wait()
    finally:
        remove(copy)
        os.close(copy)


async def _hang_up(terminal: Terminal) -> None:
    with contextlib.suppress(ProcessLookupError):
        terminal.process.kill()
    os.close(terminal.master)
    await until_ended(terminal.process)


def _failure(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"statusCode": status, "message": message, "error": message}
    return web.json_response(body, status=status, headers=headers)
