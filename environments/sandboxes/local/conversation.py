"""Requests to a sandbox's init process, and what their loss means."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from environments.errors import ProcessShortage, SandboxBroken, SandboxError, SandboxReleased
from environments.sandboxes.base import file_error
from environments.sandboxes.local.channel import LARGEST, Channel
from environments.sandboxes.local.guard import Guard
from environments.sandboxes.local.inside import wire
from environments.sandboxes.local.job import Answer, Job
from environments.sandboxes.local.shortage import until_there_are_processes

_ALIVE_ATTEMPTS = 5
_NAP = 1.0
"""Seconds after which a supervisor that was in use before is woken, for the case that it sleeps."""


class Conversation:
    """Sends requests, collects their answers, and tells a lost job from a lost sandbox."""

    def __init__(self, guard: Guard) -> None:
        self.released = False
        """Set when the rollout gives the sandbox back: from then on every use is an error."""
        self._guard = guard
        self._number = guard.first_number
        self._waiting: set[Answer] = set()
        self._channel: Channel | None = None
        self._idle: Answer | None = None
        """The job of a supervisor that can take another command. One is enough: a second would be a
        process of the sandbox that no command of the agent is behind."""

    def next_number(self) -> int:
        """A number that no other job of this sandbox has."""
        self._number += 1
        return self._number

    def answer(self) -> Answer:
        """A new job that is answered once; give it to ``forget`` in the end."""
        job = Answer(self.next_number())
        self._waiting.add(job)
        return job

    def forget(self, job: Answer) -> None:
        """Nobody waits for this job any more."""
        job.close()
        self._waiting.discard(job)

    async def run(self, request: dict[str, object], descriptors: tuple[int, ...]) -> Answer:
        """Have a command run; its job, to be given to ``finish`` in the end.

        The supervisor of the last command takes it if that left nothing behind, else a new one does.
        """
        self.check_open()
        job, self._idle = self._idle, None
        if job is not None and not job.ended:
            job.renew()
            self._waiting.add(job)
            if job.send(request, descriptors=descriptors):
                return job
            self.forget(job)
        elif job is not None:
            job.close()
        return await self.run_anew(request, descriptors)

    async def run_anew(self, request: dict[str, object], descriptors: tuple[int, ...]) -> Answer:
        """Have a command run by a new supervisor."""
        job = self.answer()
        try:
            await self.post(job, request, descriptors)
        except asyncio.CancelledError:
            await self.abandon(job)
            self.forget(job)
            raise
        except BaseException:  # cancelled, too: nothing half-made stays
            self.forget(job)
            raise
        return job

    def finish(self, job: Answer, *, more: bool) -> None:
        """Nobody waits for this command any more; ``more`` says that its supervisor takes another one."""
        if not more or job.ended or self.released or self._idle is not None:
            self.forget(job)
            return
        self._waiting.discard(job)
        self._idle = job

    @property
    def busy(self) -> bool:
        """Whether a command runs, or ran when the sandbox died; what was sent to a dead one never began."""
        for job in list(self._waiting):
            job.catch_up()
        return any(job.begun for job in self._waiting)

    async def ask(
        self, request: dict[str, object], body: bytes = b"", descriptors: tuple[int, ...] = ()
    ) -> wire.Message:
        """Send a request and wait for its answer; ``OSError`` as it was raised inside."""
        return await until_there_are_processes(lambda: self._ask(request, body, descriptors))

    async def _ask(
        self, request: dict[str, object], body: bytes, descriptors: tuple[int, ...]
    ) -> wire.Message:
        self.check_open()
        job = self.answer()
        try:
            await self.post(job, request, descriptors, body)
            message = await self._guard.awake(job.number, job.answer)
        finally:
            self.forget(job)
        return await self._checked(message, request)

    async def ask_briefly(self, request: dict[str, object], body: bytes = b"") -> wire.Message:
        """The same for what init does at once itself, without a process for it, if it can be asked to.

        Where the channel was lost it may have been done already; none of it does harm when done again.
        """
        self.check_open()
        if self._channel is None or self._channel.ended:
            self._channel = Channel()
            await self._open(self._channel)
        message = None
        if not self._channel.full and len(body) + len(str(request["path"])) <= LARGEST:
            message = await self._channel.ask(request, body)
        if message is None:
            return await self.ask(request, body)
        return await self._checked(message, request)

    async def _open(self, channel: Channel) -> None:
        try:
            await self._send({"op": "channel"}, b"", (channel.other_end,))
        except BaseException:  # cancelled, too: nothing half-made stays
            channel.close()
            raise
        finally:
            channel.handed_over()

    async def _checked(self, message: wire.Message | None, request: dict[str, object]) -> wire.Message:
        if message is None:
            await self.explain_loss()
            raise SandboxBroken("an operation was killed")
        await self.check_room(message.header)
        if "errno" in message.header:
            raise file_error(message.header["errno"], message.header.get("text"), request.get("path"))
        return message

    async def check_room(self, header: Mapping[str, object]) -> None:
        """``ProcessShortage`` where there was none for a request, which is not the sandbox's own doing."""
        if "no_process" in header and not await self._guard.order("crowded"):
            raise ProcessShortage

    async def post(
        self, job: Job, request: dict[str, object], descriptors: tuple[int, ...] = (), body: bytes = b""
    ) -> None:
        """Send a request with its job; waits while the socket is full."""
        self.check_open()
        try:
            await self._send(request | {"id": job.number}, body, (job.other_end, *descriptors))
        finally:
            job.handed_over()

    async def _send(self, header: dict[str, object], body: bytes, descriptors: tuple[int, ...]) -> None:
        try:
            await self._guard.sender.send(header, body, descriptors)
        except OSError:
            raise await self._guard.wait_for_failure() from None

    async def interrupt(self, job: Answer) -> wire.Message | None:
        """Kill a command and take what it had printed."""
        job.hang_up()
        await self._kill(job.number)
        try:
            return await job.wait(2.0)
        except TimeoutError:
            return None

    async def abandon(self, job: Job) -> None:
        """Kill a command whose caller no longer waits; where the sandbox is gone, so is the command."""
        job.hang_up()
        with suppress(SandboxError):
            await self._kill(job.number)

    async def answer_to(self, job: Answer, timeout: float | None) -> wire.Message | None:
        """The end of a command; None where it was killed. Raises ``TimeoutError``."""
        if timeout is None:
            return await self._guard.awake(job.number, job.answer)
        if not job.used or timeout <= _NAP:
            return await job.wait(timeout)
        try:
            return await job.wait(_NAP)
        except TimeoutError:
            # Its supervisor was there before it: what ran meanwhile may have stopped it.
            self._guard.tell("wake", job=job.number)
            return await job.wait(timeout - _NAP)

    async def alive(self) -> bool:
        """Whether the sandbox can still run something."""
        for _ in range(_ALIVE_ATTEMPTS):
            if self.released or self._guard.ended.is_set():
                return False
            if await self._answers():
                return True
            await asyncio.sleep(0.05)  # the answer may have been killed with everything else
        return False

    async def explain_loss(self) -> None:
        """A job ended without an answer: raise if that is because the sandbox is gone."""
        self.check_open()
        if not await self.alive():
            self.check_open()
            raise await self._guard.wait_for_failure()

    def check_open(self) -> None:
        """Raise if the sandbox can no longer be used."""
        if self.released:
            raise SandboxReleased("the sandbox was released")
        if self._guard.ended.is_set():
            raise self._guard.failure()

    def end(self) -> None:
        """The sandbox is gone: whoever waits gets no answer."""
        for job in self._waiting:
            job.lose()
        self._waiting.clear()
        if self._idle is not None:
            self._idle.close()
            self._idle = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _answers(self) -> bool:
        job = self.answer()
        try:
            await self.post(job, {"op": "ping"})
            return await job.wait(5.0) is not None
        except (TimeoutError, SandboxError):
            return False
        finally:
            self.forget(job)

    async def _kill(self, number: int) -> None:
        if not self._guard.ended.is_set() and not self.released:
            await asyncio.shield(asyncio.ensure_future(self._guard.order("kill", job=number)))
