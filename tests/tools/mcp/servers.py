"""Programs that speak MCP well or badly, for tests. Run with: python servers.py KIND [FILE]"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def good(**transport: Any) -> None:
    """Tools of every kind, with the official server of the ``mcp`` package."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server = MCPServer("good")
    count = 0

    @server.tool()
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def counted() -> int:
        """How often this was called."""
        nonlocal count
        count += 1
        return count

    @server.tool(name="state.with strange/name")
    def strange(state: str, self: str = "x") -> str:
        """Parameters with names that Python code likes for itself."""
        return f"{state} {self}"

    @server.tool()
    def environment() -> dict[str, str]:
        """The variables of this process."""
        return dict(os.environ)

    @server.tool()
    def fail() -> str:
        """Always fails."""
        raise ToolError("the moon is not up")

    @server.tool()
    def picture() -> Any:
        """A picture."""
        from mcp.server.mcpserver import Image

        return Image(data=b"\x89PNG\r\n\x1a\nnot really", format="png")

    @server.tool()
    def sleep(seconds: float) -> str:
        """Wait."""
        time.sleep(seconds)
        return "awake"

    @server.tool()
    def die() -> str:
        """End the server."""
        print("fatal: out of cheese", file=sys.stderr, flush=True)
        os._exit(3)

    server.run(**transport)


def over_http() -> None:
    """The same at http://127.0.0.1:PORT/mcp."""
    good(transport="streamable-http", port=int(sys.argv[2]))


def garbage() -> None:
    """Prints everything but messages."""
    for line in ("Welcome!", "{", '{"jsonrpc": "1.0"}', "\ufffd"):
        print(line, flush=True)
    time.sleep(60)


def dead() -> None:
    """Ends at once."""
    print("no licence found", file=sys.stderr)
    sys.exit(7)


def misbehaving() -> None:
    """Written by hand, one call after another: stops answering, or answers without a line end."""
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("well", "stuck", "endless")]
    server = {"capabilities": {"tools": {}}, "serverInfo": {"name": "m", "version": "1"}}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        tool = message.get("params", {}).get("name")
        if tool == "stuck":
            time.sleep(1000)
        if tool == "endless":
            while True:
                print("z" * 1_000_000, end="", flush=True)
        results = {
            "initialize": {"protocolVersion": "2025-06-18", **server},
            "tools/list": {"tools": tools},
            "tools/call": {"content": [{"type": "text", "text": str(os.getpid())}]},
        }
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] in results:
            answer["result"] = results[message["method"]]
        else:
            answer["error"] = {"code": -32601, "message": "no such method"}
        print(json.dumps(answer), flush=True)


def clinging() -> None:
    """Starts a process in a session of its own, writes its number down, and never ends by itself."""
    child = subprocess.Popen(["setsid", "sleep", "1000"])
    Path(sys.argv[2]).write_text(f"{os.getpid()} {child.pid}")
    good_without_end()


def good_without_end() -> None:
    """A server that goes on after its input was closed."""
    try:
        good()
    finally:
        time.sleep(1000)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
