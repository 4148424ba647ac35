"""Our own tasks in containers: the oracle solves them, nothing does not, broken ones are called broken."""

from __future__ import annotations

import os

import pytest
from harbor_task_env.test_runs import TASKS

from environments.command_line import main

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
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["8"] == "8 tasks: 6 ok, 1 wrong, 1 not run", "\n".join(lines.values())
    assert "wrote neither" in lines["broken-verifier"] and "GPU" in lines["gpu-needed"]
