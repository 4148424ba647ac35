"""What is wrong with a task, as far as can be told without running it."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from environments.errors import ConfigError
from environments.tasks.dockerfile import read_dockerfile
from environments.tasks.model import Step, Task
from environments.tasks.task_file import SCHEMAS

Level = Literal["error", "warning", "note"]

LARGE_MEMORY_MB = 64 * 1024
LARGE_CPUS = 32.0

_FETCHES = re.compile(
    r"\b(?:apt(?:-get)?\s+(?:\S+\s+)*(?:install|update)|pip3?\s+install|uvx|uv\s+(?:pip|run|tool|sync)|curl|wget"
    r"|npm\s+(?:install|i|ci)|git\s+clone|cargo\s+(?:install|fetch)|go\s+get|conda\s+install|apk\s+add)\b"
)
_MISSED = {
    "mcp_servers": "it needs MCP servers, which are not offered",
    "tpu": "it needs a TPU, which no backend has",
    "collect": "it collects from its machine before the tests ([[verifier.collect]]), which is not supported",
}
"""Keys that are not carried out, without which a task is another one than its author meant."""
NO_SOLUTION = "solution/solve.sh is missing"
_NO_FILES = ("proc", "sys", "dev")
_PHASES = ("agent", "verifier")
_IMPORTS_SOLUTION = re.compile(r"^\s*(?:from|import)\s+(?:solution|main|app|src)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing. An ``error`` keeps the task from being run or graded."""

    level: Level
    text: str
    unsupported: bool = False
    """Whether an error is a limit of this package and no fault of the task."""


def check(task: Task) -> list[Finding]:
    """All findings of a task, errors first."""
    try:
        return _check(task)
    except (OSError, ConfigError) as error:  # its files may have changed since it was loaded
        return [Finding("error", f"it cannot be read: {error}")]


def faults(task: Task) -> list[str]:
    """What is wrong with a task wherever it is run: no agent could work on it, or no tests judge it."""
    return [f.text for f in check(task) if f.level == "error" and not f.unsupported]


def unsolved(task: Task) -> list[str]:
    """What the oracle needs and a task does not have."""
    return [f"{_prefix(s)}{NO_SOLUTION}" for s in task.steps if not s.solve_script.is_file()]


def unsupported(task: Task) -> list[str]:
    """What of a task is not supported on any backend."""
    return [finding.text for finding in check(task) if finding.unsupported]


def _check(task: Task) -> list[Finding]:
    found = [*_machine(task), *_image(task)]
    for step in task.steps:
        found += _step(task, step)
    if task.schema_version not in SCHEMAS:
        found.append(Finding("warning", f"schema {task.schema_version} is newer than what is known here"))
    found += [_unknown(task, name, value) for name, value in sorted(task.unknown.items())]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(dict.fromkeys(found), key=lambda finding: order[finding.level])


def _unknown(task: Task, name: str, value: Any) -> Finding:
    section, _, key = name.rpartition(".")
    if key in _MISSED and value:
        return Finding("error", _MISSED[key], True)
    phase = section.rpartition(".")[2]
    if key == "network_mode" and phase in _PHASES and value != (task.machine.network or "public"):
        return Finding("error", f"its {phase} alone has the network {value}, which is not supported", True)
    return Finding("note", f"the key {name} is not known here and has no effect")


def _machine(task: Task) -> list[Finding]:
    machine, found = task.machine, list[Finding]()
    if machine.os != "linux":
        found.append(Finding("error", f"it needs {machine.os}; only linux is offered", True))
    if machine.gpus:
        found.append(Finding("warning", f"it needs {machine.gpus} GPU: only backends that have one run it"))
    if (machine.memory_mb or 0) > LARGE_MEMORY_MB:
        found.append(Finding("warning", f"it asks for {machine.memory_mb} MB of memory"))
    if machine.memory_mb is not None and machine.memory_mb < 16:
        found.append(Finding("error", f"{machine.memory_mb} MB of memory are too few to run anything"))
    if machine.cpus is not None and not 0 < machine.cpus <= LARGE_CPUS:
        level: Level = "warning" if machine.cpus else "error"
        found.append(Finding(level, f"it asks for {machine.cpus:g} CPUs"))
    if machine.network == "allowlist" and not machine.allowed_hosts:
        found.append(Finding("error", "its network is an allowlist without hosts"))
    if machine.network == "allowlist":
        found.append(Finding("warning", "its network is limited to some hosts, which few backends can do"))
    if machine.allowed_hosts and machine.network != "allowlist":
        found.append(Finding("error", f"allowed_hosts contradicts network_mode {machine.network}"))
    if machine.network is None:
        found.append(Finding("note", "it does not say whether it needs a network"))
    return found


def _image(task: Task) -> list[Finding]:
    found: list[Finding] = []
    if task.compose_file is not None:
        found.append(Finding("error", "it needs several containers (compose), which is not supported", True))
    if task.dockerfile is None and task.machine.docker_image is None:
        found.append(Finding("error", "it has neither environment/Dockerfile nor docker_image"))
    if task.dockerfile is not None:
        replay = read_dockerfile(task.dockerfile)
        if replay.problems:
            lacking = ", ".join(replay.problems)
            found.append(Finding("note", f"its Dockerfile cannot be replayed without images: {lacking}"))
        if replay.users:
            users = ", ".join(replay.users)
            found.append(
                Finding("note", f"its Dockerfile needs a backend with users to be replayed: {users}")
            )
    return found


def _step(task: Task, step: Step) -> list[Finding]:
    found = list[Finding]()

    def say(level: Level, text: str) -> None:
        found.append(Finding(level, _prefix(step) + text))

    if not step.instruction:
        say("error", "instruction.md is missing or empty")
    if not step.test_script.is_file():
        say("error", "tests/test.sh is missing")
    else:
        _test_script(task, step, say)
    if not step.solve_script.is_file():
        say("warning", f"{NO_SOLUTION}: nothing shows that it can be solved")
    for script in (step.test_script, step.solve_script):
        if b"\r\n" in _bytes(script):
            say(
                "warning",
                f"{script.parent.name}/{script.name} has Windows line ends, which shells stumble over",
            )
    if step.verifier.mode == "separate" and not step.artifacts:
        say("note", "its separate verifier sees only /logs/artifacts, as no artifacts are declared")
    for path in _artifacts(step) if step.verifier.mode == "separate" else []:
        whole = "the whole machine" if path == "/" else "no files but the machine's state"
        say("error", f"its artifact {path} is {whole}, which cannot be carried to another; name what is made")
    if step.agent_timeout is None:
        say("note", "it sets no time for the agent")
    if step.agent_timeout is not None and step.agent_timeout <= 0:
        say("error", f"the agent has {step.agent_timeout:g} s")
    return found


def _artifacts(step: Step) -> list[str]:
    """Declared artifacts that are a machine rather than what somebody made in it."""
    sources = [artifact.source for artifact in step.artifacts if artifact.source.startswith("/")]
    paths = [posixpath.normpath(f"/{source.strip('/')}") for source in sources]
    return [path for path in paths if path == "/" or path.split("/")[1] in _NO_FILES]


def _prefix(step: Step) -> str:
    return f"step {step.name}: " if step.name else ""


def _test_script(task: Task, step: Step, say: object) -> None:
    assert callable(say)
    text = _text(step.test_script)
    if "reward" not in text and not any("reward" in _text(path) for path in _scripts(step.tests)):
        say("error", "nothing in tests/ writes a reward (/logs/verifier/reward.txt or reward.json)")
    fetched = sorted({match.group().split()[0] for match in _FETCHES.finditer(text)})
    network = (step.verifier.machine or task.machine).network
    if fetched and network == "no-network":
        say("warning", f"its tests fetch from a network that it does not have: {', '.join(fetched)}")
    elif fetched:
        say("note", f"its tests fetch from the network: {', '.join(fetched)}")
    if any(_IMPORTS_SOLUTION.search(_text(path)) for path in _scripts(step.tests)):
        say("note", "its tests import the solution: such code can say that it passed whatever it does")


def _scripts(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.suffix in (".py", ".sh") and path.is_file())


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
