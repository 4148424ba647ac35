"""`hermes-env rescore`: finished attempts judged again, without a model, and nothing lost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from environments.command_line import main
from environments.records import Attempt, Outcome
from environments.results.reading import final_attempts, read_attempts

ENVIRONMENT = """
from pathlib import Path

from environments.config import APIServerConfig
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig

HERE = Path(__file__).parent


def expected():
    return (HERE / "grader.txt").read_text()


def called(what):
    with (HERE / "calls.txt").open("a") as file:
        file.write(what + "\\n")


class Numbers(HermesAgentBaseEnv):
    name = "numbers"
    drawn = 0

    @classmethod
    def config_init(cls):
        config = HermesAgentEnvConfig(
            enabled_toolsets=["terminal"], use_wandb=False, progress="none", group_size=2, retry_backoff=0
        )
        return config, [APIServerConfig(server_type="oracle")]

    async def get_next_item(self):
        self.drawn += 1
        return {"id": f"i{self.drawn - 1}", "n": self.drawn - 1}

    def format_prompt(self, item):
        return f"Write {item['n']}."

    def oracle(self, item):
        called("oracle")
        command = f"echo {item['n']} > ~/answer"
        call = {"function": {"name": "terminal", "arguments": {"command": command}}}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}, {"content": f"{item['n']}"}]

    async def compute_reward(self, item, result, ctx):
        called(f"judge {item['id']}")
        wanted = expected()
        if wanted == "crash":
            raise KeyError("grader")
        if wanted == "slow" and item["n"] == 2:
            raise KeyboardInterrupt
        if wanted.startswith("file "):
            return float(ctx.read_file("~/answer")["content"].strip() == wanted[5:])
        return float(result.messages[-1]["content"] == wanted)

    async def evaluate(self, *args, **kwargs):
        return await self.evaluate_items([{"id": f"i{n}", "n": n} for n in range(3)])


class ByHand(Numbers):
    name = "by-hand"

    async def evaluate(self, *args, **kwargs):
        for n in range(2):
            async with self.rollout({"id": f"i{n}", "n": n}) as rollout:
                await rollout.score(await rollout.run())


class OwnLoop(Numbers):
    name = "own-loop"

    async def collect_trajectory(self, item):
        async with self.rollout(item) as rollout:
            if not rollout.finished or (HERE / "careless").exists():
                await rollout.session()
                await rollout.run()
            verdict = await rollout.score(await rollout.run())
        return rollout.scored_item(verdict.reward), []
"""


class Place:
    """An environment of its own with its results, run through the command line."""

    def __init__(self, directory: Path, name: str = "Numbers") -> None:
        self.directory = directory
        self.file = directory / f"rescored_{directory.name.replace('-', '_')}.py"
        self.file.write_text(ENVIRONMENT)
        self.target = f"{self.file}:{name}"
        self.run = directory / "run"
        self.output = directory / "out.jsonl"
        self.grader("1")

    def grader(self, text: str) -> None:
        (self.directory / "grader.txt").write_text(text)

    def calls(self) -> list[str]:
        """What was called since it was asked last."""
        path = self.directory / "calls.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return lines

    def evaluate(self, *options: str) -> int:
        return main([self.target, "evaluate", "--env.data_dir_to_save_evals", str(self.run), *options])

    def process(self, *options: str) -> int:
        path = str(self.output)
        return main([self.target, "process", "--env.data_path_to_save_groups", path, *options])

    def attempts(self, directory: Path | None = None) -> dict[str, Attempt]:
        found = read_attempts((directory or self.run) / "attempts.jsonl")
        return {a.item_id: a for a in final_attempts(found)}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def rewards(found: dict[str, Attempt]) -> list[float | None]:
    return [found[name].reward for name in sorted(found)]


def test_a_changed_grader_judges_what_is_written_down(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.evaluate() == 0
    assert place.calls().count("oracle") == 3
    place.grader("2")
    assert main(["rescore", str(place.run)]) == 0
    assert sorted(place.calls()) == ["judge i0", "judge i1", "judge i2"], "no model acts"
    text = capsys.readouterr().out
    assert "3 of 3 attempts" in text and "i1 attempt 0: 1 -> 0" in text and "i2 attempt 0: 0 -> 1" in text
    found = place.attempts()
    assert rewards(found) == [0.0, 0.0, 1.0]
    assert [v.reward for v in found["i1"].verdicts] == [1.0, 0.0], "the old verdict stays"
    samples = [json.loads(line) for line in (place.run / "samples.jsonl").read_text().splitlines()]
    assert {s["item_id"]: s["reward"] for s in samples} == {"i0": 0.0, "i1": 0.0, "i2": 1.0}
    assert place.evaluate() == 0 and place.calls() == [], "a resume takes the new verdicts as they are"
    assert rewards(place.attempts()) == [0.0, 0.0, 1.0]


def test_nothing_changes_where_the_evidence_is_gone(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.evaluate()
    lines = (place.run / "attempts.jsonl").read_bytes()
    place.grader("file 2")
    assert main(["rescore", str(place.run)]) == 1
    text = capsys.readouterr().out
    assert "0 of 3 attempts" in text and "i0 attempt 0: its sandbox ended with it" in text
    assert "--env.keep_sandboxes all" in text and "no reward changed" in text
    assert (place.run / "attempts.jsonl").read_bytes() == lines


def test_kept_sandboxes_are_judged_as_they_were_left(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.evaluate("--env.keep_sandboxes", "all", "--env.kept_sandbox_lifetime", "300")
    place.grader("file 2")
    try:
        assert main(["rescore", str(place.run)]) == 0
        assert rewards(place.attempts()) == [0.0, 0.0, 1.0]
        place.grader("file 0")
        assert main(["rescore", str(place.run)]) == 0, "and again"
        assert rewards(place.attempts()) == [1.0, 0.0, 0.0]
    finally:
        run_id = next(iter(place.attempts().values())).run_id
        main(["sandboxes", "reap", "--run", run_id, "--backend", "local"])
    capsys.readouterr()
    assert main(["rescore", str(place.run)]) == 1
    assert "was removed" in capsys.readouterr().out


def test_attempts_that_a_crashing_grader_had_failed_get_their_score(place: Place) -> None:
    place.grader("crash")
    assert place.evaluate() == 1
    place.grader("1")
    assert main(["rescore", str(place.run)]) == 0
    found = place.attempts()
    assert rewards(found) == [0.0, 1.0, 0.0]
    assert all(a.outcome is Outcome.SCORED and a.failures for a in found.values())
    assert place.evaluate() == 0


def test_a_crashing_grader_takes_no_score_away(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.evaluate()
    place.grader("crash")
    assert main(["rescore", str(place.run)]) == 1
    assert "KeyError: 'grader'" in capsys.readouterr().out
    assert rewards(place.attempts()) == [0.0, 1.0, 0.0]


def test_an_interrupted_rescoring_goes_on(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.evaluate()
    place.calls()
    place.grader("slow")
    options = ["rescore", str(place.run), "--env.max_eval_workers", "1"]
    assert main(options) == 130
    first = place.calls()
    assert first == ["judge i0", "judge i1", "judge i2"]
    place.grader("2")
    capsys.readouterr()
    assert main(options) == 0
    assert place.calls() == ["judge i2"]
    text = capsys.readouterr().out
    assert "3 of 3 attempts" in text and "i1 attempt 0: 1 -> 0" in text, "the report is of the whole"
    assert main(options) == 0 and len(place.calls()) == 3, "a finished one begins anew"


def test_some_items_alone(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.evaluate()
    place.grader("2")
    assert main(["rescore", str(place.run), "--items", "i[12]"]) == 0
    assert "2 of 2 attempts" in capsys.readouterr().out
    assert rewards(place.attempts()) == [0.0, 0.0, 1.0] and len(place.attempts()["i0"].verdicts) == 1
    assert main(["rescore", str(place.run), "--items", "nothing"]) == 2


def test_groups_are_written_anew_and_the_old_file_is_kept(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.process("--env.total_steps", "3") == 0
    before = place.output.read_text()
    place.grader("2")
    assert main(["rescore", str(place.output)]) == 0
    assert "i2 attempt 1: 0 -> 1" in capsys.readouterr().out
    groups = [json.loads(line) for line in place.output.read_text().splitlines()]
    scores = {g["metadata"][0]["item_id"]: g["scores"] for g in groups}
    assert scores == {"i0": [0.0, 0.0], "i1": [0.0, 0.0], "i2": [1.0, 1.0]}
    assert all(g["messages"] and g["metadata"][0]["draw"] in range(3) for g in groups)
    assert (place.directory / "out.1.jsonl").read_text() == before
    place.calls()
    assert place.process("--env.total_steps", "3") == 0 and place.calls() == []


def test_groups_that_had_no_score_come_into_the_file(place: Place) -> None:
    place.grader("crash")
    assert place.process("--env.total_steps", "1") == 1
    place.grader("0")
    assert main(["rescore", str(place.output)]) == 0
    (group,) = [json.loads(line) for line in place.output.read_text().splitlines()]
    assert group["scores"] == [1.0, 1.0]
    place.calls()
    assert place.process("--env.total_steps", "1") == 0 and place.calls() == []


def test_an_evaluate_of_ones_own(tmp_path: Path) -> None:
    place = Place(tmp_path, "ByHand")
    place.evaluate()
    place.grader("0")
    place.calls()
    assert main(["rescore", str(place.run)]) == 0
    assert rewards(place.attempts()) == [1.0, 0.0] and "oracle" not in place.calls()


def test_no_model_is_called_by_a_loop_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, "OwnLoop")
    place.evaluate()
    assert main(["rescore", str(place.run)]) == 0
    (place.directory / "careless").touch()
    assert main(["rescore", str(place.run)]) == 1
    assert "no model is called" in capsys.readouterr().out


def test_a_changed_prompt_is_said(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.evaluate()
    path = place.run / "attempts.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"Write 1."', b'"Please write 1."'))
    assert main(["rescore", str(place.run)]) == 0
    assert "no longer what their agents were given: 1\n  i1" in capsys.readouterr().out
    last = {a.item_id: a.verdicts[-1] for a in final_attempts(read_attempts(path))}
    taken = {item for item, verdict in last.items() if "item_hash" in verdict.evidence}
    assert taken == {"i0", "i2"}, "an attempt at another prompt counts as one at the item as it is now"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "usage"),
        (["nowhere"], "is no run"),
        (["--items", "x"], "RUN first"),
        (["RUN", "--itms", "x"], "did you mean --items"),
        (["RUN", "--items"], "needs a value"),
        (["RUN", "--env.max_eval_worker", "1"], "did you mean --env.max_eval_workers"),
        (["RUN", "--environment", "numbrs.py"], "there is no file"),
        (["RUN", "--environment", "terminal_test"], "a run of 'numbers', not of 'terminal-test'"),
    ],
)
def test_mistakes_are_told(
    place: Place, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place.evaluate()
    capsys.readouterr()
    assert main(["rescore", *(str(place.run) if word == "RUN" else word for word in words)]) == 2
    out = capsys.readouterr()
    assert said in out.out + out.err


def test_a_run_whose_code_has_moved_needs_its_name(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.evaluate()
    moved = place.directory / "elsewhere"
    moved.mkdir()
    (moved / "grader.txt").write_text("2")
    place.file.rename(moved / "moved_environment.py")
    assert main(["rescore", str(place.run)]) == 2
    assert "--environment" in capsys.readouterr().err
    target = f"{moved / 'moved_environment.py'}:Numbers"
    assert main(["rescore", str(place.run), "--environment", target]) == 0
    assert rewards(place.attempts()) == [0.0, 0.0, 1.0]


def test_code_within_a_run_is_not_executed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.evaluate()
    manifest = json.loads((place.run / "run.json").read_text())
    place.file.rename(place.run / "hidden.py")
    manifest["code"] = f"{place.run / 'hidden.py'}:Numbers"
    (place.run / "run.json").write_text(json.dumps(manifest))
    assert main(["rescore", str(place.run)]) == 2
    assert "names code within itself" in capsys.readouterr().err


def test_attempts_of_which_the_view_is_not_known_stay_at_their_item(tmp_path: Path) -> None:
    """Those of an older version."""
    place = Place(tmp_path)
    place.evaluate()
    path = place.run / "attempts.jsonl"
    path.write_bytes(re.sub(rb'"view_hash":"\w+"', b'"view_hash":""', path.read_bytes()))
    assert main(["rescore", str(place.run)]) == 0
    assert all("item_hash" in a.verdicts[-1].evidence for a in place.attempts().values())
    path.write_bytes(re.sub(rb'("item_hash":")\w', rb"\1x", path.read_bytes()))
    assert main(["rescore", str(place.run)]) == 0
    assert not any("item_hash" in a.verdicts[-1].evidence for a in place.attempts().values())
