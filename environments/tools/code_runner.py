"""The program that runs the model's Python code inside the sandbox; ``execute_code`` puts it there.

    python3 code_runner.py JOB

It forks: the child is the code, the parent relays its calls and keeps its output. JOB is a file with a line
of JSON, the parameters of each tool, and after it the code.

It needs Python 3.6 and nothing else. Towards the framework it speaks in short lines, because what a
sandbox prints is capped: ``code PID`` when the code begins; ``call N`` on standard output, whose content
is in JOB.call; the answer is a line of JSON on standard input; ``stop`` there ends the code. In the end
JOB.result is written and ``done`` printed.
"""

# For old Pythons. Next to nothing is imported until it is needed: that would be most of what a call costs.
# ruff: noqa: PTH105, PTH109, PTH123, UP031, SIM105, B905, BLE001

import os
import select
import sys
import time

MYPY = False
if MYPY:
    from typing import Any, Callable  # noqa: UP035

KEPT = 100000
"""Bytes kept of each end of what the code prints."""

LINGERING = 0.2
"""Seconds that output may still come after the code has ended, from what it started."""

SOON = 0.05
"""Seconds in which code that has closed all that leads here is expected to end."""


def main(job: str) -> None:
    """Run the code in a child process and report how it went."""
    requests, child_requests = os.pipe()
    child_replies, replies = os.pipe()
    printed, child_output = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        tell("code %d" % os.getpid())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(child_output, 1)
        os.dup2(child_output, 2)
        for descriptor in (requests, replies, printed, child_output):
            os.close(descriptor)
        be_the_code(job, child_requests, child_replies)
        return
    for descriptor in (child_requests, child_replies, child_output):
        os.close(descriptor)
    output = Output()
    relay = Relay(job, child, replies, output)
    relay.run(printed, requests)
    text, lost = output.report()
    result = '{"exit_code": %d, "stopped": %s, "lost": %d, "output": %s}'
    stopped = "true" if relay.stopped else "false"
    write_whole(job + ".result", result % (relay.wait(), stopped, lost, to_json(text)))
    tell("done")
    os._exit(0)


class Relay:
    """Passes calls and answers on until the code has ended."""

    def __init__(self, job: str, child: int, replies: int, output: "Output") -> None:
        self.job, self.child, self.replies, self.output = job, child, replies, output
        self.stopped = False
        self.status = None  # type: Any
        self.pending, self.incoming, self.number = b"", b"", 0

    def run(self, printed: int, requests: int) -> None:
        watched = {printed, requests, 0}
        ended_at = closed_at = None  # type: Any
        while True:
            if ended_at is None and self.has_ended():
                ended_at = time.time()
            if ended_at is not None and (printed not in watched or time.time() - ended_at > LINGERING):
                return
            wait = 0.05 if ended_at else 0.5
            if requests not in watched and ended_at is None:
                closed_at = closed_at or time.time()
                wait = 0.001 if time.time() - closed_at < SOON else 0.05
            for descriptor in select.select(watched, [], [], wait)[0]:
                data = os.read(descriptor, 65536)
                if not data:
                    watched.discard(descriptor)
                    if descriptor == 0:  # nobody listens any more
                        self.stop()
                        return
                elif descriptor == printed:
                    self.output.add(data)
                elif descriptor == requests:
                    self.pass_calls_on(data)
                else:
                    self.pass_answers_on(data, ended_at is None)

    def pass_calls_on(self, data: bytes) -> None:
        self.pending += data
        while b"\n" in self.pending:
            line, self.pending = self.pending.split(b"\n", 1)
            self.number += 1
            write_whole(self.job + ".call", line.decode("utf-8"))
            tell("call %d" % self.number)

    def pass_answers_on(self, data: bytes, runs: bool) -> None:
        self.incoming += data
        while b"\n" in self.incoming:
            line, self.incoming = self.incoming.split(b"\n", 1)
            if line == b"stop":
                self.stop()
            elif runs:
                send(self.replies, line + b"\n")

    def stop(self) -> None:
        """Kill the code and what it started in its session."""
        self.stopped = True
        try:
            os.killpg(self.child, 9)
        except OSError:
            pass

    def has_ended(self) -> bool:
        return self.status is not None or self.take(os.waitpid(self.child, os.WNOHANG))

    def wait(self) -> int:
        """The exit code, negative for a signal."""
        if self.status is None:
            self.take(os.waitpid(self.child, 0))
        status = self.status  # type: int
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def take(self, found: "Any") -> bool:
        if found[0]:
            self.status = found[1]
        return bool(found[0])


class Output:
    """The beginning and the end of what the code prints."""

    def __init__(self) -> None:
        self.head, self.tail, self.total = b"", b"", 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = KEPT - len(self.head)
        self.head += data[:room]
        self.tail = (self.tail + data[room:])[-KEPT:] if len(data) > room else self.tail

    def report(self) -> "Any":
        """What was kept as text, and the number of bytes that were not."""
        lost = self.total - len(self.head) - len(self.tail)
        return (self.head + self.tail).decode("utf-8", "replace"), lost


class Numbers:
    """How JSON is read by the part of ``json`` that is written in C."""

    strict, object_hook, object_pairs_hook, memo = True, None, None, {}  # type: Any, Any, Any, Any
    parse_float, parse_int = float, int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.get


def from_json(text: str) -> "Any":
    """The value of a JSON text. To import ``json`` would take as long as all the rest together."""
    try:
        from _json import make_scanner

        return make_scanner(Numbers)(text, 0)[0]  # type: ignore[arg-type]
    except Exception:  # another Python, or no JSON
        import json

        return json.loads(text)


def to_json(value: "Any") -> str:
    """A value as ASCII JSON; ``TypeError`` as of ``json`` where it is none."""
    try:
        from _json import encode_basestring_ascii, make_encoder

        encoder = make_encoder({}, refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)
        return "".join(encoder(value, 0))
    except Exception:  # another Python, or a value of another kind
        import json

        return json.dumps(value)


def refuse(value: "Any") -> "Any":
    raise TypeError("no JSON")


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
    with open(job, encoding="utf-8", newline="") as file:
        tools, code = file.readline(), file.read()
    finder = ToolsFinder(tools, requests, os.fdopen(replies, "rb"))
    sys.meta_path.insert(0, finder)
    sys.path[0] = os.getcwd()
    sys.argv = ["script.py"]
    main = type(sys)("__main__")
    main.__file__ = "script.py"
    main.__loader__ = Source(code)  # type: ignore[assignment]
    sys.modules["__main__"] = main
    try:
        exec(compile(code, "script.py", "exec"), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # the script's own: told as Python would tell it
        import traceback

        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.stdout.flush()
        traceback.print_exception(type(error), error, trace)
        sys.exit(1)


class Source:
    """Where tracebacks find the lines of the code."""

    def __init__(self, code: str) -> None:
        self.code = code

    def get_source(self, name: str) -> str:
        return self.code


class ToolsFinder:
    """Makes the module ``hermes_tools`` when it is imported."""

    def __init__(self, tools: str, requests: int, replies: "Any") -> None:
        self.tools, self.requests, self.replies = tools, requests, replies

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        return type(sys.__spec__)(name, self) if name == "hermes_tools" else None  # type: ignore[arg-type]

    def create_module(self, spec: "Any") -> "Any":
        return tools_module(from_json(self.tools), self.requests, self.replies)

    def exec_module(self, module: "Any") -> None:
        pass


def tools_module(tools: "dict[str, list[str]]", requests: int, replies: "Any") -> "Any":
    """A module with one function for each tool, and the helpers of the product."""
    from _thread import allocate_lock

    module = type(sys)("hermes_tools", "Your tools as functions; each returns its result as a dict.")
    lock = allocate_lock()

    def call(name: str, parameters: "list[str]", positional: "Any", named: "Any") -> "Any":
        if len(positional) > len(parameters):
            raise TypeError("%s takes at most %d arguments" % (name, len(parameters)))
        arguments = dict(zip(parameters, positional))
        twice = set(arguments) & set(named)
        if twice:
            raise TypeError("%s got %s twice" % (name, ", ".join(sorted(twice))))
        arguments.update(named)
        line = to_json({"name": name, "arguments": arguments}).encode("ascii") + b"\n"
        with lock:
            send(requests, line)
            answer = replies.readline()
        if not answer:
            raise RuntimeError("%s was not answered" % name)
        reply = from_json(answer.decode("utf-8"))
        if "refused" in reply:
            raise RuntimeError(reply["refused"])
        return reply["result"]

    def function(name: str, parameters: "list[str]") -> "Callable[..., Any]":
        def tool(*positional: "Any", **named: "Any") -> "Any":
            return call(name, parameters, positional, named)

        tool.__name__ = tool.__qualname__ = name
        tool.__doc__ = "%s(%s)" % (name, ", ".join(parameters))
        return tool

    for name, parameters in tools.items():
        setattr(module, name, function(name, parameters))
    for helper in (json_parse, shell_quote, retry):
        setattr(module, helper.__name__, helper)
    return module


def json_parse(text: str) -> "Any":
    """JSON, also with line breaks in strings."""
    import json

    return json.loads(text, strict=False)


def shell_quote(text: str) -> str:
    """A text as one word of a shell."""
    import shlex

    return shlex.quote(text)


def retry(function: "Callable[[], Any]", max_attempts: int = 3, delay: float = 2) -> "Any":
    """Call a function until it raises nothing; the delay between calls doubles."""
    for attempt in range(max_attempts):
        try:
            return function()
        except Exception:  # whatever the function may raise: that is what this is for
            if attempt + 1 >= max_attempts:
                raise
            time.sleep(delay * 2**attempt)
    return None


if __name__ == "__main__":
    main(sys.argv[1])
