from __future__ import annotations

import stat
from pathlib import Path

import pytest

from .bench import Bench


def patch_text(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def test_replace_returns_a_diff_and_what_changed(bench: Bench) -> None:
    (bench.work / "f.py").write_text("a = 1\nb = 2\n")
    result = bench("patch", mode="replace", path="f.py", old_string="b = 2", new_string="b = 3")
    assert result["success"] is True
    assert "-b = 2\n+b = 3\n" in result["diff"]
    assert result["files_modified"] == [str(bench.work / "f.py")]
    assert (bench.work / "f.py").read_text() == "a = 1\nb = 3\n"


def test_a_failed_replacement_changes_nothing_and_says_why(bench: Bench) -> None:
    (bench.work / "f").write_text("a\na\n")
    outcome = bench.outcome("patch", {"path": "f", "old_string": "a", "new_string": "b"})
    assert outcome.error == "tool_error"
    assert '"success": false' in outcome.content
    assert "at lines 1, 2" in outcome.content
    assert (bench.work / "f").read_text() == "a\na\n"
    result = bench("patch", path="f", old_string="a", new_string="b", replace_all=True)
    assert "2 places" in result["note"]
    assert (bench.work / "f").read_text() == "b\nb\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "replace", "path": "f"}, "needs path, old_string and new_string"),
        ({"mode": "patch"}, "needs the parameter patch"),
        ({"path": "nope", "old_string": "a", "new_string": "b"}, "does not exist"),
        ({"path": ".", "old_string": "a", "new_string": "b"}, "is a directory"),
        ({"path": "binary", "old_string": "a", "new_string": "b"}, "binary file"),
    ],
)
def test_calls_that_cannot_work(bench: Bench, arguments: dict[str, str], message: str) -> None:
    (bench.work / "binary").write_bytes(b"a\0")
    assert message in bench("patch", **arguments)["error"]


def test_mode_bytes_and_line_ends_are_kept(bench: Bench) -> None:
    script = bench.work / "run.sh"
    script.write_bytes(b"\xef\xbb\xbfa\r\ncaf\xe9\r\nend")
    script.chmod(0o755)
    bench("patch", path="run.sh", old_string="a\n", new_string="b\nc\n")
    assert script.read_bytes() == b"\xef\xbb\xbfb\r\nc\r\ncaf\xe9\r\nend"
    assert stat.S_IMODE(script.stat().st_mode) == 0o755


def test_a_patch_over_several_files(bench: Bench) -> None:
    (bench.work / "a").write_text("one\ntwo\n")
    (bench.work / "b").write_text("bye\n")
    (bench.work / "c").write_text("c\n")
    (bench.work / "c").chmod(0o700)
    text = patch_text(
        "*** Update File: a", " one", "-two", "+2",
        "*** Add File: sub/new", "+hello", "+",
        "*** Delete File: b",
        "*** Update File: c", "*** Move to: moved/d", "-c", "+d",
    )  # fmt: skip
    result = bench("patch", mode="patch", patch=text)
    assert result["success"], result
    assert (bench.work / "a").read_text() == "one\n2\n"
    assert (bench.work / "sub" / "new").read_text() == "hello\n\n"
    assert (bench.work / "moved" / "d").read_text() == "d\n"
    assert stat.S_IMODE((bench.work / "moved" / "d").stat().st_mode) == 0o700
    assert not (bench.work / "b").exists()
    assert not (bench.work / "c").exists()
    assert result["files_modified"] == [str(bench.work / "a")]
    assert set(result["files_created"]) == {str(bench.work / "sub/new"), str(bench.work / "moved/d")}
    assert set(result["files_deleted"]) == {str(bench.work / "b"), str(bench.work / "c")}


def test_a_move_alone_and_two_parts_of_one_file(bench: Bench) -> None:
    (bench.work / "a").write_text("1\n2\n")
    text = patch_text(
        "*** Update File: a", "-1", "+one", "*** Update File: a", "-2", "+two",
        "*** Update File: a", "*** Move to: b",
    )  # fmt: skip
    assert bench("patch", mode="patch", patch=text)["success"]
    assert (bench.work / "b").read_text() == "one\ntwo\n"
    assert not (bench.work / "a").exists()


@pytest.mark.parametrize(
    "last",
    [
        ["*** Update File: b", "-nothing like this", "+x"],
        ["*** Update File: missing", "-a", "+x"],
        ["*** Delete File: missing"],
        ["*** Add File: b", "+x"],
        ["*** Update File: b", "*** Move to: a2", "-b", "+x"],
    ],
)
def test_one_bad_part_and_nothing_is_written(bench: Bench, last: list[str]) -> None:
    for name in ("a", "a2", "b"):
        (bench.work / name).write_text(f"{name}\n")
    text = patch_text("*** Update File: a", "-a", "+changed", "*** Add File: new", "+x", *last)
    result = bench("patch", mode="patch", patch=text)
    assert result["success"] is False
    assert {path.name: path.read_text() for path in bench.work.iterdir()} == {
        "a": "a\n",
        "a2": "a2\n",
        "b": "b\n",
    }


def test_a_write_that_fails_undoes_those_before_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.work / "a").write_text("a\n")
    (bench.work / "b").write_text("b\n")
    write = bench.sandbox.write_bytes

    async def full(path: str, data: bytes, *, mode: int | None = None) -> None:
        if Path(path).name == "b":
            raise OSError(28, "No space left on device")
        await write(path, data, mode=mode)

    monkeypatch.setattr(bench.sandbox, "write_bytes", full)
    text = patch_text(
        "*** Update File: a", "-a", "+x", "*** Add File: c", "+c", "*** Update File: b", "-b", "+y"
    )
    result = bench("patch", mode="patch", patch=text)
    assert "No space left on device); nothing was changed" in result["error"]
    assert {path.name: path.read_text() for path in bench.work.iterdir()} == {"a": "a\n", "b": "b\n"}


def test_large_files_are_left_to_the_terminal(bench: Bench) -> None:
    with (bench.work / "huge").open("wb") as file:
        file.truncate(3 << 30)
    (bench.work / "link").symlink_to("huge")
    for name in ("huge", "link"):
        result = bench("patch", path=name, old_string="a", new_string="b")
        assert result["success"] is False
        assert str(3 << 30) in result["error"]
        assert "terminal" in result["error"]
    delete = bench("patch", mode="patch", patch=patch_text("*** Delete File: huge"))
    assert "terminal" in delete["error"]
    assert (bench.work / "huge").exists()


def test_the_files_of_one_patch_are_bounded_together(bench: Bench) -> None:
    for name in "ab":
        (bench.work / name).write_bytes(b"x\n" * 1_400_000)
    parts = [f"*** Delete File: {name}" for name in "ab"]
    assert "together" in bench("patch", mode="patch", patch=patch_text(*parts))["error"]
    for part in parts:
        assert bench("patch", mode="patch", patch=patch_text(part))["success"] is True
