"""``check``, and what of a Dockerfile can be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.tasks.directory import load_task
from environments.tasks.dockerfile import Copy, Run, read_dockerfile
from environments.tasks.lint import check, faults, unsolved, unsupported
from tasks.making import make_task

QUIET = '[environment]\nnetwork_mode = "no-network"\n[agent]\ntimeout_sec = 60\n'


def findings(directory: Path) -> list[str]:
    return [f"{finding.level}: {finding.text}" for finding in check(load_task(directory))]


def test_a_good_task_has_no_findings(tmp_path: Path) -> None:
    assert findings(make_task(tmp_path / "t", QUIET)) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('os = "windows"', "error: it needs windows"),
        ("gpus = 1", "warning: it needs 1 GPU"),
        ("memory_mb = 999999", "warning: it asks for 999999 MB"),
        ("memory_mb = 4", "error: 4 MB"),
        ("cpus = 500", "warning: it asks for 500 CPUs"),
        ("cpus = 0", "error: it asks for 0 CPUs"),
        ("new_key = 1", "note: the key environment.new_key is not known"),
    ],
)
def test_impossible_wishes_are_named(tmp_path: Path, settings: str, said: str) -> None:
    found = findings(make_task(tmp_path / "t", f"{QUIET}".replace("[agent]", f"{settings}\n[agent]")))
    assert len(found) == 1 and found[0].startswith(said)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    directory = make_task(tmp_path / "t", QUIET, solve=None, dockerfile=None, test="#!/bin/sh\nexit 0\n")
    (directory / "instruction.md").write_text("\n")
    assert findings(directory) == [
        "error: it has neither environment/Dockerfile nor docker_image",
        "error: instruction.md is missing or empty",
        "error: nothing in tests/ writes a reward (/logs/verifier/reward.txt or reward.json)",
        "warning: solution/solve.sh is missing: nothing shows that it can be solved",
    ]
    (directory / "tests" / "test.sh").unlink()
    assert "error: tests/test.sh is missing" in findings(directory)


def test_tests_that_need_a_network_are_named(tmp_path: Path) -> None:
    script = (
        "apt-get update\ncurl -LsSf https://example.org | sh\nuvx pytest\necho 1 > /logs/verifier/reward.txt"
    )
    directory = make_task(tmp_path / "t", QUIET, test=script)
    assert findings(directory) == [
        "warning: its tests fetch from a network that it does not have: apt-get, curl, uvx"
    ]
    public = make_task(tmp_path / "p", QUIET.replace("no-network", "public"), test=script)
    assert findings(public)[0].startswith("note: its tests fetch from the network")


def test_a_dockerfile_is_replayed_from_its_last_stage(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(
        "# a comment\nARG BASE=debian\nFROM golang AS build\nRUN go build\nFROM ${BASE}:12\n"
        'ENV A=1 B="two words"\nENV OLD style\nWORKDIR /app\nCOPY data/ ./data/\nCOPY one two /srv\n'
        'COPY --chmod=755 ["a b", "c"]\nWORKDIR sub\nRUN apt-get update && \\\n    # inside\n    echo $A\n'
        'RUN ["touch", "x y"]\nCMD ["bash"]\nCOPY --from=build /x /y\nADD https://example.org/x /z\n'
    )
    found = read_dockerfile(path)
    assert found.base == "debian:12"
    assert found.environment == {"A": "1", "B": "two words", "OLD": "style"}
    assert found.working_directory == "/app/sub"
    variables = found.environment
    assert found.actions == [
        Copy(("data/",), "/app/data/"),
        Copy(("one", "two"), "/srv/"),
        Copy(("a b",), "/app/c"),
        Run("apt-get update &&  echo $A", "/app/sub", variables),
        Run("touch 'x y'", "/app/sub", variables),
    ]
    assert found.problems == ["COPY --from=build /x /y", "ADD https://example.org/x /z"]


def test_users_of_a_dockerfile_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(
        "FROM x\nARG WHO=app\nRUN useradd app\nUSER $WHO\nRUN id\nUSER 0:0\nRUN id\n"
        "COPY --chown=other:staff a /a\nCOPY --chown=root b /b\nUSER app:app\n"
    )
    replay = read_dockerfile(path)
    assert [a.user if isinstance(a, Run) else a.owner for a in replay.actions] == [
        *(None, "app", None),
        *("other:staff", None),
    ]
    assert replay.user == "app:app" and replay.users == ["app", "other:staff", "app:app"]


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("/", True),
        ("//", True),
        ("/.", True),
        ("/proc/self", True),
        ("/dev", True),
        (".", False),
        ("/app", False),
    ],
)
def test_a_whole_machine_is_no_artifact(tmp_path: Path, source: str, refused: bool) -> None:
    settings = f'artifacts = ["{source}"]\n{QUIET}[verifier]\nenvironment_mode = "separate"\n'
    found = findings(make_task(tmp_path / "t", settings))
    assert any("cannot be carried to another" in text for text in found) == refused
    assert findings(make_task(tmp_path / "shared", f'artifacts = ["{source}"]\n{QUIET}')) == []


def test_what_is_not_supported_is_no_fault(tmp_path: Path) -> None:
    task = make_task(tmp_path / "t", QUIET + '[[environment.mcp_servers]]\nname = "a"\n')
    loaded = load_task(task)
    assert faults(loaded) == [] and "MCP servers" in unsupported(loaded)[0] and unsolved(loaded) == []
    (task / "instruction.md").unlink()
    (task / "solution" / "solve.sh").unlink()
    loaded = load_task(task)
    assert faults(loaded) == ["instruction.md is missing or empty"]
    assert unsolved(loaded) == ["solution/solve.sh is missing"]


def test_windows_line_ends_are_said(tmp_path: Path) -> None:
    task = make_task(tmp_path / "t", QUIET)
    script = task / "tests" / "test.sh"
    script.write_bytes(script.read_bytes().replace(b"\n", b"\r\n"))
    assert findings(task) == ["warning: tests/test.sh has Windows line ends, which shells stumble over"]
