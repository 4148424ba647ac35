"""CPU of one model call: our client beside ``openai.AsyncOpenAI``, 64 calls in flight, paired rounds.

The stub server runs in a process of its own and answers with about 2 kB, as a chat reply with a tool
call has. Prints milliseconds of CPU in this process per call, and the ratio.

    python -m perf.model_calls [--calls 1000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from environments.config import APIServerConfig
from environments.inference.server_manager import ServerManager

IN_FLIGHT = 64
TOOL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command in the sandbox and return its output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
            "required": ["command"],
        },
    },
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You work in a terminal. " * 20},
    {"role": "user", "content": "Find out why the tests fail and mend the code. " * 10},
]


def reply() -> bytes:
    """A reply of about 2 kB."""
    arguments = json.dumps({"command": "python -m pytest -x -q tests/ 2>&1 | tail -n 40", "timeout": 120})
    call = {"id": "call_1", "type": "function", "function": {"name": "terminal", "arguments": arguments}}
    message = {
        "role": "assistant",
        "content": "I run the tests first to see what fails. " * 38,
        "tool_calls": [call],
    }
    usage = {"prompt_tokens": 512, "completion_tokens": 96, "total_tokens": 608}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "stub",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": usage,
    }
    return json.dumps(body).encode()


async def serve() -> None:
    """The stub: HTTP/1.1 with keep-alive, by hand, so that it costs little beside the clients."""
    body = reply()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = head.encode() + body

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.lower().split(b"\r\n")
                length = next(int(x.split(b":")[1]) for x in lines if x.startswith(b"content-length"))
                await reader.readexactly(length)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def cpu_per_call(call: Callable[[], Awaitable[Any]], count: int) -> float:
    """Milliseconds of CPU per call, ``IN_FLIGHT`` of them at a time."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await call()

    started = time.process_time()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return (time.process_time() - started) * 1000 / count


async def measure(port: int, calls: int, rounds: int) -> None:
    """Paired rounds, in turn, after one to warm up."""
    from openai import AsyncOpenAI

    url = f"http://127.0.0.1:{port}/v1"
    manager = ServerManager([APIServerConfig(base_url=url, model_name="stub")])
    theirs = AsyncOpenAI(base_url=url, api_key="none")

    async def our_call() -> None:
        answer = await manager.chat_completion(MESSAGES, [TOOL], temperature=1.0, max_tokens=512)
        assert answer.choices[0].message.tool_calls

    async def their_call() -> None:
        answer = await theirs.chat.completions.create(
            model="stub",
            messages=MESSAGES,  # type: ignore[arg-type]
            tools=[TOOL],  # type: ignore[list-item]
            temperature=1.0,
            max_tokens=512,
        )
        assert answer.choices[0].message.tool_calls

    ratios, ours_all, theirs_all = [], [], []
    async with manager, theirs:
        for index in range(rounds + 1):
            ours, other = await cpu_per_call(our_call, calls), await cpu_per_call(their_call, calls)
            if index:
                ours_all.append(ours)
                theirs_all.append(other)
                ratios.append(other / ours)
    print(f"reply {len(reply())} bytes, {IN_FLIGHT} in flight, {rounds} rounds of {calls} calls")
    print(f"ours   {statistics.median(ours_all):6.3f} ms CPU per call")
    print(f"openai {statistics.median(theirs_all):6.3f} ms CPU per call")
    print(f"ratio  {statistics.median(ratios):6.2f} (openai / ours)")


def main() -> None:
    """Start the stub and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
        return
    stub = subprocess.Popen(
        [sys.executable, "-m", "perf.model_calls", "--serve"],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[1],
    )
    try:
        assert stub.stdout is not None
        asyncio.run(measure(int(stub.stdout.readline()), options.calls, options.rounds))
    finally:
        stub.kill()
        stub.wait()


if __name__ == "__main__":
    main()
