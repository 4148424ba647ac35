"""The program that runs the model's Python code inside the sandbox; ``execute_code`` puts it there.

    python3 code_runner.py JOB            supervise: run the code, relay its calls, keep its output
    python3 code_runner.py JOB REQ REP    be the code, with pipes to the supervisor

It needs Python 3.6 and nothing else. Towards the framework it speaks in short lines, because what a
sandbox prints is capped: ``call N`` on standard output, whose content is in JOB.call; the answer is a line
of JSON on standard input; ``stop`` there ends the code. In the end JOB.result is written and ``done``
printed.
"""

# For old Pythons, and with as few imports as can be.
# ruff: noqa: PTH100, PTH105, PTH109, PTH123, UP031, SIM105, B905, BLE001

import json
import linecache
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
from typing import Any, Callable, Dict, List  # noqa: UP035

KEPT = 100000
"""Bytes kept of each end of what the code prints."""

LINGERING = 0.2
"""Seconds that output may still come after the code has ended, from what it started."""


def supervise(job: str) -> None:
    """Run the code in a child process and report how it went."""
    request_end, child_requests = os.pipe()
    child_replies, reply_end = os.pipe()
    arguments = [
        sys.executable,
        "-u",
        os.path.abspath(__file__),
        job,
        str(child_requests),
        str(child_replies),
    ]
    child = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(child_requests, child_replies),
        start_new_session=True,
    )
    os.close(child_requests)
    os.close(child_replies)
    output = Output()
    stopped = relay(job, child, request_end, reply_end, output)
    result = {"exit_code": child.wait(), "stopped": stopped}
    result.update(output.report())
    write_whole(job + ".result", json.dumps(result))
    tell("done")


def relay(job: str, child: Any, requests: int, replies: int, output: "Output") -> bool:
    """Pass calls and answers on until the code has ended; whether it was stopped."""
    printed = child.stdout.fileno()
    watched = {printed, requests, 0}
    ended_at: Any = None
    pending, incoming, number, stopped = b"", b"", 0, False
    while True:
        if ended_at is None and child.poll() is not None:
            ended_at = time.time()
        if ended_at is not None and (printed not in watched or time.time() - ended_at > LINGERING):
            return stopped
        ready = select.select(watched, [], [], 0.05 if ended_at or printed not in watched else 0.5)[0]
        for descriptor in ready:
            data = os.read(descriptor, 65536)
            if not data:
                watched.discard(descriptor)
                if descriptor == 0:  # nobody listens any more
                    stop(child)
                    return True
            elif descriptor == printed:
                output.add(data)
            elif descriptor == requests:
                pending += data
                while b"\n" in pending:
                    line, pending = pending.split(b"\n", 1)
                    number += 1
                    write_whole(job + ".call", line.decode("utf-8"))
                    tell("call %d" % number)
            else:
                incoming += data
                while b"\n" in incoming:
                    line, incoming = incoming.split(b"\n", 1)
                    if line == b"stop":
                        stopped = True
                        stop(child)
                    elif ended_at is None:
                        send(replies, line + b"\n")


def stop(child: Any) -> None:
    """Kill the code and what it started in its session."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass


class Output:
    """The beginning and the end of what the code prints."""

    def __init__(self) -> None:
        self.head, self.tail, self.total = b"", b"", 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = KEPT - len(self.head)
        self.head += data[:room]
        self.tail = (self.tail + data[room:])[-KEPT:] if len(data) > room else self.tail

    def report(self) -> Dict[str, Any]:  # noqa: UP006
        lost = self.total - len(self.head) - len(self.tail)
        text = (self.head + self.tail).decode("utf-8", "replace")
        return {"output": text, "lost": lost}


def write_whole(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    os.replace(path + ".new", path)


def tell(line: str) -> None:
    os.write(1, line.encode("ascii") + b"\n")


def send(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:  # the code has closed its end
        pass


def be_the_code(job: str, requests: int, replies: int) -> None:
    """Run the code as a script, with the tools in the module ``hermes_tools``."""
    with open(job, encoding="utf-8") as file:
        work = json.load(file)
    sys.modules["hermes_tools"] = tools_module(work["tools"], requests, os.fdopen(replies, "rb"))
    sys.path[0] = os.getcwd()
    sys.argv = ["script.py"]
    code = work["code"]
    lines = [line + "\n" for line in code.split("\n")]
    linecache.cache["script.py"] = (len(code), None, lines, "script.py")
    main = types.ModuleType("__main__")
    main.__file__ = "script.py"
    sys.modules["__main__"] = main
    try:
        exec(compile(code, "script.py", "exec"), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.stdout.flush()
        traceback.print_exception(type(error), error, trace)
        sys.exit(1)


def tools_module(tools: Dict[str, List[str]], requests: int, replies: Any) -> types.ModuleType:  # noqa: UP006
    """A module with one function for each tool, and the helpers of the product."""
    module = types.ModuleType("hermes_tools", "Your tools as functions; each returns its result as a dict.")
    lock = threading.Lock()

    def call(name: str, parameters: List[str], positional: Any, named: Any) -> Any:  # noqa: UP006
        if len(positional) > len(parameters):
            raise TypeError("%s takes at most %d arguments" % (name, len(parameters)))
        arguments = dict(zip(parameters, positional))
        twice = set(arguments) & set(named)
        if twice:
            raise TypeError("%s got %s twice" % (name, ", ".join(sorted(twice))))
        arguments.update(named)
        line = json.dumps({"name": name, "arguments": arguments}).encode("ascii") + b"\n"
        with lock:
            send(requests, line)
            answer = replies.readline()
        if not answer:
            raise RuntimeError("%s was not answered" % name)
        reply = json.loads(answer.decode("utf-8"))
        if "refused" in reply:
            raise RuntimeError(reply["refused"])
        return reply["result"]

    def function(name: str, parameters: List[str]) -> Callable[..., Any]:  # noqa: UP006
        def tool(*positional: Any, **named: Any) -> Any:
            return call(name, parameters, positional, named)

        tool.__name__ = tool.__qualname__ = name
        tool.__doc__ = "%s(%s)" % (name, ", ".join(parameters))
        return tool

    for name, parameters in tools.items():
        setattr(module, name, function(name, parameters))
    for helper in (json_parse, shlex.quote, retry):
        setattr(module, "shell_quote" if helper is shlex.quote else helper.__name__, helper)
    return module


def json_parse(text: str) -> Any:
    """JSON, also with line breaks in strings."""
    return json.loads(text, strict=False)


def retry(function: Callable[[], Any], max_attempts: int = 3, delay: float = 2) -> Any:
    """Call a function until it raises nothing; the delay between calls doubles."""
    for attempt in range(max_attempts):
        try:
            return function()
        except Exception:
            if attempt + 1 >= max_attempts:
                raise
            time.sleep(delay * 2**attempt)
    return None


if __name__ == "__main__":
    if len(sys.argv) == 2:
        supervise(sys.argv[1])
    else:
        be_the_code(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
