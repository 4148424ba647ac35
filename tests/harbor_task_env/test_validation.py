"""``hermes-env tasks validate``: what it says of tasks with faults, and of runs that are stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tasks.making import make_task
from verification.machines import in_sandbox

from environments.command_line import main
from environments.harbor_task_env import fitting
from environments.harbor_task_env.reporting import Seen, report_of
from environments.records import Attempt, Ending, Failure, Outcome, Verdict

ROOT = Path(__file__).resolve().parents[2]
REWARD = "/logs/verifier/reward.txt"
QUIET = '[environment]\nnetwork_mode = "no-network"\n'
CHECKS = f"#!/bin/bash\n[ -e /done ] && echo 1 > {REWARD} || {{ echo no /done; echo 0 > {REWARD}; }}\n"
SOLVES = "#!/bin/bash\ntouch /done\n"


@pytest.fixture(autouse=True, scope="module")
def isolated() -> None:
    """Skip where this machine has no sandbox with a file system of its own."""

    async def nothing(sandbox: Any) -> None:
        return None

    in_sandbox(nothing)


def a_task(directory: Path, **parts: Any) -> Path:
    return make_task(directory, **{"settings": QUIET, "test": CHECKS, "solve": SOLVES, **parts})


def validated(
    source: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, list[str]], str]:
    """Exit code, the table's rows by task (status, oracle, nop, seconds, keep, problem), all output."""
    code = main(["tasks", "validate", str(source), *options])
    told = capsys.readouterr()
    rows = [line.split(None, 6) for line in told.out.partition("\n\n")[0].splitlines()[1:]]
    rows = [row for row in rows if row[1] not in ("task:", "tasks:")]
    found = {row[0]: [" ".join(row[1:3]), *row[3:]] if row[1] == "not" else row[1:] for row in rows}
    return code, found, told.out + told.err


def test_faults_of_tasks_are_named_and_nothing_ends_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_task(tmp_path / "good")
    (a_task(tmp_path / "no-tests") / "tests" / "test.sh").unlink()
    (a_task(tmp_path / "no-instruction") / "instruction.md").unlink()
    a_task(tmp_path / "no-reward", test="#!/bin/bash\ntrue\n")
    a_task(tmp_path / "no-solution", solve=None)
    a_task(tmp_path / "no-word", test="#!/bin/bash\n: reward\n")
    a_task(tmp_path / "bad-build", dockerfile="FROM x\nRUN nosuchprogram --all\n")
    a_task(tmp_path / "bad-copy", dockerfile="FROM x\nCOPY missing /app/\n")
    a_task(tmp_path / "bad-solve", solve="#!/bin/bash\nset -e\nnosuchprogram\ntouch /done\n")
    a_task(tmp_path / "users", dockerfile="FROM x\nUSER someone\nRUN id\n")
    whole = 'artifacts = ["/"]\n' + QUIET + '[verifier]\nenvironment_mode = "separate"\n'
    a_task(tmp_path / "whole", settings=whole)
    a_task(tmp_path / "variable", settings=QUIET + '[solution]\nenv = { A = "${NOT_SET_HERE}" }\n')
    code, rows, said = validated(tmp_path, capsys)
    assert code == 1 and rows["good"] == ["ok", "1", "0", rows["good"][3], "none"], said
    for name, text in {
        "no-tests": "tests/test.sh is missing",
        "no-instruction": "instruction.md is missing or empty",
        "no-reward": "nothing in tests/ writes a reward",
        "no-solution": "solution/solve.sh is missing",
        "no-word": "wrote neither",
        "bad-build": "its Dockerfile fails: RUN nosuchprogram --all: exit code 127",
        "bad-copy": "its Dockerfile fails: COPY missing: there is no such file",
        "bad-solve": "the oracle gets 0 (solve.sh ended with exit code 127: ",
        "whole": "its artifact / is the whole machine",
    }.items():
        assert rows[name][0] == "wrong" and text in said, (name, rows[name])
    assert rows["users"][0] == "not run" and "switches to the user 'someone'" in said
    assert rows["variable"][0] == "not run" and "its solution needs the variable NOT_SET_HERE" in said
    assert "nosuchprogram: command not found" in said and "no /done" in said
    assert "12 tasks: 1 ok, 9 wrong, 2 not run" in said


def test_more_broken_tasks_than_a_run_would_bear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(12):
        a_task(tmp_path / f"bad-{number}", dockerfile="FROM x\nRUN false\n")
    a_task(tmp_path / "good")
    _, rows, said = validated(tmp_path, capsys)
    assert rows["good"][0] == "ok" and "13 tasks: 1 ok, 12 wrong, 0 not run" in said


def test_tests_that_need_what_is_not_installed_are_no_fault_of_the_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_task(tmp_path / "fetching", test=f"#!/bin/bash\nuvx pytest /tests\necho 1 > {REWARD}\n")
    monkeypatch.setattr(fitting, "missing_parts", lambda: ["pytest"])
    code, rows, said = validated(tmp_path, capsys)
    assert code == 1 and rows["fetching"][0] == "not run" and "hermes-environments[verifier]" in said


def test_names_that_a_filter_could_misread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_task(tmp_path / "a[1]")
    a_task(tmp_path / "a1", solve="#!/bin/bash\n")
    code, rows, _ = validated(tmp_path, capsys, "--env.task_filter", "a[1]")
    assert code == 0 and list(rows) == ["a[1]"]


def test_settings_of_a_file_for_a_model_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_task(tmp_path / "tasks" / "one")
    a_task(tmp_path / "tasks" / "two")
    config = tmp_path / "a.yaml"
    config.write_text(
        "env: {dataset_name: elsewhere, limit: 1, enabled_toolsets: [file], attempts: 2, progress: none}\n"
        "openai: {model_name: m, base_url: 'http://127.0.0.1:9/v1'}\n"
    )
    code, rows, said = validated(tmp_path / "tasks", capsys, "--config", str(config))
    assert code == 0 and {name: row[0] for name, row in rows.items()} == {"one": "ok", "two": "ok"}, said


def an_attempt(policy: str, reward: float | None, **fields: Any) -> Attempt:
    attempt = Attempt(run_id="r", environment="e", item_id=f"t/{policy}", group_id="g", attempt=0)
    attempt.outcome = Outcome.SCORED if reward is not None else Outcome.VERIFIER_ERROR
    attempt.ending = Ending.STOPPED
    if reward is not None:
        attempt.verdicts.append(Verdict(reward=reward, passed=reward >= 1))
    for name, value in fields.items():
        setattr(attempt, name, value)
    return attempt


def test_every_attempt_counts() -> None:
    nops = [an_attempt("nop", 0.0)] * 3
    oracles = [an_attempt("oracle", 1.0), an_attempt("oracle", 0.0), an_attempt("oracle", 1.0)]
    report = report_of("t", Seen(["t"]), {"oracle": oracles, "nop": nops}, 3)
    assert (report.status, report.oracle, report.nop) == ("wrong", pytest.approx(2 / 3), 0.0)
    assert report.problem == "the oracle gets 0 (the tests say nothing), in 1 of 3 attempts"
    lucky = [an_attempt("nop", 1.0), *nops[:2]]
    report = report_of("t", Seen(["t"]), {"oracle": [oracles[0]] * 3, "nop": lucky}, 3)
    assert report.problem == "doing nothing gets 1, in 1 of 3 attempts"
    assert report_of("t", Seen(["t"]), {"oracle": [oracles[0]] * 3, "nop": nops}, 3).status == "ok"
    failed = an_attempt(
        "oracle", None, failures=[Failure(0, Outcome.VERIFIER_ERROR, "X", "no reward", "", 0)]
    )
    report = report_of("t", Seen(["t"]), {"oracle": [failed, *oracles[:1]], "nop": nops[:2]}, 2)
    assert report.problem == "no reward, in 1 of 2 attempts" and report.oracle is None
    report = report_of("t", Seen(["t"]), {"oracle": oracles[:1], "nop": []}, 3)
    assert (report.status, report.problem) == ("not run", "the run ended before it (1 of 6 attempts)")


def stopped(*options: str) -> tuple[int, str, str]:
    """Press Ctrl-C when the first attempt is done; exit code, output, and what was said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "environments.command_line", "tasks", "validate", "tasks", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if re.search(r"[1-3]/4 done", line):
            break
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=60)
    return process.returncode, out, said + rest


def test_who_stops_it_is_told_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_task(tmp_path / "tasks" / "a")
    a_task(tmp_path / "tasks" / "slow", solve="#!/bin/bash\nsleep 5\ntouch /done\n")
    one_by_one = ("--env.eval_concurrency", "1", "--env.task_filter", "slow,a")
    code, out, said = stopped(*one_by_one)
    assert code == 130 and "the same command begins anew" in said, said
    assert "the run ended before it" in out
    options = (*one_by_one, "--env.data_dir_to_save_evals", "evals")
    code, _, said = stopped(*options)
    assert code == 130 and "the same command goes on" in said, said
    assert '"outcome":"scored"' in (tmp_path / "evals" / "attempts.jsonl").read_text()
    code, rows, said = validated(Path("tasks"), capsys, *options)
    assert code == 0 and [row[4] for row in rows.values()] == ["none", "none"], said
