"""The store: nothing that was appended is lost, whatever happens to the process or the file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.errors import ConfigError, ResumeMismatch, StoreError
from environments.records import Attempt, Outcome, Sequence, Verdict
from environments.results.durable import DurableFile, encode
from environments.results.fingerprint import defaults, result_affecting
from environments.results.reading import parse_attempt, read_attempts
from environments.results.store import Manifest, RunStore, read_manifest, read_tools, run_directory

from .samples import failed, manifest, scored


def names(directory: Path) -> list[str]:
    with RunStore.open(directory, manifest(), resume=True) as store:
        return [attempt.item_id for attempt in store.attempts()]


def test_what_was_appended_is_there_after_reopening(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "out.run"
    with RunStore.open(directory, manifest(model="m"), resume=True) as store:
        assert store.attempts() == []
        store.append(scored("a"))
        store.append(failed("b"))
        assert store.attempts() == []  # only what was there at opening
    with RunStore.open(directory, manifest(model="m"), resume=True) as store:
        assert store.attempts() == [scored("a"), failed("b")]
        assert store.manifest == read_manifest(directory)


def test_the_last_record_of_each_key_and_try_wins(tmp_path: Path) -> None:
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        store.append(scored("a", reward=0.0))
        store.append(failed("b", try_number=0))
        store.append(scored("b", try_number=1))
        store.append(scored("a", reward=1.0))
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        found = [(a.item_id, a.try_number, a.reward) for a in store.attempts()]
    assert found == [("b", 0, None), ("b", 1, 1.0), ("a", 0, 1.0)]


def test_every_cut_keeps_all_complete_lines_and_the_store_usable(tmp_path: Path) -> None:
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        for item in "abc":
            store.append(scored(item, messages=[{"role": "user", "content": "ä" * 3}]))
    file = tmp_path / "attempts.jsonl"
    whole = file.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    near_an_end = {end + by for end in [0, *ends] for by in range(-60, 60)}
    for cut in sorted({*range(0, len(whole), 11), *near_an_end} & set(range(len(whole) + 1))):
        file.write_bytes(whole[:cut])
        expected = ["a", "b", "c"][: sum(end - 1 <= cut for end in ends)]
        with RunStore.open(tmp_path, manifest(), resume=True) as store:
            assert [attempt.item_id for attempt in store.attempts()] == expected, cut
            if cut % 97 == 0:
                store.append(scored("new"))
        if cut % 97 == 0:
            assert names(tmp_path) == [*expected, "new"]


def test_a_tail_of_zeros_is_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        store.append(scored("a"))
    with (tmp_path / "attempts.jsonl").open("ab") as file:
        file.write(b"\0" * 500)
    assert names(tmp_path) == ["a"]
    assert len([r for r in caplog.records if "half-written" in r.message]) == 1


def test_a_broken_line_in_the_middle_is_named_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        store.append(scored("a"))
        store.append(scored("b"))
    file = tmp_path / "attempts.jsonl"
    first, second = file.read_bytes().splitlines(keepends=True)
    content = first + b'{"half": \n' + b"[1]\n" + b"\xff\xfe\n" + b'{"item_id": "x"}\n' + second
    file.write_bytes(content)
    assert names(tmp_path) == ["a", "b"]
    assert file.read_bytes() == content
    text = caplog.text
    assert all(f"line {number} is broken" in text for number in (2, 3, 4, 5))


def test_a_second_writer_is_told_who_has_it(tmp_path: Path) -> None:
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        for resume in (True, False):
            with pytest.raises(StoreError, match=f"process {os.getpid()}"):
                RunStore.open(tmp_path, manifest(), resume=resume)
        store.append(scored())
    assert names(tmp_path) == ["a"]


def test_starting_anew_keeps_the_old_run(tmp_path: Path) -> None:
    directory = tmp_path / "out.run"
    for item in "abc":
        with RunStore.open(directory, manifest(item=item), resume=False) as store:
            assert store.attempts() == []
            store.append(scored(item))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.1.run", "out.2.run", "out.run"]
    assert [a.item_id for a in read_attempts(tmp_path / "out.1.run" / "attempts.jsonl")] == ["a"]
    assert run_directory(tmp_path / "out.jsonl") == directory


def test_a_resume_with_other_settings_lists_each_with_both_values(tmp_path: Path) -> None:
    def made(**fields: Any) -> dict[str, Any]:
        servers = [APIServerConfig(model_name=fields.pop("model", "m"), api_key=fields.pop("key", "k"))]
        return result_affecting(HermesAgentEnvConfig(**fields), servers)

    with RunStore.open(tmp_path, manifest(**made()), resume=True) as store:
        store.append(scored())
    with RunStore.open(tmp_path, manifest(**made(key="other", limit=3, total_steps=9)), resume=True) as store:
        assert len(store.attempts()) == 1
    with pytest.raises(ResumeMismatch) as caught:
        RunStore.open(tmp_path, manifest(**made(max_agent_turns=4, model="n")), resume=True)
    text = str(caught.value)
    assert "env.max_agent_turns: was 30, is now 4" in text
    assert 'servers.0.model_name: was "m", is now "n"' in text
    assert "--env.resume false" in text and "another output" in text
    RunStore.open(tmp_path, manifest(**made()), resume=True).close()  # the failed one left no lock


def test_a_run_goes_on_however_the_path_of_its_dataset_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tasks", "others"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)

    def made(dataset: str | None) -> Any:
        return manifest(**result_affecting(HermesAgentEnvConfig(dataset_name=dataset), []))

    older = made("tasks")
    older.result_affecting["env"]["dataset_name"] = "tasks/"  # as typed, which runs once noted
    with RunStore.open(tmp_path / "run", older, resume=True) as store:
        store.append(scored())
    for name in ("tasks", str(tmp_path / "tasks")):
        with RunStore.open(tmp_path / "run", made(name), resume=True) as store:
            assert len(store.attempts()) == 1
    for name in ("others", None):
        with pytest.raises(ResumeMismatch, match="dataset_name"):
            RunStore.open(tmp_path / "run", made(name), resume=True)


def test_a_run_from_before_a_field_was_there_counts_as_one_with_its_default(tmp_path: Path) -> None:
    config, servers = HermesAgentEnvConfig(), [APIServerConfig(model_name="m", api_key="k")]
    before = result_affecting(config, servers)
    del (
        before["env"]["max_agent_turns"],
        before["env"]["disabled_toolsets"],
        before["servers"][0]["server_type"],
    )
    with RunStore.open(tmp_path, manifest(**before), resume=True) as store:
        store.append(scored())
    now, usual = manifest(**result_affecting(config, servers)), defaults(config, servers)
    with RunStore.open(tmp_path, now, resume=True, defaults=usual) as store:
        assert len(store.attempts()) == 1
    config.max_agent_turns = 4
    with pytest.raises(ResumeMismatch, match="max_agent_turns: was 30, is now 4"):
        RunStore.open(tmp_path, manifest(**result_affecting(config, servers)), resume=True, defaults=usual)


def test_results_without_a_manifest_are_not_guessed_about(tmp_path: Path) -> None:
    (tmp_path / "attempts.jsonl").write_bytes(encode(scored()) + b"\n")
    with pytest.raises(StoreError, match="resume false"):
        RunStore.open(tmp_path, manifest(), resume=True)
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(StoreError, match="no manifest"):
        RunStore.open(tmp_path, manifest(), resume=True)


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "out.run").write_text("x")
    for directory in (tmp_path / "out.run", tmp_path / "out.run" / "deep" / "er"):
        with pytest.raises(StoreError, match=r"a directory is needed there, but \S*/out.run is a file"):
            RunStore.open(directory, manifest(), resume=True)
        with pytest.raises(StoreError, match=r"out.run is a file"):
            DurableFile(directory / "out.jsonl")
    (tmp_path / "link.run").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"link.run is a broken link"):
        RunStore.open(tmp_path / "link.run", manifest(), resume=True)


@pytest.mark.parametrize("name", ["", ".", "..", "a/..", "/", "directory", "directory/"])
def test_an_output_must_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "directory").mkdir()
    with pytest.raises(ConfigError, match="a file is needed, such as"):
        run_directory(Path(name))


def test_outputs_that_differ_in_their_suffix_share_nothing() -> None:
    names = [run_directory(Path(name)).name for name in ("out.jsonl", "out.txt", "out.json")]
    assert names == ["out.run", "out.txt.run", "out.json.run"]


def test_large_values_lie_beside_the_file_and_come_back(tmp_path: Path) -> None:
    image = "data:image/png;base64," + "iVBO" * 1000
    attempt = scored(
        messages=[
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]},
            {"role": "tool", "content": "ö" * 60_000},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]},
            {"role": "odd", "$payload": "0" * 64, "$$payload": {"$payload": 1}},
        ]
    )
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        store.append(attempt)
    assert (tmp_path / "attempts.jsonl").stat().st_size < 5_000
    assert len(list((tmp_path / "payloads").iterdir())) == 2
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        assert store.attempts() == [attempt]
    for path in (tmp_path / "payloads").iterdir():
        path.unlink()
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        (found,) = store.attempts()
    assert "missing: payloads/" in found.messages[1]["content"]


def test_tools_are_stored_once_by_hash(tmp_path: Path) -> None:
    schemas = [{"type": "function", "function": {"name": "terminal", "parameters": {}}}]
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        key = store.put_tools(schemas)
        assert store.put_tools(json.loads(json.dumps(schemas))) == key != store.put_tools([])
    assert read_tools(tmp_path) == {key: schemas, store.put_tools([]): []}


def test_what_json_cannot_carry_is_written_all_the_same(tmp_path: Path) -> None:
    odd = scored(messages=[{"role": "tool", "content": "\ud800", "n": 2**80, "o": object(), "s": {3, 1}}])
    odd.verdicts = [Verdict(0.5, metrics={"nan": float("nan"), "x": 1.0}, evidence={"b": b"\xff"})]
    odd.sequences = [Sequence([1], [1], [float("-inf")])]
    odd.item_id = 7  # type: ignore[assignment]
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        store.append(odd)
    with RunStore.open(tmp_path, manifest(), resume=True) as store:
        (found,) = store.attempts()
    assert found.item_id == "7" and found.reward == 0.5 and found.verdicts[0].metrics == {"x": 1.0}
    assert found.sequences[0].logprobs == [1.0]
    assert found.messages[0]["content"] == "\ufffd" and found.messages[0]["s"] == [1, 3]


numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(st.sampled_from(["role", "content", "$payload"]), json_values)
verdicts = st.builds(Verdict, reward=st.none() | st.floats(0, 1), explanation=st.text())
attempts = st.builds(
    Attempt,
    run_id=st.just("r"),
    environment=st.just("toy"),
    item_id=st.sampled_from("abc"),
    group_id=st.sampled_from("01"),
    attempt=st.integers(0, 1),
    try_number=st.integers(0, 1),
    messages=st.lists(messages, max_size=2),
    verdicts=st.lists(verdicts, max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(attempts, max_size=4), min_size=1, max_size=4))
def test_any_interleaving_of_runs_keeps_the_last_of_each(runs: list[list[Attempt]]) -> None:
    latest: dict[Any, Attempt] = {}
    with tempfile.TemporaryDirectory() as name:
        for run in [*runs, []]:
            with RunStore.open(Path(name), manifest(), resume=True) as store:
                assert store.attempts() == list(latest.values())
                for attempt in run:
                    store.append(attempt)
                    key = (*attempt.key, attempt.try_number)
                    latest.pop(key, None)
                    latest[key] = parse_attempt(encode(attempt))


@settings(max_examples=100, deadline=None)
@given(attempts, st.dictionaries(st.text(min_size=1).map("new_".__add__), json_values, max_size=3))
def test_attempts_survive_json_with_unknown_fields(attempt: Attempt, unknown: dict[str, Any]) -> None:
    line = encode(attempt)
    again = parse_attempt(line)
    assert parse_attempt(encode(again)) == again
    data = json.loads(line) | unknown
    data["clock"] |= unknown
    assert parse_attempt(json.dumps(data).encode()) == again


def test_an_older_record_with_fewer_fields_is_read() -> None:
    line = b'{"run_id":"r","environment":"e","item_id":"i","group_id":"g","attempt":0,"schema_version":0}'
    found = parse_attempt(line)
    assert found.schema_version == 0 and found.messages == [] and found.ending is None


WRITER = """
    import sys
    from pathlib import Path
    from environments.records import Attempt
    from environments.results.store import Manifest, RunStore

    store = RunStore.open(Path(sys.argv[1]), Manifest("run-1", "toy", "0.1", 1.0), resume=True)
    for number in range(int(sys.argv[2]), 10**9):
        store.append(Attempt("run-1", "toy", str(number), "g", 0, messages=[{"content": "x" * 3000}]))
        print(number, flush=True)
"""


def start_writer(directory: Path, first: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(directory), str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_kill_9_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    first = 0
    for _ in range(3):
        process = start_writer(tmp_path, first)
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().split()
        process.wait()
        reported = int(lines[-1]) if lines else first + 49
        found = names(tmp_path)
        assert found[: reported + 1] == [str(number) for number in range(reported + 1)]
        first = len(found)


def test_a_full_disk_is_a_store_error_and_leaves_whole_lines(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from pathlib import Path
        from environments.errors import StoreError
        from environments.records import Attempt
        from environments.results.store import Manifest, RunStore

        store = RunStore.open(Path(sys.argv[1]), Manifest("run-1", "toy", "0.1", 1.0), resume=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        for number in range(100):
            try:
                store.append(Attempt("run-1", "toy", str(number), "g", 0, messages=[{"content": "x" * 3500}]))
            except StoreError as error:
                print(number, error)
                break
        store.append(Attempt("run-1", "toy", "small", "g", 0))
        store.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    number = int(done.stdout.split()[0])
    assert 3 <= number <= 6 and "cannot write" in done.stdout
    assert (tmp_path / "attempts.jsonl").read_bytes().endswith(b"\n")
    assert names(tmp_path) == [*map(str, range(number)), "small"]


def test_a_run_that_scored_nothing_binds_nobody(tmp_path: Path) -> None:
    directory = tmp_path / "out.run"
    failed = Attempt("r", "e", "i", "g", 0, outcome=Outcome.MODEL_ERROR)
    with RunStore.open(
        directory, Manifest("r", "e", "0", 0.0, result_affecting={"model": "a"}), resume=True
    ) as store:
        store.append(failed)
    with RunStore.open(
        directory, Manifest("r2", "e", "0", 0.0, result_affecting={"model": "b"}), resume=True
    ) as store:
        assert store.manifest.run_id == "r2"


def test_results_that_no_run_of_ours_wrote_are_kept(tmp_path: Path) -> None:
    for name in ("metrics.json", "samples.jsonl"):
        (tmp_path / name).write_text("precious")
    for _ in range(2):
        with RunStore.open(tmp_path, manifest(), resume=True) as store:
            store.append(scored("a"))
        (tmp_path / "metrics.json").write_text("ours")
    assert (
        (tmp_path / "metrics.1.json").read_text() == (tmp_path / "samples.1.jsonl").read_text() == "precious"
    )
    assert not (tmp_path / "metrics.2.json").exists()
