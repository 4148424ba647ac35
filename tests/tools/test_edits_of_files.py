"""Edits of real files: what a patch leaves is what was meant, byte for byte, or nothing has changed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .bench import Bench

LINES = st.sampled_from(
    ["", "a", "  a", "\ta", "a ", "b", "ü = '日本'", "}", "    return x", "a\u2028b", "x" * 300]
)
ENDS = st.sampled_from(["\n", "\r\n"])


@st.composite
def files(draw: st.DrawFn) -> tuple[list[str], str, bool, bytes]:
    """Lines, their end, whether the last has one, and a byte order mark or nothing."""
    lines = draw(st.lists(LINES, min_size=1, max_size=12))
    closed = draw(st.booleans())
    # A single line without an end does not tell what ends the file's lines would have.
    end = draw(ENDS) if closed or len(lines) > 1 else "\n"
    return lines, end, closed, draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))


def content(lines: list[str], end: str, closed: bool, mark: bytes) -> bytes:
    return mark + (end.join(lines) + (end if closed else "")).encode()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("edits"))


@given(files(), st.data())
def test_replacing_lines_gives_the_file_that_was_meant(
    shared: Bench, file: tuple[list[str], str, bool, bytes], data: st.DataObject
) -> None:
    lines, end, closed, mark = file
    first = data.draw(st.integers(0, len(lines) - 1))
    last = data.draw(st.integers(first, len(lines) - 1))
    new = data.draw(st.lists(LINES, min_size=1, max_size=4))
    before = content(lines, end, closed, mark)
    path = shared.work / "file"
    path.write_bytes(before)
    # The model sees lines and writes line feeds, whatever the file has.
    old_text, new_text = "\n".join(lines[first : last + 1]), "\n".join(new)
    result = shared("patch", mode="replace", path="file", old_string=old_text, new_string=new_text)
    after = path.read_bytes()
    if not result.get("success"):
        assert after == before
        assert result["error"]
        return
    # It fits one place alone, so the text around it tells where that was.
    text = "\n".join(lines) + ("\n" if closed else "")
    assert text.count(old_text) == 1
    meant = text.replace(old_text, new_text)
    assert after == mark + meant.replace("\n", end).encode()


@given(files(), files())
def test_a_patch_between_two_versions_gives_the_second(
    shared: Bench, old: tuple[list[str], str, bool, bytes], new: tuple[list[str], str, bool, bytes]
) -> None:
    lines, end, closed, mark = old
    before = content(lines, end, closed, mark)
    path = shared.work / "file"
    path.write_bytes(before)
    hunk = "".join(f"-{line}\n" for line in lines) + "".join(f"+{line}\n" for line in new[0])
    patch = f"*** Begin Patch\n*** Update File: file\n@@\n{hunk}*** End Patch"
    result = shared("patch", mode="patch", patch=patch)
    after = path.read_bytes()
    if not result.get("success"):
        assert after == before
    else:
        assert after == content(new[0], end, closed, mark)


@pytest.mark.parametrize(
    "data", [b"\x00\x01text\n", b"\xff\xfea\x00\n\x00", b"caf\xe9 text\n", b"", b"\n" * 3]
)
def test_files_that_are_no_plain_text_keep_their_bytes(bench: Bench, data: bytes) -> None:
    path = bench.work / "file"
    path.write_bytes(data)
    result = bench("patch", mode="replace", path="file", old_string="text", new_string="word")
    if result.get("success"):
        assert path.read_bytes() == data.replace(b"text", b"word")
    else:
        assert path.read_bytes() == data


def test_an_edit_in_a_file_of_many_megabytes(bench: Bench) -> None:
    lines = [f"line {number} " + "x" * 20 for number in range(120_000)]
    path = bench.work / "file"
    path.write_text("\n".join(lines) + "\n")
    result = bench(
        "patch", mode="replace", path="file", old_string=f"{lines[99_999]}\n", new_string="changed\n"
    )
    assert result["success"], result
    lines[99_999] = "changed"
    assert path.read_text() == "\n".join(lines) + "\n"


def test_edits_of_one_turn_do_not_lose_each_other(bench: Bench) -> None:
    path = bench.work / "file"
    path.write_text("".join(f"line {number};\n" for number in range(20)))
    calls = [
        (
            str(n),
            "patch",
            {"mode": "replace", "path": "file", "old_string": f"line {n};", "new_string": f"new {n};"},
        )
        for n in range(20)
    ]
    outcomes = asyncio.run(bench.toolbox.call_turn(calls))
    assert all(json.loads(outcome.content)["success"] for outcome in outcomes)
    assert path.read_text() == "".join(f"new {number};\n" for number in range(20))


def test_a_file_that_changed_since_it_was_read_is_edited_as_it_is(bench: Bench) -> None:
    path: Path = bench.work / "file"
    path.write_text("one\ntwo\n")
    bench("read_file", path="file")
    bench("terminal", command="printf 'zero\\none\\ntwo\\n' > file")
    assert bench("patch", mode="replace", path="file", old_string="two", new_string="2")["success"]
    assert path.read_text() == "zero\none\n2\n"
    bench("terminal", command="printf 'gone\\n' > file")
    result = bench("patch", mode="replace", path="file", old_string="2", new_string="3")
    assert not result["success"]
    assert path.read_text() == "gone\n"


def test_a_diff_has_the_lines_of_the_file_and_no_others(bench: Bench) -> None:
    path: Path = bench.work / "file"
    path.write_bytes("a\fb\rc\u2028d\x85e\nold\n\f\nlast".encode())
    diff = bench("patch", mode="replace", path="file", old_string="old", new_string="new")["diff"]
    assert diff.partition("@@\n")[2] == (
        " a\fb\rc\u2028d\x85e\n-old\n+new\n \f\n last\n\\ No newline at end of file\n"
    )
