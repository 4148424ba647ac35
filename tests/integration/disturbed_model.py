"""A model server with a scripted policy that fails a third of its calls, and can kill a sandbox.

The policy writes an answer to a file and stops. Whether the answer is right depends on the task and the
attempt's seed alone, so that every run has the same results if nothing of ours goes wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aiohttp import web
from servers.thread import LoopThread

WORDS = "Write the answer of "
"""What a task's instruction begins with; its name comes next."""

_HANG = 30.0


class DisturbedModel:
    """Serves chat completions. ``failing`` turns failures on. ``kill`` is called once, while the model thinks
    about the next command of some conversation, with what the first one printed."""

    def __init__(self) -> None:
        self.failing = True
        self.kill: Callable[[str], None] | None = None
        self.calls: Counter[str] = Counter()
        """Calls by what became of them."""
        self.port = 0
        self.over = asyncio.Event()
        """Set at the end, so that nothing hangs any longer."""
        self._seen: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> web.AppRunner:
        """Listen on a free port."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self.port = runner.addresses[0][1]
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        messages = body["messages"]
        task = next(m["content"] for m in messages if m["role"] == "user")[len(WORDS) :].split()[0]
        step = sum(m["role"] == "assistant" for m in messages)
        if self.failing:
            failure = await self._failure(f"{task}/{body.get('seed')}/{step}")
            if failure is not None:
                return failure
        if step == 1 and self.kill is not None:
            kill, self.kill = self.kill, None
            await asyncio.to_thread(kill, str(messages[-1]["content"]))
        self.calls["answered"] += 1
        message = policy(task, int(body["seed"]), step)
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response({"id": "c", "model": "scripted", "choices": [choice], "usage": usage})

    async def _failure(self, call: str) -> web.Response | None:
        """Half of all calls fail when they come for the first time: a third of the calls in all."""
        if call in self._seen:
            return None
        self._seen.add(call)
        draw = hashlib.sha256(call.encode()).digest()
        if draw[0] % 2:
            return None
        if draw[1] % 24 == 0:
            self.calls["hung"] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(_HANG):
                    await self.over.wait()
            return web.Response(status=504)
        status = (429, 500, 503)[draw[1] % 3]
        self.calls[str(status)] += 1
        headers = {"Retry-After": "0.1"} if status == 429 and draw[2] % 2 else {}
        return web.Response(
            status=status, text=json.dumps({"error": {"message": "not now"}}), headers=headers
        )


def is_right(task: str, seed: int) -> bool:
    """Whether the policy's answer is right: two of three are."""
    return hashlib.sha256(f"{task}:{seed}".encode()).digest()[0] % 3 != 0


def policy(task: str, seed: int, step: int) -> dict[str, Any]:
    """The next message: look around and start something, write the answer, stop."""
    answer = task if is_right(task, seed) else "wrong"
    commands = [
        f"cat /proc/sys/kernel/hostname; setsid sleep 4000.{seed} > /dev/null 2>&1 & echo 4000.{seed}",
        f"mkdir -p /app && echo {answer} > /app/answer",
    ]
    if step >= len(commands):
        return {"role": "assistant", "content": "It is written."}
    function = {"name": "terminal", "arguments": json.dumps({"command": commands[step]})}
    call = {"id": f"call-{seed}-{step}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@contextmanager
def disturbed_model() -> Iterator[DisturbedModel]:
    """A model server in a thread of its own."""
    thread = LoopThread()
    model = DisturbedModel()
    runner = thread.run(model.start())
    try:
        yield model
    finally:
        thread.loop.call_soon_threadsafe(model.over.set)
        thread.run(runner.cleanup())
        thread.stop()
