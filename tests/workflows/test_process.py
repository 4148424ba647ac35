"""`process` on an environment of the Atropos layer: retries, the breaker, resume, exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from environments.attempt_scope import current_attempt
from environments.config import APIServerConfig
from environments.errors import (
    ConfigError,
    ImageUnusable,
    ResumeMismatch,
    RunAborted,
    SandboxError,
    ServerUnavailable,
    UnknownName,
    VerifierError,
)
from environments.records import Ending, Item, ScoredDataItem
from environments.run import RunReport
from workflows.number_environment import Behaviour, NumberEnv, draws, environment, lines, process


def test_groups_are_written_with_everything(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    report = process(path)
    assert report.exit_code == 0
    assert draws(path) == [0, 1, 2, 3, 4]
    line = next(line for line in lines(path) if line["metadata"][0]["draw"] == 3)
    assert line["scores"] == [1.0, 1.0]
    assert line["tokens"] == [[1, 2], [1, 2]]
    assert line["masks"] == [[-100, 2], [-100, 2]]
    assert line["messages"][0][0]["content"] == "3"
    assert line["metadata"][0]["item_id"] == "n3"
    assert line["failed"] == []


def test_an_exhausted_dataset_ends_the_run_well(tmp_path: Path) -> None:
    class Short(NumberEnv):
        items = 3

    env = environment(tmp_path / "out.jsonl", total_steps=50)
    type(env).items = 3
    report = asyncio.run(env.process_manager())
    assert report.exit_code == 0
    assert draws(tmp_path / "out.jsonl") == [0, 1, 2]


def test_failures_of_ours_are_tried_again_and_their_evidence_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"

    def flaky(number: int, call: int) -> Any:
        return {1: ServerUnavailable("down"), 2: SandboxError("gone")}.get(call, 1.0)

    report = process(path, flaky, group_size=1, total_steps=3)
    assert report.exit_code == 0
    (attempt,) = [a for a in report.attempts if a.item_id == "n0"]
    assert [failure.outcome for failure in attempt.failures] == ["model_error", "sandbox_error"]
    assert attempt.try_number == 2
    assert attempt.outcome == "scored"


def test_what_is_not_ours_is_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    failing: Behaviour = lambda number, call: VerifierError("no verdict") if number == 1 else 1.0  # noqa: E731
    report = process(path, failing)
    assert report.exit_code == 1
    assert {a.item_id: str(a.outcome) for a in report.attempts}["n1"] == "verifier_error"
    assert all(a.try_number == 0 for a in report.attempts)
    assert draws(path) == [0, 2, 3, 4]


def test_one_failed_attempt_makes_its_group_smaller_and_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    failing: Behaviour = lambda n, call: ValueError("bug") if (n, call) == (2, 1) else 1.0  # noqa: E731
    report = process(path, failing)
    assert report.exit_code == 1
    line = next(line for line in lines(path) if line["metadata"][0]["draw"] == 2)
    assert len(line["scores"]) == 1
    (failed,) = line["failed"]
    assert failed["outcome"] == "environment_error"
    assert "ValueError" in json.dumps(failed)


def test_a_failed_attempt_is_refilled_where_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    failing: Behaviour = lambda n, call: ValueError("bug") if (n, call) == (2, 1) else 1.0  # noqa: E731
    process(path, failing, failed_attempts="refill")
    line = next(line for line in lines(path) if line["metadata"][0]["draw"] == 2)
    assert len(line["scores"]) == 2
    assert len(line["failed"]) == 1


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "high"], ids=repr)
def test_an_attempt_without_a_number_is_the_environments_error(tmp_path: Path, value: Any) -> None:
    with pytest.raises(RunAborted, match="failed alike"):
        process(tmp_path / "out.jsonl", lambda n, call: value)


def test_three_bugs_alike_end_the_run_with_the_traceback(tmp_path: Path) -> None:
    def buggy(number: int, call: int) -> Any:
        raise KeyError("answer")

    with pytest.raises(RunAborted, match=r"KeyError(.|\n)*in buggy"):
        process(tmp_path / "out.jsonl", buggy, total_steps=1000)


def test_a_dead_server_ends_the_run_before_it_burns_all_items(tmp_path: Path) -> None:
    with pytest.raises(RunAborted, match="in a row"):
        process(
            tmp_path / "out.jsonl",
            lambda n, call: ServerUnavailable("connection refused"),
            total_steps=1000,
            model_error_retries=1,
        )


def test_an_image_that_cannot_be_had_concerns_its_items_alone(tmp_path: Path) -> None:
    missing: Behaviour = lambda n, call: ImageUnusable("no image x") if n == 3 else 1.0  # noqa: E731
    report = process(tmp_path / "out.jsonl", missing, group_size=1, sandbox_error_retries=3)
    assert report.exit_code == 1 and draws(tmp_path / "out.jsonl") == [0, 1, 2, 4]
    (failed,) = [a for a in report.attempts if not a.valid]
    assert failed.outcome == "sandbox_error" and len(failed.failures) == 1, "trying again cannot help"


def test_an_image_that_all_items_need_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunAborted, match="no image x"):
        process(tmp_path / "out.jsonl", lambda n, call: ImageUnusable("no image x"), total_steps=50)


def test_disk_full_ends_the_run_at_once(tmp_path: Path) -> None:
    import errno

    with pytest.raises(RunAborted, match="No space left"):
        process(tmp_path / "out.jsonl", lambda n, call: OSError(errno.ENOSPC, "No space left on device"))


def test_the_full_disk_of_a_sandbox_concerns_its_attempt_alone(tmp_path: Path) -> None:
    import errno

    from environments.sandboxes.base import file_error

    def fill(number: int, call: int) -> Exception | float:
        full = file_error(errno.ENOSPC, "No space left on device", "/tests")
        return full if number == 3 else float(number % 2)

    report = process(tmp_path / "out.jsonl", fill, group_size=1)
    assert report.exit_code == 1 and draws(tmp_path / "out.jsonl") == [0, 1, 2, 4]
    (failed,) = [a for a in report.attempts if not a.valid]
    assert "No space left" in str(failed.failures)


def test_equal_scores_are_left_out_where_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    report = process(path, ensure_scores_are_not_same=True)
    assert report.exit_code == 0
    assert lines(path) == []


def test_a_group_left_out_is_not_rolled_out_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    process(path, ensure_scores_are_not_same=True)
    env = environment(path, ensure_scores_are_not_same=True)
    assert asyncio.run(env.process_manager()).exit_code == 0
    assert env.calls == {}


@pytest.mark.parametrize("interrupt_at", [1, 7, 20, 39])
def test_an_interrupted_run_goes_on_with_every_group_once(tmp_path: Path, interrupt_at: int) -> None:
    path = tmp_path / "out.jsonl"
    calls = 0

    async def interrupted() -> None:
        nonlocal calls
        env = environment(path, total_steps=20)
        task = asyncio.ensure_future(env.process_manager())

        async def rolling(number: int) -> float:
            nonlocal calls
            await asyncio.sleep(0.001 * (number % 5))
            calls += 1
            if calls == interrupt_at:
                task.cancel()
                await asyncio.sleep(1)
            return 1.0

        type(env).behaviour = staticmethod(lambda number, call: rolling(number))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupted())
    second = environment(path, total_steps=20)
    report = asyncio.run(second.process_manager())
    assert report.exit_code == 0
    assert draws(path) == list(range(20))
    assert all(len(line["scores"]) == 2 for line in lines(path))
    assert sum(second.calls.values()) <= 40 - (interrupt_at - 1)


def test_a_run_may_grow(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    process(path)
    process(path, total_steps=8)
    assert draws(path) == list(range(8))


def test_another_configuration_is_refused_and_a_new_start_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    process(path)
    with pytest.raises(ResumeMismatch, match="group_size"):
        process(path, group_size=3)
    process(path, group_size=3, resume=False)
    assert len(lines(path)[0]["scores"]) == 3
    assert len(list(tmp_path.glob("out*.jsonl"))) == 2


def test_what_differs_at_a_draw_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Changing(NumberEnv):
        first, text = 0, "old"

        async def get_next_item(self) -> Item | None:
            self.position += 1
            number = self.position - 1 + self.first
            return {"id": f"n{number}", "number": number, "prompt": self.text}

    def again(**changes: Any) -> str:
        config = environment(tmp_path / "out.jsonl", total_steps=2).config
        env = type("Env", (Changing,), changes)(config, [APIServerConfig(server_type="nop")])
        assert asyncio.run(env.process_manager()).groups == 2
        return capsys.readouterr().err

    again()
    told = again(text="new")
    assert "draw 0 gave the item n0 with another content (prompt: 'old', now 'new')" in told
    told = again(first=5)
    assert "draw 0 gave the item n5, and n0 in the earlier run; its finished group is kept" in told


def test_limit_and_item_ids(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    env = environment(path, item_ids=["n3", "n1*"], limit=3, total_steps=3)
    asyncio.run(env.process_manager())
    assert {line["metadata"][0]["item_id"] for line in lines(path)} == {"n1", "n3", "n10"}


def test_item_ids_that_no_item_has_name_those_that_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.workflows.process.FRUITLESS_DRAWS", 50)
    path = tmp_path / "out.jsonl"
    with pytest.raises(UnknownName, match=r"'m1' in --env.item_ids.*n1"):
        asyncio.run(environment(path, item_ids=["m1"]).process_manager())
    with pytest.raises(RunAborted, match=r"--env.limit"):
        asyncio.run(environment(path, limit=2).process_manager())


def test_attempts_whose_prompt_does_not_fit_are_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Long(NumberEnv):
        async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
            scope = current_attempt.get()
            assert scope is not None
            scope.record.ending = Ending.CONTEXT_LENGTH
            return await super().collect_trajectory(item)

    config = environment(tmp_path / "out.jsonl", total_steps=3).config
    report = asyncio.run(Long(config, [APIServerConfig(server_type="nop")]).process_manager())
    assert report.complete
    assert "6 attempts without a reply" in report.message
    assert capsys.readouterr().err.count("longer than the model's context") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"env": 5}, "env"),
        ({"env": ["limit"]}, "env"),
        ({"openai": "m"}, "openai"),
        ({"openai": [5]}, "openai"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"{named} must be a mapping"):
        asyncio.run(NumberEnv.run("process", **arguments))


def test_two_environments_run_in_one_process(tmp_path: Path) -> None:
    async def both() -> list[RunReport]:
        one = environment(tmp_path / "one.jsonl", lambda n, call: 1.0)
        two = environment(tmp_path / "two.jsonl", lambda n, call: 0.0)
        return list(await asyncio.gather(one.process_manager(), two.process_manager()))

    asyncio.run(both())
    assert {s for line in lines(tmp_path / "one.jsonl") for s in line["scores"]} == {1.0}
    assert {s for line in lines(tmp_path / "two.jsonl") for s in line["scores"]} == {0.0}
