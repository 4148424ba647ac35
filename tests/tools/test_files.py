from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tools import read_file as reading
from environments.tools.read_file import number_lines, split_lines

from .bench import Bench


@given(st.text(alphabet="ab\r\n\x0b\x85\u2028", max_size=60))
def test_lines_are_those_of_an_editor(text: str) -> None:
    lines = split_lines(text)
    closed = text.count("\n") + (bool(text) and not text.endswith("\n"))
    assert len(lines) == closed
    assert all("\n" not in line for line in lines)


@given(st.lists(st.text(alphabet="ab|:"), min_size=1, max_size=30), st.integers(1, 2_000_000))
def test_numbers_can_be_taken_off_again(lines: list[str], first: int) -> None:
    numbered = number_lines(lines, first).split("\n")
    assert [line.split("|", 1)[1] for line in numbered] == lines
    assert [int(line.split("|", 1)[0]) for line in numbered] == list(range(first, first + len(lines)))


def test_a_page_of_a_file(bench: Bench) -> None:
    (bench.work / "f").write_text("".join(f"line {n}\n" for n in range(1, 21)))
    result = bench("read_file", path="f", offset=3, limit=2)
    assert result["content"] == "     3|line 3\n     4|line 4"
    assert (result["total_lines"], result["truncated"]) == (20, True)
    assert result["file_size"] == (bench.work / "f").stat().st_size
    assert "offset=5" in result["hint"]
    assert bench("read_file", path="f", offset=20)["truncated"] is False
    assert "20 lines" in bench("read_file", path="f", offset=21)["error"]


@pytest.mark.parametrize(
    ("data", "content", "total"),
    [
        (b"", "", 0),
        (b"\n", "     1|", 1),
        (b"a", "     1|a", 1),
        (b"a\r\nb\r\n", "     1|a\n     2|b", 2),
        ("\ufeffé ✓\n".encode(), "     1|é ✓", 1),
        (b"caf\xe9\n", "     1|caf\ufffd", 1),
        (b"a\x0cb\n", "     1|a\x0cb", 1),
    ],
)
def test_encodings_and_line_ends(bench: Bench, data: bytes, content: str, total: int) -> None:
    (bench.work / "f").write_bytes(data)
    result = bench("read_file", path="f")
    assert (result["content"], result["total_lines"]) == (content, total)


def test_long_lines_and_long_pages_are_shortened(bench: Bench) -> None:
    (bench.work / "wide").write_text("x" * 10_000 + "\nshort\n")
    result = bench("read_file", path="wide")
    assert "[8,000 more characters in this line]" in result["content"]
    assert result["content"].endswith("     2|short")
    (bench.work / "tall").write_text(("y" * 999 + "\n") * 500)
    page = bench("read_file", path="tall")
    assert len(page["content"]) <= reading.CONTENT_LIMIT
    assert page["truncated"]
    shown = page["content"].count("\n") + 1
    assert f"offset={shown + 1}" in page["hint"]


@pytest.mark.parametrize("final", ["", "\n"])
def test_a_large_file_is_read_in_part_and_gives_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, final: str
) -> None:
    text = "\n".join(["é" * 5_000, "two", "", *map(str, range(4, 300))]) + final
    (bench.work / "f").write_text(text)
    whole = [bench("read_file", path="f", offset=offset, limit=50) for offset in (1, 2, 280, 299)]
    monkeypatch.setattr(reading, "WHOLE_FILE_LIMIT", 100)
    parts = [bench("read_file", path="f", offset=offset, limit=50) for offset in (1, 2, 280, 299)]
    for result in (*whole, *parts):
        # How much of a cut line there is more is not known without loading it.
        result["content"] = (
            result["content"].split(" [", 1)[0] if "[" in result["content"] else result["content"]
        )
    assert parts == whole


def test_what_has_no_lines_says_what_it_is(bench: Bench) -> None:
    (bench.work / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (bench.work / "b.bin").write_bytes(b"ab\0cd")
    (bench.work / "sub").mkdir()
    (bench.work / "sub" / "inner").touch()
    assert "an image (PNG)" in bench("read_file", path="a.png")["error"]
    assert "a binary file" in bench("read_file", path="b.bin")["error"]
    assert "is a directory; in it: inner" in bench("read_file", path="sub")["error"]


def test_a_missing_file_names_similar_ones(bench: Bench) -> None:
    (bench.work / "README.md").touch()
    (bench.work / "config.yaml").touch()
    assert bench("read_file", path="readme.md")["error"].endswith("similar: " + str(bench.work / "README.md"))
    assert str(bench.work / "config.yaml") in bench("read_file", path="config.yml")["error"]
    assert "nor does the directory" in bench("read_file", path="no/such/file")["error"]
    assert bench("read_file", path="README.md/x")["error"]


def test_links_to_nowhere_and_paths_through_files_say_so(bench: Bench) -> None:
    (bench.work / "link").symlink_to("nowhere")
    (bench.work / "file").touch()
    assert "is a link to what does not exist" in bench("read_file", path="link")["error"]
    assert "is a file and no directory" in bench("write_file", path="file/x", content="")["error"]
    add = "*** Begin Patch\n*** Add File: file/x\n+x\n*** End Patch"
    assert "is a file and no directory" in bench("patch", mode="patch", patch=add)["error"]


def test_reading_the_same_file_again_and_again_works(bench: Bench) -> None:
    (bench.work / "f").write_text("api_key=sk-12345678901234567890\n")
    results = [bench("read_file", path="f") for _ in range(5)]
    assert all(result == results[0] for result in results)
    assert "sk-12345678901234567890" in results[0]["content"]


@given(st.text())
def test_content_is_written_to_the_letter(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    bench = Bench(tmp_path_factory.mktemp("bench"))
    result = bench("write_file", path="new/f", content=text)
    assert (bench.work / "new" / "f").read_bytes() == text.encode()
    assert result["bytes_written"] == len(text.encode())
    assert result["dirs_created"] is True
    assert bench("write_file", path="new/f", content=text)["dirs_created"] is False


def test_paths_of_home_and_directories(bench: Bench) -> None:
    bench("write_file", path="~/greeting.txt", content="hi")
    assert (bench.home / "greeting.txt").read_text() == "hi"
    assert "1|hi" in bench("read_file", path="~/./greeting.txt")["content"]
    assert "is a directory" in bench("write_file", path=str(bench.work), content="")["error"]
    assert "is a directory" in bench("write_file", path="new/", content="")["error"]
    assert not (bench.work / "new").exists()


def test_a_link_is_followed(bench: Bench) -> None:
    (bench.work / "real").write_text("old\n")
    (bench.work / "link").symlink_to("real")
    (bench.work / "there").symlink_to(bench.home)
    assert bench("read_file", path="link")["content"] == "     1|old"
    bench("patch", mode="replace", path="link", old_string="old", new_string="new")
    assert (bench.work / "link").is_symlink()
    assert (bench.work / "real").read_text() == "new\n"
    bench("write_file", path="link", content="newest")
    assert (bench.work / "link").is_symlink()
    assert "is a directory" in bench("read_file", path="there")["error"]


def test_content_that_is_a_number_is_its_text(bench: Bench) -> None:
    bench("write_file", path="n", content=123)
    assert (bench.work / "n").read_text() == "123"


def test_an_error_of_the_file_system_is_told(bench: Bench) -> None:
    (bench.work / "f").touch()
    outcome = bench.outcome("write_file", {"path": "f/g", "content": ""})
    assert outcome.error == "tool_error"
    assert "error" in outcome.content
    assert Path(bench.work / "f").read_text() == ""


def test_the_todo_list(bench: Bench) -> None:
    assert bench("todo") == {
        "todos": [],
        "summary": {"total": 0, "pending": 0, "in_progress": 0, "completed": 0, "cancelled": 0},
    }
    first = {"id": "1", "content": "look", "status": "in_progress", "priority": "high"}
    second = {"id": "2", "content": "act", "status": "PENDING"}
    assert len(bench("todo", todos=[first, second])["todos"]) == 2
    merged = bench("todo", todos=[{**first, "status": "completed"}, {**second, "id": "3"}], merge=True)
    assert [(item["id"], item["status"]) for item in merged["todos"]] == [
        ("1", "completed"),
        ("2", "pending"),
        ("3", "pending"),
    ]
    assert merged["summary"]["completed"] == 1
    assert bench("todo") == merged
    assert bench("todo", todos=[])["summary"]["total"] == 0
    assert "not empty" in bench("todo", todos=[{"id": " ", "content": "x", "status": "pending"}])["error"]
