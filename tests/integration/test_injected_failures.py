"""Runs in which all sorts of things go wrong give what an undisturbed run gives.

The model's server fails a third of its calls, a sandbox is killed while the model thinks, the disk for the
results is full, the run is killed with SIGKILL, an image is missing and a registry is down. To see it:
``HERMES_TEST_INJECTED_ATTEMPTS=10 pytest tests/integration/test_injected_failures.py -s``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from disturbed_model import WORDS, DisturbedModel, disturbed_model, is_right
from small_registry import EngineCalls, small_registry
from tasks.making import make_task
from verification.machines import in_sandbox

from environments.command_line import main
from environments.records import Attempt, Outcome
from environments.results.reading import final_attempts, read_attempts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

IMAGE = os.environ.get("HERMES_TEST_DOCKER_IMAGE", "sandbox/debian")
BUSYBOX = os.environ.get("HERMES_TEST_BUSYBOX_IMAGE", "sandbox/busybox")
CONTAINERS_EACH = int(os.environ.get("HERMES_TEST_INJECTED_ATTEMPTS", "2"))
"""Attempts at each of ten tasks in containers; 10 for a hundred of them, which takes minutes."""
TEST = """#!/bin/sh
if [ "$(cat /app/answer)" = {name} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
PATIENCE = 600.0
"""Seconds for one run, far more than it takes."""

Results = dict[tuple[str, int], tuple[str, float | None]]


def make_tasks(directory: Path, images: dict[str, str]) -> None:
    """One task for each name, with its image."""
    for name, image in images.items():
        settings = f'[environment]\nnetwork_mode = "no-network"\ndocker_image = "{image}"\n'
        task = make_task(directory / name, settings, test=TEST.format(name=name))
        (task / "instruction.md").write_text(f"{WORDS}{name} to /app/answer.\n")


class Command:
    """One ``hermes-env harbor_task evaluate``, to be given again and again."""

    def __init__(self, model: DisturbedModel, tasks: Path, output: Path, *options: str) -> None:
        self.output = output
        self._words = [
            *(sys.executable, "-m", "environments.command_line", "harbor_task", "evaluate"),
            *("--env.dataset_name", str(tasks), "--env.data_dir_to_save_evals", str(output)),
            *("--env.eval_concurrency", "12", "--env.use_wandb", "false", "--env.retry_backoff", "0.2"),
            *("--env.model_error_retries", "6", "--env.progress", "none"),
            *("--openai.server_type", "openai", "--openai.base_url", model.url, "--openai.timeout", "10"),
            *("--openai.model_name", "scripted", "--openai.api_key", "no-secret"),
            *options,
        ]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def run(self) -> tuple[int, str]:
        """Exit code and what was printed to standard error."""
        process = self.start()
        try:
            _, text = process.communicate(timeout=PATIENCE)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        print(f"exit code {process.returncode}\n{text}")
        return process.returncode, text

    def run_and_kill(self, enough: Callable[[], bool]) -> None:
        """Kill it with SIGKILL as soon as ``enough`` is true."""
        process = self.start()
        deadline = time.monotonic() + PATIENCE
        while not enough() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        _, text = process.communicate()
        print(f"killed after {self.scored()} attempts\n{text}")
        assert process.returncode == -signal.SIGKILL, "it had ended before it could be killed"

    def attempts(self) -> list[Attempt]:
        return final_attempts(read_attempts(self.output / "attempts.jsonl"))

    def results(self) -> Results:
        """Outcome and reward of each attempt."""
        return {(a.item_id, a.attempt): (str(a.outcome), a.reward) for a in self.attempts()}

    def scored(self) -> int:
        path = self.output / "attempts.jsonl"
        return path.read_bytes().count(b'"outcome":"scored"') if path.exists() else 0

    def samples(self) -> Results:
        """The same from ``samples.jsonl``."""
        lines = (self.output / "samples.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert len({(s["item_id"], s["attempt"]) for s in found}) == len(found)
        return {(s["item_id"], s["attempt"]): (s["outcome"], s["reward"]) for s in found}

    def pass_rate(self) -> float:
        metrics = json.loads((self.output / "metrics.json").read_text())
        return float(metrics["results"]["all"]["eval/pass_rate"])


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Callable[[], None] | None]:
    """A file system of this size at ``directory``, and how to make it large; None where none can be made."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        print("no small file system can be mounted here: the full disk is left out")
        yield None
        return

    def grow() -> None:
        subprocess.run(["mount", "-o", "remount,size=64m", str(directory)], check=True)

    try:
        yield grow
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def kill_local_sandbox(printed: str) -> None:
    """Kill the first process of the sandbox in which the agent had started ``sleep 4000.SEED``."""
    found = re.search(r"4000\.\d+", printed)
    assert found is not None, printed
    wanted = f"sleep {found[0]}"
    wait_for(lambda: any(_command(process) == wanted for process in _processes()))
    sleeper = next(process for process in _processes() if _command(process) == wanted)
    space = Path(f"/proc/{sleeper}/ns/pid").readlink()
    for process in _processes():
        try:
            if Path(f"/proc/{process}/ns/pid").readlink() == space and _number_within(process) == 1:
                os.kill(process, signal.SIGKILL)
                return
        except OSError:
            continue
    raise AssertionError("the sandbox has no first process")


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so, far longer than it takes."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _number_within(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"^NSpid:.*?(\d+)$", status, re.MULTILINE)[0])


def check_evidence(command: Command) -> None:
    """The killed sandbox was our failure, and tried again; nothing that went wrong became a score."""
    kinds = Counter(str(failure.outcome) for a in command.attempts() if a.valid for failure in a.failures)
    print("failures that were tried again:", dict(kinds))
    assert set(kinds) <= {"model_error", "sandbox_error", "verifier_error"} and kinds["sandbox_error"], kinds


def check_failing(model: DisturbedModel) -> None:
    """About a third of the calls have failed; fewer where more was run again after a kill."""
    failed = sum(number for kind, number in model.calls.items() if kind != "answered")
    share = failed / sum(model.calls.values())
    print(f"{share:.0%} of the model calls failed: {dict(model.calls)}")
    assert 0.1 < share < 0.5 and model.calls["hung"] and model.calls["429"] and model.calls["500"]


def undisturbed(tasks: Path, output: Path, attempts: int) -> Command:
    """The same run while nothing goes wrong, in local sandboxes."""
    with disturbed_model() as model:
        model.failing = False
        words = ["--env.terminal_backend", "local", "--env.task_images", "replay"]
        command = Command(model, tasks, output, *words, "--env.attempts", str(attempts))
        code, text = command.run()
    assert code == 0, text
    for attempt in command.attempts():
        assert attempt.seed is not None
        assert attempt.reward == float(is_right(attempt.item_id, attempt.seed))
    return command


@pytest.fixture
def isolated() -> None:
    """Skip where this machine has no sandbox with a file system of its own."""

    async def nothing(sandbox: object) -> None:
        return None

    in_sandbox(nothing)


def test_a_hundred_attempts_on_this_machine(tmp_path: Path, isolated: None) -> None:
    tasks, disk = tmp_path / "tasks", tmp_path / "disk"
    make_tasks(tasks, {f"task-{n:02}": IMAGE for n in range(20)})
    calm = undisturbed(tasks, tmp_path / "calm", 5)
    assert len(calm.results()) == 100
    with disturbed_model() as model, small_disk(disk, "150k") as grow:
        words = ["--env.terminal_backend", "local", "--env.task_images", "replay", "--env.attempts", "5"]
        command = Command(model, tasks, disk / "out", *words)
        if grow is not None:
            code, text = command.run()
            errors = [line for line in text.splitlines() if line.startswith("error:")]
            assert code == 1 and len(errors) == 1 and "No space left" in errors[0], text
            assert 0 < command.scored() < 100 and "Traceback" not in text
            grow()
        before = command.scored()
        command.run_and_kill(lambda: command.scored() >= before + 40)
        first = {a.key: a.started_at for a in command.attempts() if a.valid}
        model.kill = kill_local_sandbox
        code, text = command.run()
        assert code == 0, text
        assert model.kill is None, "the sandbox was killed"
        check_failing(model)
        check_evidence(command)
        again = {a.key: a.started_at for a in command.attempts()}
        assert first.items() <= again.items(), "what was finished was not run again"
        assert command.results() == command.samples() == calm.results()
        assert command.pass_rate() == calm.pass_rate()


def test_containers_with_a_missing_image_and_a_registry_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated: None
) -> None:
    host = os.environ.get("HERMES_TEST_DOCKER_HOST", "")
    if not host.startswith("unix://"):
        pytest.skip("HERMES_TEST_DOCKER_HOST names no Docker engine on this machine to test on")
    monkeypatch.setenv("DOCKER_HOST", host)
    engine = EngineCalls(host)
    tasks = tmp_path / "tasks"
    with disturbed_model() as model, small_registry(engine, BUSYBOX, down=4) as registry:
        unique = uuid.uuid4().hex[:8]
        missing, late = (f"127.0.0.1:{registry.port}/{name}/{unique}" for name in ("absent", "late"))
        images = {f"task-{n}": IMAGE for n in range(8)} | {"task-missing": missing, "task-late": late}
        make_tasks(tasks, images)
        calm = undisturbed(tasks, tmp_path / "calm", CONTAINERS_EACH)
        words = ["--env.terminal_backend", "docker", "--env.attempts", str(CONTAINERS_EACH)]
        command = Command(model, tasks, tmp_path / "out", *words)
        try:
            command.run_and_kill(lambda: command.scored() >= 3 * CONTAINERS_EACH)
            model.kill = lambda printed: _kill_container(engine, printed)
            code, text = command.run()
            found = command.results()
            assert code == 1 and missing in text, text
            absent = {key for key in found if key[0] == "task-missing"}
            assert {found[key] for key in absent} == {(str(Outcome.SANDBOX_ERROR), None)}
            assert len(absent) == CONTAINERS_EACH
            assert found.items() - {(key, found[key]) for key in absent} <= calm.results().items()
            assert len(found) == 10 * CONTAINERS_EACH and registry.refused == 4
            check_evidence(command)
            engine.tag(IMAGE, missing)
            code, text = command.run()
            assert code == 0, text
            assert command.results() == command.samples() == calm.results()
            assert command.pass_rate() == calm.pass_rate()
            check_failing(model)
            run_id = command.attempts()[0].run_id
            wait_for(lambda: engine.containers(run_id) == [])  # nothing is left on the engine
        finally:
            engine.untag(missing)
            engine.untag(late)


def _kill_container(engine: EngineCalls, printed: str) -> None:
    found = re.search(r"([0-9a-f]{12})\\n4000\.", printed)
    assert found is not None, printed
    engine.call("POST", f"/containers/{found[1]}/kill")


def test_kept_containers_are_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``hermes-env rescore`` with mended tests, over the containers that the agents left."""
    host = os.environ.get("HERMES_TEST_DOCKER_HOST", "")
    if not host.startswith("unix://"):
        pytest.skip("HERMES_TEST_DOCKER_HOST names no Docker engine on this machine to test on")
    monkeypatch.setenv("DOCKER_HOST", host)
    tasks = tmp_path / "tasks"
    make_tasks(tasks, {f"task-{n}": IMAGE for n in range(3)})
    with disturbed_model() as model:
        model.failing = False
        words = ["--env.terminal_backend", "docker", "--env.keep_sandboxes", "all"]
        command = Command(model, tasks, tmp_path / "out", *words, "--env.kept_sandbox_lifetime", "900")
        code, text = command.run()
        assert code == 0, text
        calls = model.calls["answered"]
        before = command.results()
        for name in ("task-0", "task-1"):  # whatever was written is right now, and the other way round
            script = TEST.format(name=name).replace(" = ", " != ")
            (tasks / name / "tests" / "test.sh").write_text(script)
        try:
            assert main(["rescore", str(command.output)]) == 0
            after = command.results()
            changed = {key for key in before if before[key] != after[key]}
            assert changed == {("task-0", 0), ("task-1", 0)} and "3 of 3 attempts" in capsys.readouterr().out
            assert all(after[key][1] == 1.0 - float(before[key][1] or 0.0) for key in changed)
            assert model.calls["answered"] == calls, "no model was called"
            code, text = command.run()
            assert code == 0 and command.results() == after, text
            assert model.calls["answered"] == calls, "and the changed tasks are not rolled out again"
        finally:
            main(["sandboxes", "reap", "--run", command.attempts()[0].run_id, "--backend", "docker"])
