"""Attempts at tasks judged again: with changed tests, and where what their agents met has changed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tasks.making import make_task

from environments.command_line import main
from environments.results.reading import final_attempts, read_attempts

REWARD = "/logs/verifier/reward.txt"
SERVICE = """#!/bin/bash
python3 -c 'import socket,time; s=socket.socket(); s.bind(("127.0.0.1",8099)); s.listen(); time.sleep(600)' &
for i in $(seq 200); do : > /dev/tcp/127.0.0.1/8099 && break; sleep 0.05; done 2> /dev/null
true
"""
PASSING = f"#!/bin/bash\n[ -e /app/x ] && echo 1 > {REWARD} || echo 0 > {REWARD}\n"


def task_options(tasks: Path, run: Path) -> list[str]:
    """An evaluation by the oracle that keeps its sandboxes."""
    options = ["--env.dataset_name", str(tasks), "--env.terminal_backend", "local"]
    options += ["--env.task_images", "replay", "--openai.server_type", "oracle", "--env.use_wandb", "false"]
    options += ["--env.data_dir_to_save_evals", str(run), "--env.progress", "none"]
    return [*options, "--env.keep_sandboxes", "all", "--env.kept_sandbox_lifetime", "300"]


def test_tasks_are_judged_again_with_changed_tests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = '[environment]\nnetwork_mode = "no-network"\n'
    tasks, run = tmp_path / "tasks", tmp_path / "run"
    wrong = f"#!/bin/bash\necho 0 > {REWARD}\n"
    one = make_task(tasks / "one", quiet, test=wrong, solve="#!/bin/bash\nmkdir -p /app; echo x > /app/x\n")
    make_task(tasks / "service", quiet, solve=SERVICE)
    options = task_options(tasks, run)
    assert main(["harbor_task", "evaluate", *options]) == 0
    found = {a.item_id: a for a in final_attempts(read_attempts(run / "attempts.jsonl"))}
    assert found["one"].reward == 0.0 and found["service"].reward == 1.0
    (one / "tests" / "test.sh").write_text(PASSING)
    capsys.readouterr()
    began = time.time()
    try:
        assert main(["rescore", str(run)]) == 1
        text = capsys.readouterr().out
        assert "one attempt 0: 0 -> 1" in text
        assert "service attempt 0: its tests need what the agent left running" in text
    finally:
        main(["sandboxes", "reap", "--run", found["one"].run_id, "--backend", "local"])
    assert main(["harbor_task", "evaluate", *options]) == 0
    again = {a.item_id: a for a in final_attempts(read_attempts(run / "attempts.jsonl"))}
    assert again["one"].reward == 1.0 and again["one"].started_at < began, "the changed task is not run again"


def test_an_attempt_is_one_at_a_changed_task_only_where_its_agent_met_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests may be others; a machine, a file, a limit, a user or a solution that was run may not."""
    quiet = '[environment]\nnetwork_mode = "no-network"\n'
    tasks, run = tmp_path / "tasks", tmp_path / "run"
    names = ("tests", "verifier", "category", "file", "dockerfile", "image", "timeout", "unknown", "solution")
    solve = "#!/bin/bash\nmkdir -p /app; echo x > /app/x\n"
    made = {name: make_task(tasks / name, quiet, test=PASSING, solve=solve) for name in names}
    options = task_options(tasks, run)
    assert main(["harbor_task", "evaluate", *options]) == 0
    found = {a.item_id: a for a in final_attempts(read_attempts(run / "attempts.jsonl"))}
    for task in made.values():
        (task / "tests" / "test.sh").write_text(f"#!/bin/bash\necho 0.5 > {REWARD}\n")
    (made["verifier"] / "task.toml").write_text(quiet + "[verifier]\ntimeout_sec = 77\n")
    (made["category"] / "task.toml").write_text(quiet + '[metadata]\ncategory = "games"\n')
    (made["file"] / "environment" / "data.txt").write_text("new")
    (made["dockerfile"] / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\nENV A=1\n")
    (made["image"] / "task.toml").write_text(quiet + 'docker_image = "debian:13"\n')
    (made["timeout"] / "task.toml").write_text(quiet + "[agent]\ntimeout_sec = 77\n")
    (made["unknown"] / "task.toml").write_text(quiet + 'sort_of = "gpu"\n')
    (made["solution"] / "solution" / "solve.sh").write_text(solve + "true\n")
    capsys.readouterr()
    began = time.time()
    try:
        assert main(["rescore", str(run)]) == 0
        text = capsys.readouterr().out
    finally:
        main(["sandboxes", "reap", "--run", found["tests"].run_id, "--backend", "local"])
    others = set(names) - {"tests", "verifier", "category"}
    listed = text.partition("no longer what their agents had: 6\n")[2].splitlines()[:6]
    assert {line.strip() for line in listed} == others
    assert main(["harbor_task", "evaluate", *options]) == 0
    again = {a.item_id: a for a in final_attempts(read_attempts(run / "attempts.jsonl"))}
    assert {a.reward for a in again.values()} == {0.5}
    assert {name for name, a in again.items() if a.started_at > began} == others, "rolled out again"
    main(["sandboxes", "reap", "--run", found["tests"].run_id, "--backend", "local"])
