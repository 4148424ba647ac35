"""Which directories are tasks, what they are called, and what is said of the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from environments.command_line import main
from environments.errors import ConfigError, UnknownName
from environments.tasks.directory import load_tasks_below
from environments.tasks.finding import find_tasks
from environments.tasks.selection import select_names
from environments.tasks.sources import load_tasks
from tasks.making import make_task


def test_a_name_does_not_depend_on_what_stands_beside_it(tmp_path: Path) -> None:
    make_task(tmp_path / "sub" / "z")
    before = load_tasks(str(tmp_path))
    make_task(tmp_path / "z")
    make_task(tmp_path / "other" / "z")
    after = load_tasks(str(tmp_path))
    assert [task.name for task in before.tasks] == ["sub/z"]
    assert [task.name for task in after.tasks] == ["other/z", "sub/z", "z"]
    assert next(t for t in after.tasks if t.name == "sub/z") == before.tasks[0]


def test_what_looks_like_a_task_and_is_none_is_said(tmp_path: Path) -> None:
    make_task(tmp_path / "good")
    for name, file in (("half", "instruction.md"), ("old", "task.yaml"), ("typo", "Task.toml")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("x")
    (tmp_path / "deep" / "half").mkdir(parents=True)
    (tmp_path / "deep" / "half" / "task.toml").mkdir()
    (tmp_path / "docs" / "more").mkdir(parents=True)
    for name, target in (("self", "self"), ("dangling", "nowhere"), ("circle", ".")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "elsewhere").symlink_to("docs")
    found = find_tasks(tmp_path)
    assert found.tasks == ["good"] and found.without == ["docs", "elsewhere"] and not found.unreadable
    assert {name: text.rpartition(" ")[2] for name, text in found.resembling.items()} == {
        "half": "task.toml",
        "old": "needed",
        "typo": "task.toml",
        "deep/half": "file",
        "self": "nowhere",
        "dangling": "nowhere",
        "circle": "followed",
    }


def test_a_directory_without_a_task_says_what_comes_near(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "instruction.md").write_text("x")
    for source, said in ((tmp_path, "one: it has instruction.md"), (tmp_path / "one", "but no task.toml")):
        with pytest.raises(ConfigError, match=said):
            load_tasks(str(source))
    (tmp_path / "self").symlink_to("self")
    with pytest.raises(ConfigError, match="leads nowhere"):
        load_tasks(str(tmp_path / "self"))


def test_one_that_cannot_be_read_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_task(tmp_path / "good")
    circle = make_task(tmp_path / "circle") / "instruction.md"
    circle.unlink()
    circle.symlink_to("instruction.md")
    unnamed = make_task(tmp_path / "unnamed")
    unnamed.rename(os.fsdecode(os.fsencode(tmp_path) + b"/latin\xe9"))
    within = make_task(tmp_path / "within") / "tests"
    Path(os.fsdecode(os.fsencode(within) + b"/latin\xe9")).write_text("x")
    (within / "loop").symlink_to("loop")
    loaded = load_tasks_below(tmp_path)
    assert [task.name for task in loaded.tasks] == ["good", "within"]
    assert set(loaded.broken) == {"circle", "latin\\xe9"}
    assert "no UTF-8" in loaded.broken["latin\\xe9"] and "symbolic links" in loaded.broken["circle"]
    assert main(["tasks", "check", str(tmp_path)]) == 1
    assert "4 tasks, 2 of them cannot be run" in capsys.readouterr().out
    assert main(["tasks", "check", os.fsdecode(os.fsencode(tmp_path) + b"/latin\xe9")]) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    make_task(tmp_path / "good")
    (make_task(tmp_path / "secret") / "tests" / "test.sh").chmod(0)
    (tmp_path / "locked").mkdir(mode=0)
    broken = load_tasks_below(tmp_path).broken
    (tmp_path / "locked").chmod(0o700)
    assert set(broken) == {"secret", "locked"}
    assert all("Permission denied" in text for text in broken.values())


NAMES = ["a1", "a[1]", "fix-git", "hard/fix-git", "hard/sort", "x[/bold]"]


@pytest.mark.parametrize(
    ("glob", "chosen"),
    [
        ("a[1]", ["a[1]"]),
        ("a[[]1]", ["a[1]"]),
        ("a?", ["a1"]),
        ("x[/bold]", ["x[/bold]"]),
        ("sort", ["hard/sort"]),
        ("fix-git", ["fix-git"]),
        ("fix-*", ["fix-git", "hard/fix-git"]),
        ("hard/*", ["hard/fix-git", "hard/sort"]),
        ("[af]*", ["a1", "a[1]", "fix-git", "hard/fix-git"]),
    ],
)
def test_a_name_means_itself_and_a_glob_what_it_matches(glob: str, chosen: list[str]) -> None:
    assert select_names(NAMES, [glob], None) == chosen
    assert select_names([*NAMES, "left"], None, [glob]) == [n for n in [*NAMES, "left"] if n not in chosen]


def test_a_filter_that_matches_nothing_names_what_comes_near() -> None:
    many = [f"task-{number}" for number in range(5000)]
    for glob, said in (
        ("task-17x", "did you mean task-17"),
        ("fix-*", "there are 5000: task-0, task-1, "),
        ("*sk-4999?", "did you mean task-4999"),
    ):
        with pytest.raises(UnknownName, match="of 5000 tasks") as caught:
            select_names(many, [glob], None)
        assert said in str(caught.value) and len(str(caught.value)) < 250
