"""The viewer and the page: every kind of file, and nothing hostile gets through."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import StoreError
from environments.results.conversation import pieces
from environments.results.evaluate_log import sample_from_attempt, write_evaluation
from environments.results.groups import GroupFile, group_from_attempts
from environments.results.html import write_html, write_page_for_groups
from environments.results.rows import read_rows, rows_of
from environments.results.show import main
from environments.results.store import RunStore

from .samples import failed, manifest, scored

EVIL = "<script>alert(1)</script>\x1b]0;owned\x07\u202e[red]"
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "count " + EVIL},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "thinking about it",
        "tool_calls": [
            {
                "id": "1",
                "function": {"name": "terminal", "arguments": '{"command": "ls\\npwd", "timeout": 3}'},
            },
            {"id": "2", "function": {"name": EVIL, "arguments": "{broken"}},
        ],
    },
    {
        "role": "tool",
        "name": "terminal",
        "content": json.dumps({"output": EVIL + "x" * 9000, "exit_code": 0}),
    },
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    {"role": "assistant", "content": "finished"},
]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    attempts = [
        scored("item-a", 0, messages=CONVERSATION),
        scored("item-a", 1, reward=0.0),
        failed("item-b", 0, group_id="h"),
    ]
    attempts[0].verdicts[-1].explanation = "well done"
    with RunStore.open(tmp_path / "out.run", manifest(), resume=True) as store:
        store.append(failed("item-a", 0))
        for attempt in attempts:
            store.append(attempt)
    with GroupFile(tmp_path / "out.jsonl") as file:
        file.append(group_from_attempts(0, attempts[:2], include_messages=True), 0)
        file.append(group_from_attempts(1, attempts[2:], include_messages=True), 1)
    samples = [sample_from_attempt(attempt) for attempt in attempts]
    write_evaluation(tmp_path / "evals", name="toy", model_name="m", metrics={}, samples=samples)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        *("out.jsonl", "out.run", "out.run/attempts.jsonl", "evals", "."),
        *("out.run/run.json", "out.html", "evals/metrics.json"),
    ],
)
def test_the_table_of_every_kind_of_result(output: Path, name: str, capsys: Any) -> None:
    write_html(output / "out.jsonl", output / "out.jsonl")
    assert main([str(output / name)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("item-a") == 2 and shown.count("item-b") == 1 and "model_error" in shown
    assert "3 rollouts, 1 passed (33.3%), 1 without a score, mean reward 0.5" in shown


@pytest.mark.parametrize(
    ("name", "number"), [("out.jsonl", "1.1"), ("out.jsonl", "1"), ("out.run", "1"), ("evals", "1")]
)
def test_one_conversation(output: Path, name: str, number: str, capsys: Any) -> None:
    assert main([str(output / name), number]) == 0
    shown = capsys.readouterr().out
    for text in (
        "thinking about it",
        "→ terminal",
        "ls\npwd",
        "{broken",
        "exit_code: 0",
        "finished",
        "well done",
    ):
        assert text in shown, text
    assert "characters left out" in shown and "[red]" in shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert main([str(output / name), number, "--full"]) == 0
    assert "x" * 9000 in capsys.readouterr().out.replace("\n", "")


def test_a_failed_attempt_shows_its_failures(output: Path, capsys: Any) -> None:
    assert main([str(output / "out.jsonl"), "2.1"]) == 0
    shown = capsys.readouterr().out
    assert "no answer" in shown and "no conversation in the file" in shown


def test_filters(output: Path, capsys: Any) -> None:
    assert main([str(output / "out.run"), "--failed", "--item", "item-a"]) == 0
    assert "1 rollout, 0 passed" in capsys.readouterr().out
    assert main([str(output / "out.run"), "--item", "nothing*"]) == 1
    assert "no rollouts that match" in capsys.readouterr().err


def test_json_is_the_record(output: Path, capsys: Any) -> None:
    assert main([str(output / "out.run"), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["item_id"] for line in lines] == ["item-a", "item-a", "item-b"]
    assert main([str(output / "out.jsonl"), "1.2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"] == 0.0


def test_errors_say_what_to_do(output: Path, capsys: Any) -> None:
    (output / "notes.txt").write_text("hello\n")
    (output / "other.json").write_text('{"a": 1}\n')
    (output / "empty").mkdir()
    for arguments, text in [
        (["nothing.jsonl"], "does not exist"),
        (["notes.txt"], "first line is no JSON"),
        (["other.json"], "neither a group"),
        (["empty"], "holds no results"),
        (["out.jsonl", "77"], "no row 77"),
    ]:
        assert main([str(output / arguments[0]), *arguments[1:]]) == 2
        captured = capsys.readouterr()
        assert text in captured.err and captured.out == "", arguments


def test_files_of_atroposlib(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "old.jsonl"
    group = {"tokens": [[1, 2], [1]], "masks": [[1, 2], [1]], "scores": [1.0, 0.25], "overrides": None}
    group["messages"] = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], None]
    path.write_text(
        json.dumps(group) + "\n" + json.dumps({"scores": None, "messages": 3, "score": "x"}) + "\n"
    )
    assert main([str(path)]) == 0
    assert "3 rollouts, 1 passed" in capsys.readouterr().out
    first, second, odd = read_rows(path)
    assert (first.turns, first.tokens, second.reward) == (1, 2, 0.25) and odd.reward is None


def test_a_file_that_is_still_being_written(output: Path, capsys: Any, caplog: Any) -> None:
    path = output / "out.jsonl"
    content = path.read_bytes()[:-30]
    path.write_bytes(content)
    assert main([str(path)]) == 0
    assert "2 rollouts" in capsys.readouterr().out and "not finished yet" in caplog.text
    assert path.read_bytes() == content


def test_a_reader_that_leaves_early_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with GroupFile(path) as file:
        for draw in range(2000):
            file.append({"scores": [1.0], "messages": [[{"role": "user", "content": "x" * 200}]]}, draw)
    code = "import sys; from environments.results.show import main; sys.exit(main(sys.argv[1:]))"
    for option in ([], ["--json"]):
        reader, writer = os.pipe()
        command = [sys.executable, "-c", code, str(path), *option]
        with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process:
            os.close(writer)
            os.read(reader, 10)
            os.close(reader)
            assert process.stderr is not None
            assert process.stderr.read() == b"" and process.wait() == 0


_STRUCTURE = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
}
_TEXT = {"p", "a", "span", "details", "summary", "dl", "dt", "dd", "div", "pre"}
ALLOWED_TAGS = _STRUCTURE | _TEXT


class Checker(HTMLParser):
    """Collects what a browser would load or run, and the text it would show."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.depth += tag not in ("meta",)

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1

    def handle_data(self, data: str) -> None:
        self.text += data


def check(page: Path) -> Checker:
    checker = Checker()
    checker.feed(page.read_text())
    assert checker.tags <= ALLOWED_TAGS
    assert checker.attributes <= {"lang", "charset", "http-equiv", "content", "name", "class", "id", "href"}
    assert checker.depth == 0
    assert "http://" not in page.read_text() and "https://" not in page.read_text()
    return checker


def test_the_page_is_whole_and_harmless(output: Path) -> None:
    page = write_html(output / "out.jsonl", output / "out.jsonl")
    assert page == output / "out.html"
    checker = check(page)
    for text in (
        "thinking about it",
        "alert(1)",
        "ls\npwd",
        "well done",
        "no answer",
        "3 rollouts, 1 passed",
    ):
        assert text in checker.text, text
    assert "\x1b" not in page.read_text()


def test_a_file_of_a_run_without_its_results_says_what_is_missing(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "out.html").write_text("<!doctype html>")
    for name, missing in (("metrics.json", "samples.jsonl"), ("out.html", "out.jsonl")):
        assert main([str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert "holds no rollouts" in told and str(tmp_path / missing) in told


def test_an_output_of_another_name_has_a_page_of_its_own(tmp_path: Path, caplog: Any, capsys: Any) -> None:
    for name, page in (("out.jsonl", "out.html"), ("out.txt", "out.txt.html"), ("out.html", "out.html.html")):
        with GroupFile(tmp_path / name) as file:
            file.append(group_from_attempts(0, [scored()], include_messages=True), 0)
        (tmp_path / page).unlink(missing_ok=True)
        assert write_page_for_groups(tmp_path / name) == tmp_path / page
        assert main([str(tmp_path / page)]) == 0 and "1 rollout" in capsys.readouterr().out
        (tmp_path / page).unlink()
    (tmp_path / "out.txt.html").mkdir()
    assert write_page_for_groups(tmp_path / "out.txt") is None
    assert "no page: cannot write" in caplog.text and "Is a directory" in caplog.text


def test_pages_of_values_in_memory(tmp_path: Path) -> None:
    group = group_from_attempts(0, [scored()], include_messages=True)
    for number, source in enumerate([[scored(), failed("b")], [group], [sample_from_attempt(scored())], []]):
        page = write_html(iter(source), tmp_path / f"{number}.run")
        assert page.name == f"{number}.html"
        check(page)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip
fields = [
    "role",
    "content",
    "tool_calls",
    "reasoning_content",
    "name",
    "type",
    "text",
    "image_url",
    "function",
]
hostile_messages = st.dictionaries(
    st.sampled_from(fields),
    json_values | st.lists(st.dictionaries(st.sampled_from(fields), json_values, max_size=3), max_size=2),
)


@given(hostile_messages)
def test_any_message_breaks_into_harmless_pieces(message: dict[str, Any]) -> None:
    for piece in pieces(message, 50):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", piece.text + piece.title)


columns = [
    "scores",
    "messages",
    "metadata",
    "failed",
    "tokens",
    "overrides",
    "reward",
    "passed",
    "usage",
    "item_id",
]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(columns), json_values | st.lists(json_values, max_size=2)))
def test_any_record_of_others_is_shown_or_refused(tmp_path_factory: Any, record: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("r") / "r.jsonl"
    path.write_text(json.dumps(record).replace("NaN", "null").replace("Infinity", "null"))
    try:
        rows = list(read_rows(path))
    except StoreError:
        return
    assert len(list(rows_of([json.loads(path.read_text())]))) == len(rows)
    check(write_html(path, path))
    assert main([str(path)]) == (0 if rows else 1)
    for row in rows:
        assert main([str(path), row.place]) == 0
