"""A server that speaks Modal's protocol, so that Modal's real SDK can be tested without an account.

It answers the calls that our backend makes: images, sandboxes with tags, and commands with streamed
output, over gRPC. What it does was learned from the SDK; of the real service's limits, images, speeds
and failures it knows nothing. Commands run for real, on a ``Machine`` per sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from google.protobuf import empty_pb2
from grpclib import GRPCError, Status
from grpclib.const import Handler
from grpclib.server import Server, Stream
from modal_proto import api_grpc, api_pb2, task_command_router_grpc
from modal_proto import task_command_router_pb2 as router_pb2

from .machine import Machine, until_ended
from .thread import LoopThread

_DONE = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
_BATCH = 1 << 18


@dataclass
class Faults:
    """What is to go wrong; counters are used up."""

    rate_limited_creations: int = 0
    lost_creations: int = 0
    """The sandbox is made, and the answer is an error of the kind ``loss``."""
    loss: Status = Status.INTERNAL
    slow_start: float = 0.0
    cut_streams: int = 0
    failing_image: str = ""
    wrong_token: bool = False


@dataclass
class Execution:
    """One command: what it printed, and where its input goes."""

    process: asyncio.subprocess.Process | None = None
    terminal: int = -1
    output: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    ended: dict[int, bool] = field(default_factory=lambda: {1: False, 2: False})
    read: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    written: int = 0
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    code: int | None = None
    finishing: asyncio.Task[None] | None = None

    def has_news(self, number: int, offset: int) -> bool:
        """Whether there is output of a stream beyond ``offset``, or none will come."""
        return self.read[number] + len(self.output[number]) > offset or self.ended[number]


@dataclass
class Record:
    """One sandbox."""

    id: str
    definition: Any
    tags: dict[str, str]
    machine: Machine
    created_at: float
    result: Any = None
    watching: asyncio.Future[None] | None = None
    executions: dict[str, Execution] = field(default_factory=dict)

    @property
    def task(self) -> str:
        return "ta-" + self.id


class ModalServer:
    """Start it, point the SDK to ``url``, look at ``sandboxes``, set ``faults``."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.sandboxes: dict[str, Record] = {}
        self.images: list[Any] = []
        self.calls: dict[str, int] = {}
        self.creating = self.most_creating = 0
        self._asked: dict[str, asyncio.Future[Record]] = {}
        self._thread = LoopThread()
        self._server: Server | None = None
        self.url = ""

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
        return [record for record in self.sandboxes.values() if record.result is None]

    def end(self, record: Record, status: str = "TERMINATED", code: int = 0) -> None:
        """End a sandbox from outside."""
        self._thread.run(self._end(record, status, code))

    async def _start(self) -> None:
        control = _service(api_grpc.ModalClientBase, self, self.calls)
        router = _service(task_command_router_grpc.TaskCommandRouterBase, self, self.calls)
        self._server = Server([control, router])
        await self._server.start("127.0.0.1", 0)
        port = self._server._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    async def _stop(self) -> None:
        await asyncio.gather(*(self._end(record, "TERMINATED") for record in self.running()))
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        if self._server is not None:
            self._server.close()

    async def _end(self, record: Record, status: str, code: int = 0) -> None:
        if record.result is None:
            number = api_pb2.GenericResult.GenericStatus.Value(f"GENERIC_STATUS_{status}")
            record.result = api_pb2.GenericResult(status=number, exitcode=code)
        await record.machine.stop()

    # -- control plane --------------------------------------------------------------------------

    def _check_token(self, stream: Stream) -> None:
        if self.faults.wrong_token:
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed")

    async def ClientHello(self, stream: Stream) -> None:
        await stream.recv_message()
        self._check_token(stream)
        await stream.send_message(api_pb2.ClientHelloResponse(image_builder_version="2025.06"))

    async def AuthTokenGet(self, stream: Stream) -> None:
        await stream.recv_message()
        self._check_token(stream)
        await stream.send_message(api_pb2.AuthTokenGetResponse(token=_token()))

    async def EnvironmentGetOrCreate(self, stream: Stream) -> None:
        await stream.recv_message()
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        await stream.send_message(
            api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)
        )

    async def AppGetOrCreate(self, stream: Stream) -> None:
        await stream.recv_message()
        self._check_token(stream)
        await stream.send_message(api_pb2.AppGetOrCreateResponse(app_id="ap-1"))

    async def MountGetOrCreate(self, stream: Stream) -> None:
        await stream.recv_message()
        await stream.send_message(api_pb2.MountGetOrCreateResponse(mount_id="mo-1"))

    async def MountPutFile(self, stream: Stream) -> None:
        await stream.recv_message()
        await stream.send_message(api_pb2.MountPutFileResponse(exists=True))

    async def ImageGetOrCreate(self, stream: Stream) -> None:
        request = await stream.recv_message()
        self.images.append(request.image)
        commands = "\n".join(request.image.dockerfile_commands)
        if self.faults.failing_image and self.faults.failing_image in commands:
            failure = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
            result = api_pb2.GenericResult(status=failure, exception="manifest unknown")
        else:
            result = api_pb2.GenericResult(status=_DONE)
        metadata = api_pb2.ImageMetadata(image_builder_version="2025.06")
        await stream.send_message(
            api_pb2.ImageGetOrCreateResponse(
                image_id=f"im-{len(self.images)}", result=result, metadata=metadata
            )
        )

    async def ImageJoinStreaming(self, stream: Stream) -> None:
        await stream.recv_message()

    async def SandboxCreate(self, stream: Stream) -> None:
        request = await stream.recv_message()
        record = await self._create(request, stream)
        await stream.send_message(api_pb2.SandboxCreateResponse(sandbox_id=record.id))

    async def SandboxCreateV2(self, stream: Stream) -> None:
        request = await stream.recv_message()
        record = await self._create(request, stream)
        access = api_pb2.CommandRouterAccess(url=self.url, jwt=_token())
        await stream.send_message(
            api_pb2.SandboxCreateV2Response(
                sandbox_id=record.id, task_id=record.task, command_router_access=access
            )
        )

    async def _create(self, request: Any, stream: Stream) -> Record:
        if self.faults.rate_limited_creations:
            self.faults.rate_limited_creations -= 1
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "too many sandboxes")
        key = str(stream.metadata.get("x-idempotency-key"))
        if key not in self._asked:  # the SDK asks again by itself where it got no answer
            self._asked[key] = asyncio.ensure_future(self._make(request.definition, request.tags))
        record = await asyncio.shield(self._asked[key])
        if self.faults.lost_creations:
            self.faults.lost_creations -= 1
            raise GRPCError(self.faults.loss, "the answer was lost")
        return record

    async def _make(self, definition: Any, tags: Any) -> Record:
        self.creating += 1
        self.most_creating = max(self.creating, self.most_creating)
        try:
            network = definition.network_access.network_access_type != api_pb2.NetworkAccess.BLOCKED
            machine = Machine({}, network=network and not definition.block_network)
            identity = f"sb-{uuid.uuid4().hex[:20]}"
            named = {tag.tag_name: tag.tag_value for tag in tags}
            record = Record(identity, definition, named, machine, time.time())
            self.sandboxes[identity] = record
            await asyncio.sleep(self.faults.slow_start)
            await machine.start(*definition.entrypoint_args)
        finally:
            self.creating -= 1
        if record.result is not None:  # ended before it had started
            await machine.stop()
        record.watching = asyncio.ensure_future(self._watch(record))
        return record

    async def _watch(self, record: Record) -> None:
        """Note the end of the first process, and of the sandbox's time."""
        try:
            async with asyncio.timeout(record.definition.timeout_secs or None):
                code = await record.machine.wait()
        except TimeoutError:
            await self._end(record, "TIMEOUT")
            return
        await self._end(record, "FAILURE" if code else "SUCCESS", code)

    def _record(self, identity: str) -> Record:
        if identity not in self.sandboxes:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {identity} not found")
        return self.sandboxes[identity]

    async def SandboxGetTaskId(self, stream: Stream) -> None:
        request = await stream.recv_message()
        record = self._record(request.sandbox_id)
        await stream.send_message(
            api_pb2.SandboxGetTaskIdResponse(task_id=record.task, task_result=record.result)
        )

    SandboxGetTaskIdV2 = SandboxGetTaskId

    async def SandboxWait(self, stream: Stream) -> None:
        request = await stream.recv_message()
        record = self._record(request.sandbox_id)
        until = time.monotonic() + request.timeout
        while record.result is None and time.monotonic() < until:
            await asyncio.sleep(0.05)
        await stream.send_message(api_pb2.SandboxWaitResponse(result=record.result))

    SandboxWaitV2 = SandboxWait

    async def SandboxTerminate(self, stream: Stream) -> None:
        request = await stream.recv_message()
        record = self._record(request.sandbox_id)
        await self._end(record, "TERMINATED")
        await stream.send_message(api_pb2.SandboxTerminateResponse(existing_result=record.result))

    SandboxTerminateV2 = SandboxTerminate

    async def SandboxList(self, stream: Stream) -> None:
        request = await stream.recv_message()
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        before = request.before_timestamp or float("inf")
        found = [
            record
            for record in self.sandboxes.values()
            if record.created_at < before
            and record.tags.items() >= wanted.items()
            and (record.result is None or request.include_finished)
        ]
        found.sort(key=lambda record: -record.created_at)
        page = [
            api_pb2.SandboxInfo(id=record.id, created_at=record.created_at, app_id="ap-1")
            for record in found[:3]  # small pages, so that turning them is tested
        ]
        await stream.send_message(api_pb2.SandboxListResponse(sandboxes=page))

    SandboxListV2 = SandboxList

    async def SandboxTagsGet(self, stream: Stream) -> None:
        request = await stream.recv_message()
        record = self._record(request.sandbox_id)
        tags = [api_pb2.SandboxTag(tag_name=k, tag_value=v) for k, v in record.tags.items()]
        await stream.send_message(api_pb2.SandboxTagsGetResponse(tags=tags))

    SandboxTagsGetV2 = SandboxTagsGet

    async def SandboxTagsSet(self, stream: Stream) -> None:
        request = await stream.recv_message()
        self._record(request.sandbox_id).tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        await stream.send_message(empty_pb2.Empty())

    SandboxTagsSetV2 = SandboxTagsSet

    async def TaskGetCommandRouterAccess(self, stream: Stream) -> None:
        await stream.recv_message()
        await stream.send_message(api_pb2.TaskGetCommandRouterAccessResponse(url=self.url, jwt=_token()))

    async def SandboxGetCommandRouterAccess(self, stream: Stream) -> None:
        request = await stream.recv_message()
        if self._record(request.sandbox_id).result is not None:
            raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")
        await stream.send_message(api_pb2.SandboxGetCommandRouterAccessResponse(url=self.url, jwt=_token()))

    # -- commands -------------------------------------------------------------------------------

    def _task(self, task: str) -> Record:
        record = self._record(task.removeprefix("ta-"))
        if record.result is not None:
            raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")
        return record

    def _execution(self, request: Any) -> Execution:
        executions = self._task(request.task_id).executions
        if request.exec_id not in executions:
            raise GRPCError(Status.NOT_FOUND, f"no exec {request.exec_id}")
        return executions[request.exec_id]

    async def TaskExecStart(self, stream: Stream) -> None:
        request = await stream.recv_message()
        record = self._task(request.task_id)
        if request.exec_id not in record.executions:  # the SDK may ask twice for the same
            execution = record.executions[request.exec_id] = Execution()
            await self._begin(record.machine, execution, request)
        await stream.send_message(router_pb2.TaskExecStartResponse())

    async def _begin(self, machine: Machine, execution: Execution, request: Any) -> None:
        directory, arguments = request.workdir, request.command_args
        loop = asyncio.get_running_loop()
        if request.HasField("pty_info"):
            execution.process, execution.terminal = await machine.spawn_terminal(
                *arguments, directory=directory
            )
            reading = [loop.create_task(_pump_terminal(execution))]
        else:
            execution.process = await machine.spawn(*arguments, directory=directory)
            reading = [
                loop.create_task(_pump(execution, 1, execution.process.stdout)),
                loop.create_task(_pump(execution, 2, execution.process.stderr)),
            ]
        execution.finishing = loop.create_task(_finish(execution, reading))

    async def TaskExecStdioRead(self, stream: Stream) -> None:
        request = await stream.recv_message()
        execution = self._execution(request)
        number = int(request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR) + 1
        offset = request.offset
        await stream.send_initial_metadata()
        while True:
            async with execution.news:
                await execution.news.wait_for(partial(execution.has_news, number, offset))
                start = offset - execution.read[number]
                data = bytes(execution.output[number][start : start + _BATCH])
            if not data:
                if not execution.ended[number]:
                    raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")
                return
            if self.faults.cut_streams:
                self.faults.cut_streams -= 1
                await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=data[:1]))
                raise GRPCError(Status.UNAVAILABLE, "the stream was cut")
            offset += len(data)
            await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=data))
            if offset - execution.read[number] > 64 * _BATCH:  # nobody asks for what is that old
                async with execution.news:
                    del execution.output[number][: 32 * _BATCH]
                    execution.read[number] += 32 * _BATCH
                    execution.news.notify_all()

    async def TaskExecStdinWrite(self, stream: Stream) -> None:
        request = await stream.recv_message()
        execution = self._execution(request)
        if request.data and execution.code is not None:
            raise GRPCError(Status.FAILED_PRECONDITION, "the command has ended")
        new = request.data[max(0, execution.written - request.offset) :]
        await _write(execution, new, end=request.eof)
        execution.written += len(new)
        await stream.send_message(router_pb2.TaskExecStdinWriteResponse())

    async def TaskExecWait(self, stream: Stream) -> None:
        execution = self._execution(await stream.recv_message())
        async with execution.news:
            await execution.news.wait_for(lambda: execution.code is not None)
        await stream.send_message(router_pb2.TaskExecWaitResponse(**_status(execution.code)))

    async def TaskExecPoll(self, stream: Stream) -> None:
        execution = self._execution(await stream.recv_message())
        await stream.send_message(router_pb2.TaskExecPollResponse(**_status(execution.code)))


def _status(code: int | None) -> dict[str, int]:
    if code is None:
        return {}
    return {"code": code} if code >= 0 else {"signal": -code}


async def _pump(execution: Execution, number: int, source: asyncio.StreamReader) -> None:
    while data := await source.read(_BATCH):
        async with execution.news:
            await execution.news.wait_for(lambda: len(execution.output[number]) < 128 * _BATCH)
            execution.output[number] += data
            execution.news.notify_all()
    async with execution.news:
        execution.ended[number] = True
        execution.news.notify_all()


async def _pump_terminal(execution: Execution) -> None:
    import os

    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(execution.terminal, readable.set)
    try:
        while True:
            try:
                data = os.read(execution.terminal, _BATCH)
            except BlockingIOError:
                readable.clear()
                await readable.wait()
                continue
            except OSError:  # how a terminal says that nobody is at its other end
                break
            async with execution.news:
                execution.output[1] += data
                execution.news.notify_all()
    finally:
        loop.remove_reader(execution.terminal)
    async with execution.news:
        execution.ended = {1: True, 2: True}
        execution.news.notify_all()


async def _finish(execution: Execution, reading: list[asyncio.Task[None]]) -> None:
    """Note how a command ended. Output that leftovers still hold open stays open."""
    assert execution.process is not None
    code = await until_ended(execution.process)
    await asyncio.wait(reading, timeout=0.2)
    async with execution.news:
        execution.code = code
        execution.news.notify_all()


async def _write(execution: Execution, data: bytes, *, end: bool) -> None:
    import os

    if execution.terminal >= 0:
        os.write(execution.terminal, data + (b"\x04" if end else b""))
        return
    assert execution.process is not None
    assert execution.process.stdin is not None
    try:
        execution.process.stdin.write(data)
        await execution.process.stdin.drain()
    except ConnectionError:
        raise GRPCError(Status.FAILED_PRECONDITION, "the command reads no more") from None
    if end:
        execution.process.stdin.close()


def _token() -> str:
    """A token as the SDK reads it: only the time of its end counts."""
    parts = [{"alg": "none"}, {"exp": int(time.time()) + 86_400}]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "x"])


def _service(base: Any, server: ModalServer, calls: dict[str, int]) -> Any:
    """The calls of one gRPC service that ``server`` has methods for."""
    complete = type("Complete", (base,), dict.fromkeys(base.__abstractmethods__, lambda self, stream: None))

    def counted(name: str, method: Callable[[Stream], Any]) -> Callable[[Stream], Any]:
        async def answer(stream: Stream) -> None:
            calls[name] = calls.get(name, 0) + 1
            await method(stream)

        return answer

    class Service:
        def __mapping__(self) -> dict[str, Handler]:
            handlers = {}
            for path, handler in complete().__mapping__().items():
                name = path.rpartition("/")[2]
                if method := getattr(server, name, None):
                    handlers[path] = handler._replace(func=counted(name, method))
            return handlers

    return Service()
