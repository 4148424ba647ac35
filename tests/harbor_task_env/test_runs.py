"""Whole runs over task directories in local sandboxes, with the built-in policies."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tasks.making import archive, make_task
from verification.machines import in_sandbox

from environments.benchmarks.tblite.tblite_env import TBLiteEvalEnv
from environments.benchmarks.terminalbench_2.terminalbench2_env import TerminalBench2EvalEnv
from environments.command_line import main
from environments.errors import ConfigError, UnknownName
from environments.harbor_task_env.harbor_task_env import HarborTaskEnv
from environments.records import Ending, Outcome
from environments.run import RunReport

TASKS = Path(__file__).resolve().parents[1] / "data" / "tasks"
REWARD = "/logs/verifier/reward.txt"
QUIET = '[environment]\nnetwork_mode = "no-network"\n'


@pytest.fixture(autouse=True, scope="module")
def isolated() -> None:
    """Skip where this machine has no sandbox with a file system of its own."""

    async def nothing(sandbox: Any) -> None:
        return None

    in_sandbox(nothing)


def run(
    directory: Path, tasks: Path | str = TASKS, policy: str = "oracle", cls: Any = HarborTaskEnv, **env: Any
) -> RunReport:
    """Evaluate in local sandboxes."""
    settings = {
        "terminal_backend": "local",
        "task_images": "replay",
        "dataset_name": str(tasks),
        "data_dir_to_save_evals": str(directory / "out"),
        "use_wandb": False,
        "progress": "none",
        "retry_backoff": 0,
        **env,
    }
    report: RunReport = asyncio.run(cls.run("evaluate", env=settings, openai={"server_type": policy}))
    return report


GOOD = ["text-ledger", "two-step-inventory", "permissions"]


def test_the_oracle_solves_and_nothing_solves_nothing(tmp_path: Path) -> None:
    solved = run(tmp_path / "o", task_filter=GOOD, attempts=2)
    assert solved.complete and solved.metrics["eval/pass_rate"] == 1.0 and len(solved.attempts) == 6
    assert solved.metrics["eval/pass_at_2"] == solved.metrics["eval/pass_hat_2"] == 1.0
    idle = run(tmp_path / "n", policy="nop", task_filter=GOOD)
    assert idle.complete and idle.metrics["eval/pass_rate"] == 0.0


def test_an_attempt_says_what_it_was(tmp_path: Path) -> None:
    (attempt,) = run(tmp_path, task_filter=["two-step-*"]).attempts
    verdict = attempt.verdict
    assert verdict is not None and verdict.reward == 1.0 and verdict.trust == "weak"
    assert verdict.metrics == {"lines": 4.0, "step/count": 1.0, "step/report": 1.0}
    assert set(verdict.evidence["steps"]) == {"count", "report"}
    assert [m["role"] for m in attempt.messages].count("user") == 2
    assert attempt.item is not None and attempt.item["category"] == "data-processing"
    assert attempt.provenance.dataset_revision and attempt.sandbox is not None
    sample = json.loads((tmp_path / "out" / "samples.jsonl").read_text())
    assert (sample["task_name"], sample["passed"], sample["turns_used"]) == ("two-step-inventory", True, 4)


def test_a_step_below_its_threshold_ends_the_task(tmp_path: Path) -> None:
    (attempt,) = run(tmp_path, policy="nop", task_filter=["two-step-*"]).attempts
    assert attempt.reward == 0.0 and [m["role"] for m in attempt.messages].count("user") == 1


def test_an_agent_that_bars_the_way_of_the_next_step_has_failed(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "two-step-inventory"
    shutil.copytree(TASKS / task.name, task)
    with (task / "steps" / "count" / "solution" / "solve.sh").open("a") as file:
        file.write("mkdir -p /app/delivery.txt/in/the/way\n")
    (attempt,) = run(tmp_path, tmp_path / "tasks").attempts
    assert (attempt.ending, attempt.outcome, attempt.reward) == (Ending.SANDBOX_BROKEN, Outcome.SCORED, 0.0)


def test_a_finished_run_is_resumed_without_running_and_a_changed_task_runs_again(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    one, two = make_task(tasks / "one", QUIET), make_task(tasks / "two", QUIET)
    first = run(tmp_path, tasks)
    again = run(tmp_path, tasks)
    assert {a.started_at for a in again.attempts} == {a.started_at for a in first.attempts}
    (two / "tests" / "test.sh").write_text(f"#!/bin/bash\necho 0 > {REWARD}\n")
    changed = {a.item_id: a for a in run(tmp_path, tasks).attempts}
    assert changed["two"].reward == 0.0 and changed["one"].reward == 1.0
    assert changed["one"].started_at in {a.started_at for a in first.attempts}
    assert one.is_dir()


def test_a_broken_verifier_is_no_zero(tmp_path: Path) -> None:
    report = run(tmp_path, task_filter=["broken-verifier", "text-ledger"])
    outcomes = {a.item_id: a.outcome for a in report.attempts}
    assert outcomes == {"broken-verifier": Outcome.VERIFIER_ERROR, "text-ledger": Outcome.SCORED}
    assert not report.complete and report.exit_code == 1
    assert report.metrics["eval/coverage"] == 0.5 and report.metrics["eval/valid_pass_rate"] == 1.0
    broken = next(a for a in report.attempts if a.item_id == "broken-verifier")
    assert broken.verdict is not None and broken.verdict.error and "output" in broken.verdict.evidence


def test_an_agent_that_breaks_the_tests_has_failed(tmp_path: Path) -> None:
    test = f"#!/bin/bash\n[ -e /app/trap ] && sleep 86413\necho 1 > {REWARD}\n"
    settings = QUIET + "[verifier]\ntimeout_sec = 1\n"
    make_task(tmp_path / "tasks" / "trapped", settings, test=test)
    make_task(tmp_path / "tasks" / "unsolvable", settings, test=test, solve=None)
    report = run(tmp_path, tmp_path / "tasks", cls=Trapper)
    assert report.complete and report.metrics["eval/contested_attempts"] == 2
    for attempt in report.attempts:
        assert attempt.outcome is Outcome.SCORED and attempt.reward == 0.0
        assert attempt.verdict is not None and attempt.verdict.contested
        assert "no agent has touched" in attempt.verdict.explanation
        assert ("the task's own solution" in attempt.verdict.explanation) == (attempt.item_id == "trapped")


class Trapper(HarborTaskEnv):
    """Its agent breaks tests that look at what it left."""

    async def _begin_step(self, *arguments: Any) -> None:
        """It has no solution."""

    def oracle(self, item: Any) -> Any:
        call = {"name": "terminal", "arguments": {"command": "mkdir -p /app; touch /app/trap"}}
        return [{"role": "assistant", "content": None, "tool_calls": [{"function": call}]}, {"content": ""}]


CHECKS = "[ -e /app/x ] || { echo 0 > /logs/verifier/reward.txt; exit 0; }"
SERVES = """mkdir -p /app; touch /app/x
(setsid python3 -m http.server 8000 --bind 127.0.0.1 > /dev/null 2>&1 &)
for i in $(seq 1200); do (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && break; sleep 0.05; done
"""
CALLS = "(exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null || { echo 0 > /logs/verifier/reward.txt; exit 0; }"
BROKEN_WHEN_SOLVED = {
    "too-slow": (f"{CHECKS}; sleep 86415", "mkdir -p /app; touch /app/x"),
    "crashes": (f"{CHECKS}; kill -SEGV $$", "mkdir -p /app; touch /app/x"),
    "no-number": (f"{CHECKS}; echo nan > {REWARD}", "mkdir -p /app; touch /app/x"),
    "spoils-the-evidence": (f"{CHECKS}; rm /app/x; exit 1", "mkdir -p /app; touch /app/x"),
    "too-slow-for-a-service": (f"{CALLS}; sleep 86415", SERVES),
}


def test_tests_that_break_on_good_work_alone_are_nobodys_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an agent of its own failed at stays a zero, and so does what is not solved."""
    settings = QUIET + "[verifier]\ntimeout_sec = 1\n"
    for name, (test, solve) in BROKEN_WHEN_SOLVED.items():
        make_task(tmp_path / "tasks" / name, settings, test=f"#!/bin/bash\n{test}\n", solve=solve)
    report = run(tmp_path, tmp_path / "tasks", verifier_error_retries=0)
    assert {a.item_id: a.outcome for a in report.attempts} == dict.fromkeys(
        BROKEN_WHEN_SOLVED, Outcome.VERIFIER_ERROR
    )
    assert not report.complete and report.exit_code == 1 and report.metrics["eval/coverage"] == 0.0
    assert all("the task's own solution" in (a.verdict.error or "") for a in report.attempts if a.verdict)
    idle = run(tmp_path / "idle", tmp_path / "tasks", "nop")
    assert idle.complete and idle.metrics["eval/pass_rate"] == idle.metrics["eval/contested_attempts"] == 0.0


def test_where_a_task_has_no_solution_a_zero_without_a_verdict_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = f"#!/bin/bash\n[ -e /app/trap ] || {{ echo 0 > {REWARD}; exit 0; }}\nexit 1\n"
    make_task(tmp_path / "tasks" / "one", QUIET, test=test, solve=None)
    report = run(tmp_path, tmp_path / "tasks", cls=Trapper)
    assert report.exit_code == 0 and "1 contested: the tests came to no verdict" in report.message
    sample = json.loads((tmp_path / "out" / "samples.jsonl").read_text())
    assert (sample["reward"], sample["contested"]) == (0.0, True)
    for place in ("", "samples.jsonl"):
        assert main(["show", str(tmp_path / "out" / place)]) == 0
        assert "1 contested" in capsys.readouterr().out


def test_an_agent_out_of_time_is_graded_as_it_stands(tmp_path: Path) -> None:
    solve = "#!/bin/bash\nmkdir -p /app; echo x > /app/done\nsleep 86414\n"
    condition = "[ -e /app/done ] && ! pgrep -f 'sleep 8641[4]'"
    test = f"#!/bin/bash\n{condition} && echo 1 > {REWARD} || echo 0 > {REWARD}\n"
    make_task(tmp_path / "tasks" / "slow", QUIET + "[agent]\ntimeout_sec = 1\n", test=test, solve=solve)
    (attempt,) = run(tmp_path, tmp_path / "tasks", agent_timeout_multiplier=2).attempts
    assert (attempt.ending, attempt.reward) == (Ending.TIME_LIMIT, 1.0)


def test_what_cannot_be_run_is_said_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gpu-needed: it needs a GPU") as caught:
        run(tmp_path)
    assert "1 of 12 tasks" in str(caught.value) and "--env.skip_tasks" in str(caught.value)
    with pytest.raises(UnknownName, match="did you mean text-ledger"):
        run(tmp_path, task_filter=["text-ledgers"])
    with pytest.raises(ConfigError, match="replay does without"):
        run(tmp_path, task_images="own", task_filter=GOOD)


def test_a_task_that_cannot_be_read_stops_only_a_run_that_wants_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_task(tmp_path / "tasks" / "good", QUIET)
    (make_task(tmp_path / "tasks" / "bad", QUIET) / "task.toml").write_text("[[[")
    with pytest.raises(ConfigError, match=r"(?s)skip_tasks.*bad/task\.toml"):
        run(tmp_path, tmp_path / "tasks")
    assert run(tmp_path, tmp_path / "tasks", skip_tasks=["bad"]).complete
    assert main(["tasks", "check", str(tmp_path / "tasks")]) == 1
    assert "2 tasks, 1 of them cannot be run" in capsys.readouterr().out
    assert main(["tasks", "validate", str(tmp_path / "tasks")]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "wrong" in lines["bad"] and "task.toml" in lines["bad"] and "2" in lines


def test_validation_says_what_of_a_solution_must_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = "python3 -m http.server 8000 --bind 127.0.0.1"
    wait = "for i in $(seq 1200); do (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && break; sleep 0.05; done"
    solve = f"#!/bin/bash\n{serve} >/dev/null 2>&1 &\n{wait}\ntouch /app-done\n"
    asks = f"#!/bin/bash\n(exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; echo $((! $?)) > {REWARD}\n"
    looks = f"#!/bin/bash\n[ -e /app-done ]; echo $((! $?)) > {REWARD}\n"
    make_task(tmp_path / "tasks" / "asks", QUIET, test=asks, solve=solve)
    make_task(tmp_path / "tasks" / "looks", QUIET, test=looks, solve=solve)
    assert main(["tasks", "validate", str(tmp_path / "tasks")]) == 0
    words = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert (words["asks"][-1], words["looks"][-1]) == ("listeners", "none")


def test_the_benchmarks_take_tables_of_the_hubs_form(tmp_path: Path) -> None:
    script = f"#!/bin/bash\ncat /app/in.txt && echo 1 > {REWARD} || echo 0 > {REWARD}\n"
    rows = [
        {
            "task_name": f"task-{n}",
            "instruction": "Nothing to do.",
            "category": "Data Science",
            "environment_tar": archive(
                {"Dockerfile": "FROM x\nWORKDIR /app\nCOPY in.txt .\n", "in.txt": "x"}
            ),
            "tests_tar": archive({"helper.py": ""}),
            "test_sh": script,
        }
        for n in range(2)
    ]
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for cls in (TerminalBench2EvalEnv, TBLiteEvalEnv):
        report = run(
            tmp_path / cls.__name__,
            table,
            "nop",
            cls,
            task_cache=str(tmp_path / "cache"),
            task_filter=["task-1"],
            sandbox_network="none",
        )
        assert report.complete and report.metrics["eval/pass_rate_data_science"] == 1.0
        assert [a.item_id for a in report.attempts] == ["task-1"]


def test_a_subclass_may_score_in_its_own_way(tmp_path: Path) -> None:
    class Mine(TerminalBench2EvalEnv):
        async def rollout_and_score_eval(self, eval_item: Any) -> dict[str, Any]:
            found = await super().rollout_and_score_eval(eval_item)
            return {**found, "reward": 0.25, "checked": 1}

    (attempt,) = run(tmp_path, policy="nop", cls=Mine, task_filter=["text-ledger"]).attempts
    assert attempt.metrics["checked"] == 1.0


def test_a_task_that_changes_while_a_run_is_on_is_not_graded_with_what_it_became(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    for name in ("changed", "gone", "same", "touched"):
        make_task(tasks / name, QUIET)

    class Disturbed(HarborTaskEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            (tasks / "changed" / "tests" / "test.sh").write_text(f"#!/bin/bash\necho 0 > {REWARD}\n")
            shutil.rmtree(tasks / "gone")
            (tasks / "touched" / "tests" / "test.sh").touch()
            return await super().evaluate()

    report = run(tmp_path, tasks, cls=Disturbed)
    found = {a.item_id: (a.outcome, a.reward, len(a.failures)) for a in report.attempts}
    assert found["same"] == found["touched"] == (Outcome.SCORED, 1.0, 0)
    assert found["changed"] == found["gone"] == (Outcome.SANDBOX_ERROR, None, 1)
    again = {a.item_id: a.reward for a in run(tmp_path, tasks).attempts}
    assert again == {"changed": 0.0, "same": 1.0, "touched": 1.0}


def test_groups_for_training(tmp_path: Path) -> None:
    output = tmp_path / "groups.jsonl"
    settings = {
        "terminal_backend": "local",
        "task_images": "replay",
        "dataset_name": str(TASKS),
        "task_filter": ["text-ledger", "permissions"],
        "group_size": 2,
        "total_steps": 3,
        "data_path_to_save_groups": str(output),
        "use_wandb": False,
        "progress": "none",
    }
    report = asyncio.run(HarborTaskEnv.run("process", env=settings, openai={"server_type": "oracle"}))
    groups = [json.loads(line) for line in output.read_text().splitlines()]
    assert report.complete and [group["scores"] for group in groups] == [[1.0, 1.0]] * 3
    names = [group["metadata"][0]["item_id"] for group in groups]
    assert set(names[:2]) == {"text-ledger", "permissions"}


def test_validate_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generous = f"#!/bin/bash\necho 1 > {REWARD}\n"
    make_task(tmp_path / "more" / "generous", QUIET, test=generous)
    make_task(tmp_path / "more" / "unsolved", QUIET, test=f"#!/bin/bash\necho so it is; echo 0 > {REWARD}\n")
    make_task(tmp_path / "more" / "no-solution", QUIET, solve=None)
    assert main(["tasks", "validate", str(tmp_path / "more")]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "wrong" in lines["generous"] and "doing nothing gets 1" in lines["generous"]
    assert "the oracle gets 0 (the tests: so it is)" in lines["unsolved"]
    assert "wrong" in lines["no-solution"] and "solution/solve.sh is missing" in lines["no-solution"]
    assert main(["tasks", "validate", str(TASKS / "text-ledger")]) == 0
    assert "1 task: 1 ok" in capsys.readouterr().out


def test_check_prints_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "check", str(TASKS)]) == 0
    assert "it needs 1 GPU" in capsys.readouterr().out
    assert main(["tasks", "check", "/nowhere"]) == 2
    assert main(["tasks", "chekc", str(TASKS)]) == 2
    assert "did you mean check" in capsys.readouterr().err
    assert main(["tasks", "check"]) == 2 and main(["tasks"]) == 2 and main(["tasks", "--help"]) == 0


@pytest.mark.integration
def test_our_own_tasks_are_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "validate", str(TASKS)]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert lines["12"] == "12 tasks: 8 ok, 3 wrong, 1 not run"
    for name, said in (
        ("broken-verifier", "wrote neither"),
        ("slow-verifier", "took longer than 2 s"),
        ("network-needed", "need the Python package colour-of-money"),
        ("gpu-needed", "needs a GPU"),
    ):
        assert said in lines[name]
