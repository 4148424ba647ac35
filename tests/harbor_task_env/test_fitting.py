"""What a task gets of a backend, and what it is refused for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks.making import make_task

from environments.command_line import main
from environments.harbor_task_env.config import HarborTaskEnvConfig
from environments.harbor_task_env.fitting import agent_timeout, misfits, spec_of, user_of, verifier_timeout
from environments.sandboxes.base import Capabilities
from environments.tasks.directory import load_task
from environments.tasks.model import Task

DOCKER = Capabilities(images=True, network_modes=frozenset({"none", "public"}), gpu=True, users=True)
LOCAL = Capabilities(network_modes=frozenset({"none", "public"}))


def a_task(directory: Path, settings: str, **parts: str) -> Task:
    return load_task(make_task(directory / "task", settings, **parts))  # type: ignore[arg-type]


def config(**fields: object) -> HarborTaskEnvConfig:
    return HarborTaskEnvConfig.model_validate({"terminal_backend": "docker", **fields})


def test_a_machine_is_as_the_task_says_times_the_multipliers(tmp_path: Path) -> None:
    task = a_task(
        tmp_path,
        "[agent]\ntimeout_sec = 5000\n[environment]\ncpus = 2\nmemory_mb = 1000\nstorage_mb = 50\ngpus = 1\n"
        'workdir = "/w"\nnetwork_mode = "no-network"\ndocker_image = "i:1"\n'
        'env = { A = "${NOT_SET_HERE:-b}" }\n',
    )
    spec = spec_of(task, config(cpus_multiplier=2, memory_multiplier=1.5, terminal_lifetime=100))
    assert (spec.image, spec.network.mode, spec.working_directory) == ("i:1", "none", "/w")
    resources = spec.resources
    assert (resources.cpus, resources.memory_mb, resources.storage_mb, resources.gpus) == (4.0, 1500, 50, 1)
    assert spec.environment == {"A": "b"}
    assert spec.lifetime > 5000 + 2 * 600


def test_times_of_the_task_win_and_settings_fill_gaps(tmp_path: Path) -> None:
    silent = a_task(tmp_path / "a", "").steps[0]
    saying = a_task(tmp_path / "b", "[agent]\ntimeout_sec = 100\n[verifier]\ntimeout_sec = 50\n").steps[0]
    settings = config(
        task_timeout=10, test_timeout=20, agent_timeout_multiplier=2, verifier_timeout_multiplier=3
    )
    assert (agent_timeout(silent, settings), verifier_timeout(silent, settings)) == (20, 60)
    assert (agent_timeout(saying, settings), verifier_timeout(saying, settings)) == (200, 150)
    assert agent_timeout(saying, config(rollout_timeout=30)) == 30


def test_where_images_come_from(tmp_path: Path) -> None:
    both = a_task(tmp_path / "a", '[environment]\ndocker_image = "i:1"\n')
    built = a_task(tmp_path / "b", "")
    assert spec_of(both, config()).image == "i:1"
    assert spec_of(both, config(force_build=True)).image == str(both.environment_directory)
    assert spec_of(built, config()).image == str(built.environment_directory)
    assert spec_of(both, config(task_images="replay")).image is None


@pytest.mark.parametrize(
    ("settings", "backend", "said"),
    [
        (
            '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]',
            "docker",
            "network allow-list",
        ),
        ("[environment]\ngpus = 1", "local", "needs a GPU"),
        ('[environment]\nenv = { A = "${NOT_SET_HERE}" }', "docker", "variable NOT_SET_HERE"),
        ('[verifier]\nenv = { A = "${NOT_SET_HERE}" }', "docker", "tests need the variable"),
        ('[agent]\nuser = "someone"', "local", "agent is the user 'someone', which the local backend"),
        ('[verifier]\nuser = "someone"', "local", "tests run as the user 'someone'"),
        ('[[environment.mcp_servers]]\nname = "a"', "docker", "MCP servers"),
        ('[agent]\nnetwork_mode = "no-network"', "docker", "agent alone has the network no-network"),
        ("[environment]\nmemory_mb = 99999999", "local", "99999999 MB"),
        ("", "local", "replay does without"),
        ("", "singularity", "builds no Dockerfile"),
    ],
)
def test_what_cannot_be_given_is_said(tmp_path: Path, settings: str, backend: str, said: str) -> None:
    capabilities = DOCKER if backend != "local" else LOCAL
    found = misfits(a_task(tmp_path, settings), config(terminal_backend=backend), capabilities)
    assert any(said in text for text in found), found


def test_a_backend_with_users_runs_agents_as_they_are_named(tmp_path: Path) -> None:
    one = a_task(tmp_path / "one", '[agent]\nuser = "someone"\n[verifier]\nuser = 1000\n')
    assert misfits(one, config(), DOCKER) == []
    steps = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n[steps.agent]\nuser = "someone"\n'
    several = load_task(make_task(tmp_path / "several", steps))
    assert "its steps have agents of different users, which is not supported" in misfits(
        several, config(), DOCKER
    )


def test_several_containers_are_refused_and_nobody_is_blamed(tmp_path: Path) -> None:
    task = a_task(tmp_path, "")
    (task.environment_directory / "docker-compose.yaml").write_text("services: {main: {build: .}, db: {}}\n")
    assert any("compose" in text for text in misfits(task, config(), DOCKER))


def test_a_dockerfile_that_cannot_be_replayed(tmp_path: Path) -> None:
    task = a_task(tmp_path, "", dockerfile="FROM x AS y\nFROM z\nCOPY --from=y /a /b\n")
    assert misfits(task, config(), DOCKER) == []
    found = misfits(task, config(terminal_backend="local", task_images="replay"), LOCAL)
    assert found == ["its Dockerfile cannot be replayed: COPY --from=y /a /b"]


def test_creation_is_bounded_by_max_concurrent_tasks() -> None:
    assert config(max_concurrent_tasks=3).sandbox_creation_concurrency == 3
    assert config(max_concurrent_tasks=3, sandbox_creation_concurrency=5).sandbox_creation_concurrency == 5


def test_the_user_of_a_replayed_dockerfile(tmp_path: Path) -> None:
    task = a_task(tmp_path, "", dockerfile="FROM x\nUSER app\nRUN id\n")
    local = config(terminal_backend="local", task_images="replay")
    assert misfits(task, local, LOCAL) == [
        "its Dockerfile switches to the user 'app', which the local backend cannot do"
    ]
    replayed = config(task_images="replay")
    assert misfits(task, replayed, DOCKER) == [] and user_of(task, replayed, None) == "app"
    assert user_of(task, replayed, "other") == "other" and user_of(task, config(), None) is None


FACTORS = ("agent_timeout_multiplier", "verifier_timeout_multiplier", "cpus_multiplier", "memory_multiplier")


@pytest.mark.parametrize("name", [*FACTORS, "task_timeout", "test_timeout", "rollout_timeout", "top_p"])
@pytest.mark.parametrize("text", ["inf", "1_0", "\uff11\uff12", "nan", "Infinity"])
def test_what_is_no_number_for_a_setting_is_refused(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["harbor_task", "evaluate", "--env.dataset_name", "tasks", f"--env.{name}", text]) == 2
    assert f"--env.{name}: expected float" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*FACTORS, "task_timeout", "test_timeout"])
def test_numbers_without_sense_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("1e300", "0", "-1"):
        assert main(["harbor_task", "evaluate", "--env.dataset_name", "tasks", f"--env.{name}", text]) == 2
        assert f"--env.{name}: expected float > 0 and <= " in capsys.readouterr().err


def test_a_whole_number_is_written_with_plain_digits(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("1_0", "\uff11"):
        assert main(["harbor_task", "evaluate", "--env.dataset_name", "tasks", "--env.limit", text]) == 2
        assert "--env.limit: expected int" in capsys.readouterr().err
    for text in ("1_0", "\uff11", "1.5", "0"):
        with pytest.raises(SystemExit):
            main(["export", "sft", "nowhere", "out.jsonl", "--top", text])
