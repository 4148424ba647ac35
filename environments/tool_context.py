"""The reward function's hands in the rollout's sandbox.

Every method comes in two forms: plain (``ctx.terminal("pytest")``) for code written like the
documentation, and awaitable (``await ctx.aio.terminal("pytest")``). Neither stalls other rollouts.
Files and processes are as the model left them. Commands run in a shell of their own that begins in
the model's working directory but has none of its aliases, functions and variables, so that a shell
function called ``cat`` is not what reads the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from environments.attempt_scope import current_attempt
from environments.errors import SandboxReleased

if TYPE_CHECKING:
    from environments.records import Attempt
    from environments.rollout import Rollout
    from environments.sandboxes.base import Sandbox
    from environments.sandboxes.shell import Shell
    from environments.tools.toolbox import Toolbox

READ_LIMIT = 10_000_000
"""Bytes of a file that ``read_file`` gives. Every rollout may hold one, and text that is graded is
far smaller; what is larger goes to disk with ``download_file``."""

_DECODE_INLINE = 1_000_000
"""Bytes that are decoded on the event loop: about a millisecond's work. More goes to a thread."""

T = TypeVar("T")
JSON = dict[str, Any]


class ToolContext:
    """Plain access to one rollout's sandbox and tools, found by its ``task_id``."""

    def __init__(self, task_id: str, *, rollout: Rollout | None = None) -> None:
        self.task_id = task_id
        scope = rollout.scope if rollout is not None else current_attempt.get()
        if scope is None:
            raise RuntimeError(f"ToolContext({task_id!r}): no attempt is running here")
        self._loop = scope.loop
        self.aio = AsyncToolContext(task_id, rollout)

    @property
    def rescoring(self) -> Attempt | None:
        """The finished attempt, while it is judged again; else None."""
        return self.aio.rescoring

    def _plainly(self, coroutine: Coroutine[Any, Any, T]) -> T:
        from environments import plain_calls

        return plain_calls.call(self.aio.guarded(coroutine), self._loop)

    def terminal(self, command: str, timeout: float = 180) -> JSON:
        """Run a command: ``{"exit_code", "output", "error"}``; 124 after ``timeout`` seconds."""
        return self._plainly(self.aio.terminal(command, timeout))

    def read_file(self, path: str) -> JSON:
        """Read a text file whole: ``{"content", "file_size", "total_lines"}`` or ``{"error"}``.

        A file above ``READ_LIMIT`` bytes is an error; ``download_file`` takes larger ones.
        """
        return self._plainly(self.aio.read_file(path))

    def write_file(self, path: str, content: str) -> JSON:
        """Write a text file: ``{"bytes_written"}`` or ``{"error"}``."""
        return self._plainly(self.aio.write_file(path, content))

    def search(self, query: str, path: str = ".") -> JSON:
        """Search file contents for a regular expression, as the tool ``search_files`` does."""
        return self._plainly(self.aio.search(query, path))

    def upload_file(self, local_path: str | Path, remote_path: str) -> JSON:
        """Copy a file of this machine into the sandbox."""
        return self._plainly(self.aio.upload_file(local_path, remote_path))

    def upload_dir(self, local_dir: str | Path, remote_dir: str) -> JSON:
        """Copy a directory of this machine into the sandbox."""
        return self._plainly(self.aio.upload_dir(local_dir, remote_dir))

    def download_file(self, remote_path: str, local_path: str | Path) -> JSON:
        """Copy a file of the sandbox to this machine, any bytes, up to 4 GiB."""
        return self._plainly(self.aio.download_file(remote_path, local_path))

    def download_dir(self, remote_dir: str, local_dir: str | Path) -> JSON:
        """Copy a directory of the sandbox to this machine; what would escape ``local_dir`` is refused."""
        return self._plainly(self.aio.download_dir(remote_dir, local_dir))

    def web_search(self, query: str) -> JSON:
        """Search the web, as the tool of that name does."""
        return self._plainly(self.aio.web_search(query))

    def web_extract(self, urls: list[str]) -> JSON:
        """Read web pages, as the tool of that name does."""
        return self._plainly(self.aio.web_extract(urls))

    def browser_navigate(self, url: str) -> JSON:
        """Open a page in the rollout's browser."""
        return self._plainly(self.aio.browser_navigate(url))

    def browser_snapshot(self) -> JSON:
        """What the rollout's browser shows."""
        return self._plainly(self.aio.browser_snapshot())

    def call_tool(self, name: str, args: JSON | None = None) -> str:
        """Call any tool by name; its result as JSON text, as the model would get it."""
        return self._plainly(self.aio.call_tool(name, args))

    def cleanup(self) -> None:
        """Release the sandbox and all that belongs to it."""
        self._plainly(self.aio.cleanup())


class AsyncToolContext:
    """The awaitable form of ``ToolContext``."""

    def __init__(self, task_id: str, rollout: Rollout | None = None) -> None:
        self.task_id = task_id
        self._rollout = rollout
        self._shell: Shell | None = None
        self._toolbox: Toolbox | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def guarded(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a call so that ``interrupt`` reaches it, also from a thread that waits for it."""
        task = asyncio.current_task()
        if task is None:
            return await coroutine
        self._running.add(task)
        try:
            return await coroutine
        finally:
            self._running.discard(task)

    async def interrupt(self) -> None:
        """Stop calls that threads still wait for."""
        current = asyncio.current_task()
        for task in [task for task in self._running if task is not current]:
            task.cancel()

    @property
    def rescoring(self) -> Attempt | None:
        """See ``ToolContext.rescoring``."""
        rollout = self._rollout
        return rollout.record if rollout is not None and rollout.rescoring else None

    async def _owner(self) -> Rollout:
        if self._rollout is None:
            from environments.named_rollouts import rollout_for_task

            self._rollout = await rollout_for_task(self.task_id)
        if self._rollout.finished and not self._rollout.rescoring:
            raise SandboxReleased(
                "an earlier run finished this attempt and its sandbox is gone; use `await r.score(result)`"
            )
        return self._rollout

    async def sandbox(self) -> Sandbox:
        """The rollout's sandbox itself."""
        return await (await self._owner()).sandbox()

    async def terminal(self, command: str, timeout: float = 180) -> JSON:
        """See ``ToolContext.terminal``."""
        from environments.tools.text import decode, shorten, strip_escapes

        if self._shell is None:
            self._shell = await self._own_shell()
        result = await self._shell.run(command, timeout=timeout)
        output = shorten(strip_escapes(decode(result.stdout)))
        error = f"timed out after {timeout:g} s" if result.timed_out else None
        return {"exit_code": result.exit_code, "output": output, "error": error}

    async def _own_shell(self) -> Shell:
        from environments.sandboxes.shell import Shell
        from environments.tools.shell_state import current_directory

        rollout = await self._owner()
        sandbox = await rollout.sandbox()
        shell = Shell(sandbox)
        shell.cwd = current_directory((await rollout.toolbox()).state)
        return shell

    async def read_file(self, path: str) -> JSON:
        """See ``ToolContext.read_file``."""
        from environments.sandboxes.reading import read_start

        sandbox = await self.sandbox()
        try:
            data, size = await read_start(sandbox, path, READ_LIMIT)
        except OSError as error:
            return {"error": f"cannot read {path}: {error.strerror or error}", "content": ""}
        if size > READ_LIMIT:
            text = f"{path} is {size} bytes, more than {READ_LIMIT}; use download_file"
            return {"error": text, "content": "", "file_size": size}
        if size > _DECODE_INLINE:
            return await asyncio.to_thread(_file_content, data)
        return _file_content(data)

    async def write_file(self, path: str, content: str) -> JSON:
        """See ``ToolContext.write_file``."""
        sandbox = await self.sandbox()
        data = content.encode()
        try:
            await sandbox.write_bytes(path, data)
        except OSError as error:
            return {"error": f"cannot write {path}: {error.strerror or error}"}
        return {"bytes_written": len(data)}

    async def search(self, query: str, path: str = ".") -> JSON:
        """See ``ToolContext.search``."""
        return await self._tool_json("search_files", {"pattern": query, "path": path})

    async def upload_file(self, local_path: str | Path, remote_path: str) -> JSON:
        """See ``ToolContext.upload_file``."""
        from environments.sandboxes import transfer

        return await self._transfer(transfer.upload_file, local_path, remote_path)

    async def upload_dir(self, local_dir: str | Path, remote_dir: str) -> JSON:
        """See ``ToolContext.upload_dir``."""
        from environments.sandboxes import transfer

        return await self._transfer(transfer.upload_dir, local_dir, remote_dir)

    async def download_file(self, remote_path: str, local_path: str | Path) -> JSON:
        """See ``ToolContext.download_file``."""
        from environments.sandboxes import transfer

        return await self._transfer(transfer.download_file, remote_path, local_path)

    async def download_dir(self, remote_dir: str, local_dir: str | Path) -> JSON:
        """See ``ToolContext.download_dir``."""
        from environments.sandboxes import transfer

        return await self._transfer(transfer.download_dir, remote_dir, local_dir)

    async def _transfer(self, operation: Any, source: str | Path, target: str | Path) -> JSON:
        sandbox = await self.sandbox()
        try:
            moved = await operation(sandbox, source, target)
        except OSError as error:
            text = f"{error.strerror or error}"
            return {
                "success": False,
                "exit_code": 1,
                "output": text,
                "error": f"{source} to {target}: {text}",
            }
        return {"success": True, "exit_code": 0, "output": "", "bytes": moved}

    async def web_search(self, query: str) -> JSON:
        """See ``ToolContext.web_search``."""
        return await self._tool_json("web_search", {"query": query})

    async def web_extract(self, urls: list[str]) -> JSON:
        """See ``ToolContext.web_extract``."""
        return await self._tool_json("web_extract", {"urls": urls})

    async def browser_navigate(self, url: str) -> JSON:
        """See ``ToolContext.browser_navigate``."""
        return await self._tool_json("browser_navigate", {"url": url})

    async def browser_snapshot(self) -> JSON:
        """See ``ToolContext.browser_snapshot``."""
        return await self._tool_json("browser_snapshot", {})

    async def call_tool(self, name: str, args: JSON | None = None) -> str:
        """See ``ToolContext.call_tool``."""
        if self._toolbox is None:
            from environments.tools.registry import all_tools
            from environments.tools.toolbox import Toolbox

            rollout = await self._owner()
            environment = rollout.environment
            reached = [*all_tools().values(), *environment.unselected_tools, *environment.brought_tools]
            self._toolbox = Toolbox(reached, (await rollout.toolbox()).state)
        lacking = self._toolbox.lacking(name)
        if lacking is not None:
            return json.dumps({"error": lacking})
        outcome = await self._toolbox.call(name, args or {})
        return outcome.content

    async def _tool_json(self, name: str, args: JSON) -> JSON:
        result = json.loads(await self.call_tool(name, args))
        return result if isinstance(result, dict) else {"result": result}

    async def cleanup(self) -> None:
        """See ``ToolContext.cleanup``."""
        await (await self._owner()).release()


def _file_content(data: bytes) -> JSON:
    content = data.decode("utf-8", "replace")
    return {
        "content": content,
        "file_size": len(data),
        "total_lines": content.count("\n") + (content[-1:] not in ("", "\n")),
    }


def handle_function_call(
    name: str, arguments: dict[str, Any] | None = None, task_id: str | None = None
) -> str:
    """Call a tool of the rollout at hand from plain code; its result as JSON text."""
    scope = current_attempt.get()
    if task_id is None and scope is not None and scope.rollouts:
        task_id = next(iter(scope.rollouts))
    if task_id is None:
        return json.dumps({"error": "no rollout is running here"})
    return ToolContext(task_id).call_tool(name, arguments)
