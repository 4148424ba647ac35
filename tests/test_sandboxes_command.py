"""Sandboxes that outlive their rollouts, and ``hermes-env sandboxes``, on the local backend."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from file_environment import FileEnv, calls, environment

from environments import keeping
from environments.cleanup import cleanup_all_environments
from environments.command_line import main
from environments.errors import SandboxReleased
from environments.records import Attempt, Verdict

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sandboxes in a directory of the test's own, out of sight of other runs and they of it."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield
    if list(tmp_path.glob("hermes-environments-*/*-*")):
        command("reap", "--all")


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "environments.command_line", "sandboxes", *arguments]
    if arguments and "--backend" not in arguments:
        line[5:5] = ["--backend", "local"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, input=stdin, capture_output=True, text=True, env=environment, check=False)


def listed() -> list[dict[str, Any]]:
    found = command("list", "--json")
    assert found.returncode == 0
    return [json.loads(line) for line in found.stdout.splitlines()]


def run(tmp_path: Path, *items: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    """Roll items out; what the records say of their sandboxes."""
    asyncio.run(environment(tmp_path, *items, **settings).process_manager())
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    attempts = [attempt for row in rows for attempt in row["metadata"]]
    return [attempt["sandbox"] for attempt in sorted(attempts, key=lambda attempt: attempt["item_id"])]


GOOD = {"commands": ["echo good >f"], "reward": lambda ctx, result: 1.0}
BAD = {"commands": ["echo bad >f"], "reward": lambda ctx, result: 0.0}


def test_nothing_is_kept_unless_asked_for(tmp_path: Path) -> None:
    (sandbox,) = run(tmp_path, BAD)
    assert sandbox["kept_until"] is None
    assert listed() == []


def test_failed_keeps_what_did_not_pass_and_says_how_to_enter_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    good, bad = run(tmp_path, GOOD, BAD, keep_sandboxes="failed", kept_sandbox_lifetime=300)
    assert good["kept_until"] is None
    (entry,) = listed()
    assert entry["id"] == bad["id"]
    assert entry["deadline"] == pytest.approx(bad["kept_until"], abs=5)
    assert (entry["state"], entry["kept"]) == ("kept", True)
    assert f"hermes-env sandboxes shell {bad['id']} --backend local" in caplog.text + capfd.readouterr().err

    entered = command("shell", bad["id"], stdin="cat f; exit 7\n")
    assert (entered.stdout, entered.returncode) == ("bad\n", 7)
    ran = command("shell", bad["id"], "sh", "-c", "echo $0 $1; pwd", "a b", "c")
    assert (ran.stdout, ran.returncode) == ("a b c\n/home/user\n", 0)
    assert bad["id"] in command("list").stdout


class Serving(FileEnv):
    def oracle(self, item: Any) -> list[Any]:
        started = calls("terminal", command="sleep 4000000", background=True)
        return [started, {"role": "assistant", "content": "done"}]


def test_what_the_agent_left_running_is_kept_too(tmp_path: Path) -> None:
    (sandbox,) = run(tmp_path, GOOD, base=Serving, keep_sandboxes="all")
    ran = command("shell", sandbox["id"], "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep 4000000" in ran.stdout


def test_all_keeps_all_and_the_next_run_leaves_them_alone(tmp_path: Path) -> None:
    assert all(sandbox["kept_until"] for sandbox in run(tmp_path, GOOD, BAD, keep_sandboxes="all"))
    run(tmp_path, GOOD, keep_sandboxes="none", data_path_to_save_groups=str(tmp_path / "next.jsonl"))
    assert len(listed()) == 2
    assert command("reap").stdout == "0 removed\n"
    first, second = listed()
    named = command("reap", first["id"])
    assert named.stdout.splitlines()[-1] == "1 removed"
    assert [entry["id"] for entry in listed()] == [second["id"]]
    assert command("reap", "--run", second["run"]).stdout.splitlines()[-1] == "1 removed"
    assert listed() == []
    assert not list((tmp_path / f"hermes-environments-{os.geteuid()}").glob("*/*-*"))


def test_a_deadline_ends_it(tmp_path: Path) -> None:
    run(tmp_path, BAD, keep_sandboxes="all", kept_sandbox_lifetime=1)
    for _ in range(100):
        if not listed():
            break
    assert listed() == []


def test_attempts_that_are_kept() -> None:
    record = Attempt(run_id="r", environment="e", item_id="i", group_id="g", attempt=0)
    assert not keeping.is_wanted("failed", record, None)
    assert keeping.is_wanted("failed", record, ValueError())
    assert not keeping.is_wanted("failed", record, asyncio.CancelledError())
    assert keeping.is_wanted("all", record, asyncio.CancelledError())
    for verdict, failed in (
        (Verdict(1.0, passed=True), False),
        (Verdict(0.5, passed=False), True),
        (Verdict(0.5), False),
        (Verdict(0.0), True),
    ):
        record.verdicts = [verdict]
        assert keeping.is_wanted("failed", record, None) is failed
        assert not keeping.is_wanted("none", record, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lst"], "unknown action 'lst'; did you mean list?"),
        (["list", "x"], "unexpected argument 'x'"),
        (["list", "--jsn"], "did you mean --json"),
        (["shell"], "which one?"),
        (["shell", "--run", "x"], "unknown option --run"),
        (["reap", "--all", "--expired"], "--all and --expired exclude each other"),
        (["reap", "x", "--run", "y"], "exclude each other"),
        (["list", "--backend"], "--backend needs a value"),
        (["list", "--env.ssh_hst", "x"], "did you mean --env.ssh_host"),
        (["list", "--env.ssh_port", "x"], "--env.ssh_port: "),
        (["list", "--backend", "dokcer"], "did you mean docker?"),
        (["shell", "nix", "--backend", "local"], "unknown sandbox 'nix'"),
        (["list", "--run", "nix", "--backend=local"], "unknown run 'nix'"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sandboxes", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_near_names_of_sandboxes(tmp_path: Path) -> None:
    (sandbox,) = run(tmp_path, BAD, keep_sandboxes="all")
    wrong = command("reap", f"{sandbox['id']}x")
    assert wrong.returncode == 2
    assert f"did you mean {sandbox['id']}?" in wrong.stderr
    assert command("reap", sandbox["id"][:-2]).returncode == 0


def test_a_backend_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    named = command("list", "--backend", "docker")
    assert (named.returncode, named.stdout) == (1, "no sandboxes\n")
    assert "error: docker: " in named.stderr
    assert "no.sock" in named.stderr
    reap = command("reap", "--backend", "docker")
    assert (reap.returncode, reap.stdout) == (1, "0 removed\n")


class Impatient(FileEnv):
    async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
        assert cleanup_all_environments() >= 1
        with pytest.raises(SandboxReleased):
            ctx.terminal("true")
        return 1.0


def test_all_sandboxes_of_the_process_can_be_given_back(tmp_path: Path) -> None:
    (sandbox,) = run(tmp_path, GOOD, base=Impatient)
    assert sandbox["backend"] == "local"
    assert listed() == []
    assert cleanup_all_environments() == 0


def test_given_back_from_the_loop_itself(tmp_path: Path) -> None:
    class Own(FileEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            async with self.rollout(self.items[0]) as rollout:
                sandbox = await rollout.sandbox()
                assert cleanup_all_environments() == 1
                with pytest.raises(SandboxReleased):
                    await rollout.sandbox()
                for _ in range(200):
                    if not await sandbox.alive():
                        break
                    await asyncio.sleep(0.05)
                assert not await sandbox.alive()
            await self.evaluate_log({"x": 1.0})

    asyncio.run(environment(tmp_path, GOOD, base=Own).evaluate_manager())
