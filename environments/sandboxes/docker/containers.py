"""A container as the engine sees it: made once, looked at, removed."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from environments.errors import NotSupported, SandboxBroken, SandboxError, SandboxReleased
from environments.sandboxes.docker.engine import Engine, EngineError
from environments.sandboxes.docker.ownership import FRAMEWORK, LABEL, SANDBOX

logger = logging.getLogger(__name__)

_CREATE_TIMEOUT = 180.0
_REMOVE_TIMEOUT = 120.0
_TRIES = 4
_FIRST_PAUSE = 0.5
_CHUNK = 1 << 18
_KILLED = 128 + signal.SIGKILL
_SECOND_LOOK = 0.5
"""Seconds after which an engine has written down all of a container's end, its removal included."""


class Container:
    """One container of ours."""

    def __init__(self, engine: Engine, identity: str, lifetime: float) -> None:
        self.id = identity
        self.has_tar = True
        self._engine = engine
        self._deadline = time.time() + lifetime
        self._lifetime = lifetime
        self._released = False
        self._broken: str | None = None

    @property
    def deadline(self) -> float:
        """Unix time at which it ends by itself."""
        return self._deadline

    async def rename(self, name: str) -> None:
        """Give it another name."""
        await self._engine.call("POST", f"/containers/{self.id}/rename", query={"name": name})

    @property
    def released(self) -> bool:
        """Whether we have given it up."""
        return self._released

    async def inspect(self) -> dict[str, Any]:
        """The engine's description. Raises ``EngineError`` (404 where it is gone)."""
        description: dict[str, Any] = await self._engine.call("GET", f"/containers/{self.id}/json")
        return description

    async def check_running(self, *, during_command: bool) -> None:
        """Raise what ``why_dead`` says, unless it runs."""
        error = await self.why_dead(during_command=during_command, cause=None)
        if error is not None:
            raise error

    async def why_dead(self, *, during_command: bool, cause: EngineError | None) -> Any:
        """The error for a sandbox that did not work: whose doing it was.

        ``during_command`` says whether something of the agent ran. Returns ``cause`` where the
        container runs (None without one).
        """
        if self._released:
            return SandboxReleased(f"the container {self.id[:12]} was released")
        if self._broken is not None:
            return SandboxBroken(self._broken)
        try:
            state = (await self.inspect())["State"]
            if during_command and not state.get("Running") and state.get("ExitCode") == _KILLED:
                await asyncio.sleep(_SECOND_LOOK)
                state = (await self.inspect())["State"]
        except EngineError as error:
            if error.status == 404:
                return SandboxError(f"the container {self.id[:12]} vanished: something else removed it")
            return error
        if state.get("Running"):
            return cause
        if state.get("ExitCode") == 0 and time.time() >= self._deadline - 5:
            return SandboxError(f"the sandbox's lifetime of {self._lifetime:.0f} s was over")
        if state.get("OOMKilled"):
            return SandboxBroken("the sandbox used up its memory and died")
        code = state.get("ExitCode")
        if not during_command:
            return SandboxError(
                f"the container {self.id[:12]} stopped while nothing ran in it (exit code {code})"
            )
        if code == _KILLED and await self._memory_is_told():
            # No process of a container can kill its first one; its memory did not run out, either.
            return SandboxError(
                f"the container {self.id[:12]} was killed from outside: by hand, or by an engine that stopped"
            )
        self._broken = f"a command ended the sandbox's own first process (exit code {code})"
        return SandboxBroken(self._broken)

    async def _memory_is_told(self) -> bool:
        """Whether the engine tells a death for want of memory from others. Podman does not, everywhere."""
        try:
            version = await self._engine.call("GET", "/version")
        except EngineError:  # it goes away just now
            return True
        components = version.get("Components") or []
        return not any("podman" in str(component.get("Name", "")).lower() for component in components)

    async def only_init_runs(self) -> bool:
        """Whether the engine, which the agent cannot deceive, sees no process but our first one's own.

        A process outside cannot join the session of another: what is in that of process 1 is ours. It need
        not stand first: where the host's numbers have begun again, what it started has a lower one.
        """
        # Podman takes names of columns (anything else it would ask of the container's own ps), Docker
        # takes options of ps and refuses such names.
        for arguments in ("pid,pgid", "-eo pid,sid"):
            try:
                query = {"ps_args": arguments}
                listed = await self._engine.call("GET", f"/containers/{self.id}/top", query=query)
            except EngineError:
                continue
            if isinstance(listed, dict) and (rows := listed.get("Processes")):
                return len({row[1] for row in rows}) == 1
        logger.debug("the engine cannot list the processes of %s", self.id[:12])
        return True

    async def remove(self) -> None:
        """Remove it with all that is in it. An engine that is gone is logged: the next start reaps."""
        self._released = True
        try:
            await remove_container(self._engine, self.id)
        except EngineError as error:
            logger.warning("the container %s could not be removed: %s", self.id[:12], error)

    async def put_archive(self, stream: AsyncIterator[bytes], directory: str) -> None:
        """Unpack a tar stream by the engine itself, as root."""
        query = {"path": directory, "noOverwriteDirNonDir": "true"}
        path = f"/containers/{self.id}/archive"
        try:
            async with self._engine.stream("PUT", path, query=query, data=stream):
                return
        except EngineError as error:
            raise _file_error(error, directory) from error

    async def get_archive(self, path: str) -> AsyncGenerator[bytes, None]:
        """Pack a tree by the engine itself."""
        try:
            where = f"/containers/{self.id}/archive"
            async with self._engine.stream("GET", where, query={"path": path}) as response:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    yield chunk
        except EngineError as error:
            raise _file_error(error, path) from error


async def make_container(
    engine: Engine, name: str, body: dict[str, Any], lifetime: float, *, engine_has: set[str]
) -> Container:
    """Create and start a container. What a lost answer left is found by its label and taken over.

    ``engine_has`` loses the limits that this engine turns out not to offer. Raises ``NotSupported``
    or ``SandboxError``; nothing is left behind then.
    """
    sandbox_id = body["Labels"][SANDBOX]
    making = asyncio.ensure_future(_make(engine, name, body, sandbox_id, engine_has))
    try:
        return Container(engine, await asyncio.shield(making), lifetime)
    except asyncio.CancelledError:  # what was asked for may still come: it is awaited and removed
        await asyncio.shield(_forget_when_done(engine, sandbox_id, making))
        raise


async def find_containers(engine: Engine, label: str) -> list[dict[str, Any]]:
    """All containers with a label ``name=value``, stopped ones included."""
    query = {"all": "1", "filters": json.dumps({"label": [label]})}
    found: list[dict[str, Any]] = await engine.call("GET", "/containers/json", query=query)
    return found


async def our_containers(engine: Engine) -> list[dict[str, Any]]:
    """All containers that any run of the framework made."""
    return await find_containers(engine, f"{LABEL}={FRAMEWORK}")


async def remove_container(engine: Engine, identity: str) -> None:
    """Remove a container; none, or one that is being removed, is fine. Raises ``EngineError``."""
    for attempt in range(_TRIES):
        try:
            query = {"force": "1", "v": "1"}
            await engine.call("DELETE", f"/containers/{identity}", query=query, timeout=_REMOVE_TIMEOUT)
            return
        except EngineError as error:
            if error.status == 404:
                return
            if error.status == 409 and "already in progress" in str(error):
                await _until_gone(engine, identity)
                return
            if attempt + 1 == _TRIES or error.status is None:
                raise
            await asyncio.sleep(_FIRST_PAUSE * 2**attempt)


async def _make(
    engine: Engine, name: str, body: dict[str, Any], sandbox_id: str, engine_has: set[str]
) -> str:
    try:
        identity = await _create(engine, name, body, sandbox_id, engine_has)
        await _repeat(lambda: _start(engine, identity))
    except SandboxError:
        await _forget(engine, sandbox_id)
        raise
    return identity


async def _create(
    engine: Engine, name: str, body: dict[str, Any], sandbox_id: str, engine_has: set[str]
) -> str:
    async def create() -> str:
        if found := await find_containers(engine, f"{SANDBOX}={sandbox_id}"):
            logger.info("took over the container %s, whose creation was not confirmed", found[0]["Id"][:12])
            return str(found[0]["Id"])
        return await post()

    async def post() -> str:
        made = await engine.call(
            "POST", "/containers/create", query={"name": name}, body=body, timeout=_CREATE_TIMEOUT
        )
        return str(made["Id"])

    try:
        return await post()
    except EngineError as error:
        if error.status == 404:
            raise
        if _refuses_storage(error) and body["HostConfig"].pop("StorageOpt", None):
            engine_has.discard("storage")
            return await _create(engine, name, body, sandbox_id, engine_has)
        if error.status is not None and error.status < 500 and error.status not in (409, 429):
            raise NotSupported(f"the engine cannot make the container: {error}") from error
        logger.info("creating a container failed, looking whether it is there all the same: %s", error)
    identity: str = await _repeat(create)
    return identity


async def _start(engine: Engine, identity: str) -> None:
    await engine.call("POST", f"/containers/{identity}/start", timeout=_CREATE_TIMEOUT)


async def _repeat(action: Callable[[], Awaitable[Any]]) -> Any:
    """Try again after failures that may pass."""
    for attempt in range(_TRIES):
        try:
            return await action()
        except EngineError as error:
            if "could not select device driver" in str(error):
                raise NotSupported(f"the engine has no GPUs to give: {error}") from error
            passing = error.status is None or error.status >= 500 or error.status in (409, 429)
            if attempt + 1 == _TRIES or not passing or "executable file not found" in str(error):
                raise
            await asyncio.sleep(_FIRST_PAUSE * 2**attempt)
    raise AssertionError("unreachable")


async def _forget_when_done(engine: Engine, sandbox_id: str, making: asyncio.Future[str]) -> None:
    await asyncio.wait({making})
    if making.cancelled() or making.exception() is None:
        await _forget(engine, sandbox_id)


async def _forget(engine: Engine, sandbox_id: str) -> None:
    try:
        for found in await find_containers(engine, f"{SANDBOX}={sandbox_id}"):
            await remove_container(engine, found["Id"])
    except EngineError as error:
        logger.warning("a container of a failed creation may be left (%s=%s): %s", SANDBOX, sandbox_id, error)


async def _until_gone(engine: Engine, identity: str) -> None:
    for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2):
        await asyncio.sleep(pause)
        try:
            await engine.call("GET", f"/containers/{identity}/json")
        except EngineError as error:
            if error.status == 404:
                return
            raise


def _refuses_storage(error: EngineError) -> bool:
    text = str(error).lower()
    return "storage-opt" in text or "storage opt" in text or "storageopt" in text


def _file_error(error: EngineError, path: str) -> Exception:
    if error.status == 404 and "no such container" not in str(error).lower():
        return FileNotFoundError(2, "No such file or directory", path)
    if error.status == 400:
        return NotADirectoryError(20, "Not a directory", path)
    return error
