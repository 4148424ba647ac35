"""Our own tasks in containers: the oracle solves them, nothing does not, broken ones are called broken."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from harbor_task_env.test_runs import TASKS, run
from tasks.making import make_task

from environments.command_line import main
from environments.config import HermesAgentEnvConfig
from environments.errors import SandboxError, SandboxReleased
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.registry import create_backend

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SOLVABLE = [
    "background-service",
    "permissions",
    "separate-primes",
    "sqlite-duplicates",
    "text-ledger",
    "two-step-inventory",
]
"""Tasks that need no more than the bare image of the test engines has."""


def use_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``DOCKER_HOST`` name the engine of the tests; skips where there is none."""
    host = os.environ.get("HERMES_TEST_DOCKER_HOST")
    if not host:
        pytest.skip("HERMES_TEST_DOCKER_HOST is not set")
    monkeypatch.setenv("DOCKER_HOST", host)


@pytest.mark.parametrize("backend", ["docker", "singularity"])
def test_our_own_tasks_on_an_image(
    backend: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "docker": ("HERMES_TEST_DOCKER_HOST", "docker_image", "sandbox/debian"),
        "singularity": ("HERMES_TEST_SINGULARITY_IMAGE", "singularity_image", None),
    }
    variable, field, image = options[backend]
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    if backend == "docker":
        monkeypatch.setenv("DOCKER_HOST", value)
    chosen = ",".join([*SOLVABLE, "broken-verifier", "gpu-needed"])
    arguments = [f"--env.{field}", image or value, "--env.task_filter", chosen]
    arguments += ["--env.terminal_backend", backend, "--env.task_images", "replay"]
    assert main(["tasks", "validate", str(TASKS), *arguments]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert lines["8"] == "8 tasks: 6 ok, 1 wrong, 1 not run", "\n".join(lines.values())
    assert "wrote neither" in lines["broken-verifier"] and "GPU" in lines["gpu-needed"]


AS_WORKER = """\
[ "$(id -un)" = worker ] || exit 1
id -un > ~/who; touch /logs/artifacts/mine
touch /root/planted 2>/dev/null || true
"""
OF_WORKER = """\
#!/bin/bash
[ "$(id -u)" = 0 ] && [ "$(cat /home/worker/who)" = worker ] && [ ! -e /root/planted ] &&
  [ "$(stat -c %U /home/worker/who /logs/artifacts/mine | uniq)" = worker ]
echo $((! $?)) > /logs/verifier/reward.txt
"""


def test_an_agent_is_the_user_that_its_task_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_docker(monkeypatch)
    make_task(
        tmp_path / "tasks" / "worker",
        '[agent]\nuser = "worker"\n[environment]\nnetwork_mode = "no-network"\n',
        test=OF_WORKER,
        solve=AS_WORKER,
        dockerfile="FROM debian:bookworm-slim\nRUN useradd --create-home worker\nWORKDIR /app\n",
    )
    settings = {"terminal_backend": "docker", "docker_image": "sandbox/debian"}
    (attempt,) = run(tmp_path, tmp_path / "tasks", **settings).attempts
    assert attempt.verdict is not None and attempt.reward == 1.0, attempt.failures or attempt.messages


@pytest.mark.parametrize("images", ["own", "replay"])
def test_the_user_of_a_dockerfile_works_and_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: str
) -> None:
    use_docker(monkeypatch)
    user = "RUN useradd --create-home worker\nWORKDIR /app\nCOPY --chown=worker given .\nUSER worker\n"
    made = "RUN id -un > /home/worker/built\n"
    task = make_task(
        tmp_path / "tasks" / "worker",
        '[environment]\nnetwork_mode = "no-network"\n',
        test='#!/bin/bash\n[ "$(cat ~/built)$(id -un)$(cat ~/who)$(stat -c %U /app/given)" = '
        "workerworkerworkerworker ]\necho $((! $?)) > /logs/verifier/reward.txt\n",
        solve="#!/bin/bash\nid -un > ~/who; touch /logs/artifacts/mine\n",
        dockerfile=f"FROM sandbox/debian\n{user}{made}",
    )
    (task / "environment" / "given").write_text("x")
    settings = {"terminal_backend": "docker", "docker_image": "sandbox/debian", "task_images": images}
    (attempt,) = run(tmp_path, tmp_path / "tasks", **settings).attempts
    assert attempt.verdict is not None and attempt.reward == 1.0, attempt.failures or attempt.messages


def test_tests_as_a_user_of_their_own_can_write_the_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_docker(monkeypatch)
    make_task(
        tmp_path / "tasks" / "nobody",
        '[verifier]\nuser = "nobody"\n[environment]\nnetwork_mode = "no-network"\n',
        test='#!/bin/bash\n[ "$(id -un)" = nobody ]; echo $((! $?)) > /logs/verifier/reward.txt\n',
        dockerfile="FROM sandbox/debian\n",
    )
    settings = {"terminal_backend": "docker", "task_images": "own"}
    (attempt,) = run(tmp_path, tmp_path / "tasks", **settings).attempts
    assert attempt.verdict is not None and attempt.reward == 1.0, attempt.failures or attempt.messages


def test_files_and_processes_are_those_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    use_docker(monkeypatch)

    async def main() -> None:
        backend = create_backend("docker", HermesAgentEnvConfig(docker_image="sandbox/debian"), "users")
        await backend.check()
        try:
            sandbox = await backend.create(SandboxSpec())
            other = await sandbox.as_user("nobody")
            await other.write_bytes("/tmp/of-nobody", b"x")
            process = await other.spawn("id -un; touch /root/x")
            await process.wait(30)
            assert (await process.read()).split(b"\n")[0] == b"nobody"
            owner = (await sandbox.exec("stat -c %U /tmp/of-nobody; id -un")).text.split()
            assert owner == ["nobody", "root"]
            with pytest.raises(PermissionError):
                await other.read_bytes("/root/.bashrc")
            with pytest.raises(SandboxError, match="no-such-user"):
                await sandbox.as_user("no-such-user")
            await sandbox.close()
            with pytest.raises(SandboxReleased):
                await other.exec("true")
        finally:
            await backend.close()

    asyncio.run(main())
