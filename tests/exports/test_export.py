"""``hermes-env export`` as a user runs it, on files and on a running server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.command_line import main
from tests.exports.conversations import TOOLS, conversation, group
from tests.trajectory_api.running import REGISTRATION, Server, call, server
from tests.workflows.training import TokenEnv, make, serve, train

JSON = dict[str, Any]


def lines(path: Path) -> list[JSON]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, *groups: JSON) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in groups))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two groups; in the second two rollouts say the same, and one failed."""
    run = tmp_path / "in.run"
    run.mkdir()
    (run / "tools.json").write_text(json.dumps({"h": TOOLS}))
    provenance = {"provenance": {"tools_hash": "h"}}
    first = group((1.0, conversation("a", "ls")), (0.0, conversation("a", "rm")), item="a", **provenance)
    same = [(0.5, conversation("b", "x", first_id=n)) for n in (0, 5)]
    second = group(*same, item="b", **provenance)
    second["failed"] = [{"item_id": "b", "outcome": "model_error", "ending": "error", "messages": []}]
    return write(tmp_path / "in.jsonl", first, second)


def test_rows_for_tuning(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.jsonl"
    assert main(["export", "sft", str(source), str(output)]) == 0
    rows = lines(output)
    assert [(row["item_id"], row["score"]) for row in rows] == [("a", 1.0), ("b", 0.5)]
    assert all(json.loads(row["tools"]) == TOOLS for row in rows)
    said = capsys.readouterr().out
    assert "2 rows written" in said
    assert "1 score too low" in said and "1 outcome model_error" in said and "1 duplicate" in said


def test_pairs(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert main(["export", "dpo", str(source), str(output), "--format", "sharegpt"]) == 0
    [row] = lines(output)
    assert "ls" in row["chosen"][0]["value"] and "rm" in row["rejected"][0]["value"]


def test_an_output_is_added_to_or_replaced_only_on_request(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    command = ["export", "sft", str(source), str(output)]
    assert main(command) == 0
    assert main(command) == 2
    assert main([*command, "--append"]) == 0 and len(lines(output)) == 2
    assert main([*command, "--append", "--min-score", "0"]) == 0 and len(lines(output)) == 3
    with output.open("a") as file:
        file.write('{"messages": [')  # as a killed export leaves it
    assert main([*command, "--append"]) == 0 and len(lines(output)) == 3
    assert main([*command, "--append", "--format", "sharegpt"]) == 2
    assert main([*command, "--overwrite", "--rows", "1"]) == 0 and len(lines(output)) == 1


def test_a_file_that_is_to_be_replaced_stays_until_there_is_a_row(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.jsonl"
    assert main(["export", "sft", str(source), str(output)]) == 0
    before = output.read_bytes()
    assert main(["export", "sft", str(tmp_path / "nothing"), str(output), "--overwrite"]) == 2
    capsys.readouterr()
    assert main(["export", "sft", str(source), str(output), "--overwrite", "--min-score", "7"]) == 1
    assert "0 rows written" in (printed := capsys.readouterr().out) and "as it was" in printed
    assert output.read_bytes() == before


def test_mistakes_are_named(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.jsonl"
    for arguments, expected in (
        ([str(tmp_path / "nothing"), str(output)], "does not exist"),
        ([str(source), str(source)], "same file"),
        ([str(source), str(tmp_path)], "directory"),
        ([str(source), str(output), "--endings", "stoped"], "did you mean stopped?"),
        ([str(source), str(output), "--tools", str(source)], "no JSON"),
        ([str(source), str(output), "--tokenizer", "x"], "--max-tokens"),
        (["http://127.0.0.1:9", str(output), "--append", "--overwrite"], "exclude each other"),
    ):
        assert main(["export", "sft", *arguments]) in (1, 2)
        assert expected in capsys.readouterr().err
    assert not output.exists()
    assert main(["export", "sft", str(source), str(output), "--min-score", "7"]) == 1
    assert not output.exists()


def test_long_rows_lose_their_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = conversation("long", *(f"step {n} {'x' * 50}" for n in range(40)))
    source = write(tmp_path / "in.jsonl", group((1.0, long), (1.0, conversation("short"))))
    output = tmp_path / "out.jsonl"
    assert main(["export", "sft", str(source), str(output), "--max-tokens", "2000"]) == 0
    first, second = lines(output)
    assert first["removed_turns"] > 0 and second["removed_turns"] == 0
    assert len(first["messages"]) < len(long)
    assert "1 had turns in the middle" in capsys.readouterr().out


def test_samples_of_others_are_read(tmp_path: Path) -> None:
    samples = [
        {"messages": conversation("q", answer=a), "score": s, "item_id": "q"} for a, s in (("x", 1), ("y", 0))
    ]
    source = write(tmp_path / "samples.jsonl", *samples)
    assert main(["export", "dpo", str(source), str(tmp_path / "out.jsonl")]) == 0
    [row] = lines(tmp_path / "out.jsonl")
    assert row["chosen"][0]["content"] == "x" and row["tools"] == "[]"


# A running server.


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "api", "--keep") as running:
        yield running


def wire(number: int) -> JSON:
    best, worst = conversation(f"task {number}", "ls"), conversation(f"task {number}", "rm")
    return {**group((1.0, best), (0.0, worst), item=f"i{number}"), "tools": TOOLS}


def test_beside_a_trainer_nothing_is_taken_away(api: Server, tmp_path: Path) -> None:
    call(api.url, "POST", "/register", REGISTRATION)
    for number in range(5):
        call(api.url, "POST", "/scored_data", wire(number))
    fetched = [call(api.url, "GET", "/batch")[1]["batch"]]
    output = tmp_path / "out.jsonl"
    assert main(["export", "sft", api.url, str(output)]) == 0
    assert [row["item_id"] for row in lines(output)] == [f"i{n}" for n in range(5)]
    assert json.loads(lines(output)[0]["tools"]) == TOOLS
    assert call(api.url, "GET", "/status")[1] == {"current_step": 1, "queue_size": 3}
    fetched.append(call(api.url, "GET", "/batch")[1]["batch"])
    assert [one["metadata"][0]["item_id"] for batch in fetched for one in batch] == ["i0", "i1", "i2", "i3"]
    assert main(["export", "dpo", api.url, str(tmp_path / "pairs.jsonl")]) == 0
    assert len(lines(tmp_path / "pairs.jsonl")) == 5  # also those that the trainer has finished


def test_without_keep_the_finished_are_gone_and_the_rest_is_there(tmp_path: Path) -> None:
    with server(tmp_path / "api") as api:
        call(api.url, "POST", "/register", REGISTRATION)
        for number in range(6):
            call(api.url, "POST", "/scored_data", wire(number))
        for _ in range(2):
            call(api.url, "GET", "/batch")
        assert main(["export", "sft", api.url, str(tmp_path / "out.jsonl")]) == 0
    assert [row["item_id"] for row in lines(tmp_path / "out.jsonl")] == ["i2", "i3", "i4", "i5"]


def test_a_look_at_an_idle_server_leaves_no_trace(api: Server, tmp_path: Path) -> None:
    assert main(["export", "sft", api.url, str(tmp_path / "out.jsonl")]) == 2
    assert call(api.url, "GET", "/info")[1]["batch_size"] == -1


def test_without_a_trainer_it_is_one_and_loses_nothing_when_killed(tmp_path: Path) -> None:
    with server(tmp_path / "api") as api:
        output = tmp_path / "out.jsonl"
        command = [sys.executable, "-m", "environments.command_line", "export", "sft", api.url, str(output)]
        options = ["--rows", "20", "--batch-size", "4", "--append"]
        root = Path(__file__).parents[2]
        process = subprocess.Popen([*command, *options], cwd=root)
        post(api, range(12))
        wait_for(lambda: output.exists() and len(output.read_text().splitlines()) >= 3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = subprocess.Popen([*command, *options], cwd=root)
        post(api, range(12, 22))
        assert process.wait(30) == 0
        assert [row["item_id"] for row in lines(output)] == [f"i{n}" for n in range(20)]
        assert call(api.url, "GET", "/wandb_info")[1]["project"] == "hermes-env-export"


def test_one_export_beside_another_begins_nothing_anew(api: Server, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    command = [sys.executable, "-m", "environments.command_line", "export", "sft", api.url, str(first)]
    process = subprocess.Popen([*command, "--follow", "--batch-size", "4"], cwd=Path(__file__).parents[2])
    try:
        post(api, range(4))
        wait_for(lambda: first.exists() and len(first.read_text().splitlines()) == 4)
        assert main(["export", "sft", api.url, str(second)]) == 0
        assert len(lines(second)) == 4
        post(api, range(4, 6))
        assert main(["export", "sft", api.url, str(second), "--rows", "6", "--append"]) == 0
        assert call(api.url, "GET", "/status")[1]["current_step"] >= 3
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_a_serving_environment_sends_what_an_export_needs(api: Server, tmp_path: Path) -> None:
    _, thread = train(api, 2)

    class Env(TokenEnv):
        async def collect_trajectory(self, item: Any) -> Any:
            row, backlog = await super().collect_trajectory(item)
            assert row is not None
            return {**row, "messages": conversation(item["id"], "ls")}, backlog

    report = serve(make(tmp_path, api.url, Env, total_steps=2, include_messages=True))
    thread.join(100)
    assert report.complete
    output = tmp_path / "out.jsonl"
    assert main(["export", "sft", api.url, str(output), "--min-score", "0"]) == 0
    assert {row["item_id"] for row in lines(output)} >= {"n0", "n1"}
    assert lines(output)[0]["ending"] == "stopped"


def post(api: Server, numbers: range) -> None:
    wait_for(lambda: call(api.url, "GET", "/info")[1]["batch_size"] > 0)
    for number in numbers:
        assert call(api.url, "POST", "/scored_data", wire(number))[0] == 200


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
