"""Directories, tables and repositories of tasks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from environments.errors import ConfigError, MissingExtra, UnknownName
from environments.tasks.directory import load_task
from environments.tasks.selection import select
from environments.tasks.sources import load_tasks
from tasks.making import archive, make_task

ROW = {
    "task_name": "sort-lines",
    "instruction": 'Sort "them".\nAll.',
    "docker_image": "some/image:1",
    "category": "text",
    "difficulty": "easy",
    "tags": '["a", "b"]',
    "agent_timeout_sec": 900.0,
    "test_timeout_sec": 120,
    "environment_tar": archive({"Dockerfile": "FROM x\n", "data/in.txt": "b\na\n"}),
    "tests_tar": archive({"tests/test_state.py": "def test(): pass\n"}),
    "test_sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    "some_column": "ünusual\\ \x7f",
}


def write_rows(path: Path, *rows: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_row_becomes_a_whole_task(tmp_path: Path) -> None:
    found = load_tasks(write_rows(tmp_path / "rows.jsonl", ROW), cache=tmp_path / "cache")
    (task,) = found.tasks
    (step,) = task.steps
    assert (task.name, task.category, task.difficulty) == ("sort-lines", "text", "easy")
    assert task.metadata["tags"] == ["a", "b"] and task.metadata["some_column"] == ROW["some_column"]
    assert step.instruction == ROW["instruction"]
    assert (step.agent_timeout, step.verifier.timeout) == (900.0, 120.0)
    assert task.machine.docker_image == "some/image:1"
    assert (
        task.dockerfile is not None and (task.environment_directory / "data/in.txt").read_text() == "b\na\n"
    )
    assert (step.tests / "test_state.py").is_file() and step.test_script.stat().st_mode & 0o111


def test_a_table_is_written_out_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    path, cache = tmp_path / "rows.jsonl", tmp_path / "cache"
    first = load_tasks(write_rows(path, ROW), cache=cache)
    again = load_tasks(str(path), cache=cache)
    assert again == first
    changed = load_tasks(write_rows(path, {**ROW, "instruction": "Other."}), cache=cache)
    assert changed.revision != first.revision
    assert changed.tasks[0].digest != first.tasks[0].digest
    assert [p.name for p in cache.iterdir() if p.name.startswith(".")] == []


def test_a_row_with_few_columns_will_do(tmp_path: Path) -> None:
    row = {"task_name": "bare", "instruction": "x", "agent_timeout_sec": None, "tags": "not json"}
    (task,) = load_tasks(write_rows(tmp_path / "r.jsonl", row), cache=tmp_path / "c").tasks
    assert task.steps[0].agent_timeout is None and not task.steps[0].test_script.exists()


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo("link")
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "content",
    [
        archive({"../outside": "x"}),
        archive({"/etc/outside": "x"}),
        archive({"link": link("/etc")}),
        archive({"link": link("../../..")}),
        archive({"link": link("/etc/passwd", tarfile.LNKTYPE)}),
        archive({"pipe": link("", tarfile.FIFOTYPE)}),
        archive({"link": link("sub"), "sub/x": "1", "link/y": "2"}),
        archive({"a": "x"})[:40],
        "?????",
        "AAAA",
    ],
)
def test_an_unsafe_or_damaged_archive_is_refused(tmp_path: Path, content: str) -> None:
    source = write_rows(tmp_path / "r.jsonl", {**ROW, "tests_tar": content})
    with pytest.raises(ConfigError, match="sort-lines: tests_tar"):
        load_tasks(source, cache=tmp_path / "cache")
    assert not [p for p in tmp_path.rglob("*") if p.name in ("outside", "task.toml")]


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b"])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        load_tasks(write_rows(tmp_path / "r.jsonl", {**ROW, "task_name": name}), cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("{", "line 1 is no JSON"),
        ('{"a": 1}', "row 1 is no task"),
        ('{"task_name": "a", "instruction": {"x": 1}}', "row 1 is no task"),
        ("\udcff\udcfe", "line 1 is no JSON"),
        ("[1]", "row 1 is no task"),
    ],
)
def test_a_file_that_is_no_table_of_tasks(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=said):
        load_tasks(str(tmp_path / "r.jsonl"), cache=tmp_path / "cache")


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two tasks called 'sort-lines'"):
        load_tasks(write_rows(tmp_path / "r.jsonl", ROW, ROW), cache=tmp_path / "cache")


def test_a_directory_of_tasks_in_folders(tmp_path: Path) -> None:
    make_task(tmp_path / "easy" / "one")
    make_task(tmp_path / "hard" / "deep" / "two")
    make_task(tmp_path / ".git" / "three")
    found = load_tasks(str(tmp_path))
    assert [task.name for task in found.tasks] == ["easy/one", "hard/deep/two"]
    (alone,) = load_tasks(str(tmp_path / "easy" / "one")).tasks
    assert (alone.name, alone.digest) == ("one", found.tasks[0].digest)
    make_task(tmp_path / "hard" / "one")  # changes nothing about the others
    assert [task.name for task in load_tasks(str(tmp_path)).tasks] == [
        "easy/one",
        "hard/deep/two",
        "hard/one",
    ]


def test_the_digest_follows_every_file(tmp_path: Path) -> None:
    directory = make_task(tmp_path / "one")
    before = load_task(directory).digest
    assert load_task(directory).digest == before
    (directory / "tests" / "test.sh").chmod(0o755)
    after = load_task(directory).digest
    (directory / "tests" / "more").write_text("x")
    assert len({before, after, load_task(directory).digest}) == 3


def test_steps_have_their_own_directories_and_share_tests(tmp_path: Path) -> None:
    directory = make_task(tmp_path / "one", '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n')
    for name in "ab":
        (directory / "steps" / name).mkdir(parents=True)
        (directory / "steps" / name / "instruction.md").write_text(f"Step {name}.")
    (directory / "steps" / "b" / "tests").mkdir()
    a, b = load_task(directory).steps
    assert (a.instruction, b.instruction) == ("Step a.", "Step b.")
    assert a.tests == directory / "tests" and b.tests == directory / "steps" / "b" / "tests"


def git(*arguments: str, cwd: Path) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def test_a_repository_at_a_revision(tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    make_task(repository / "tasks" / "one")
    git("init", "-q", "-b", "main", cwd=repository)
    git("add", ".", cwd=repository)
    git("commit", "-qm", "first", cwd=repository)
    git("tag", "-a", "v1", "-m", "v1", cwd=repository)
    make_task(repository / "tasks" / "two")
    git("add", ".", cwd=repository)
    git("commit", "-qm", "second", cwd=repository)
    address, cache = f"file://{repository}", tmp_path / "cache"
    assert [t.name for t in load_tasks(address, cache=cache).tasks] == ["tasks/one", "tasks/two"]
    tagged = load_tasks(f"{address}#tasks", revision="v1", cache=cache)
    assert [t.name for t in tagged.tasks] == ["one"]
    assert tagged.revision == git("rev-parse", "v1^{}", cwd=repository).strip()
    git("checkout", "-q", "-b", "gone", cwd=repository)
    repository.rename(tmp_path / "moved")  # a commit that is there already is not fetched again
    assert load_tasks(f"{address}#tasks", revision=tagged.revision, cache=cache) == tagged
    for source, revision in ((address, "no-such"), (f"{address}#nowhere", tagged.revision), (address, None)):
        with pytest.raises(ConfigError):
            load_tasks(source, revision=revision, cache=cache)


@pytest.mark.parametrize("source", ["missing.jsonl", "./missing", "/missing/directory", "no_slash", "a/b/c"])
def test_what_is_not_there_is_said(tmp_path: Path, source: str) -> None:
    with pytest.raises(ConfigError, match="there is no file or directory"):
        load_tasks(source, cache=tmp_path)


def break_task(directory: Path, how: str) -> None:
    instruction = directory / "instruction.md"
    if how == "toml":
        (directory / "task.toml").write_text("[[[")
    elif how == "types":
        (directory / "task.toml").write_text("agent = 3\n")
    elif how == "bytes":
        instruction.write_bytes(b"caf\xe9")
    else:
        instruction.unlink()
        if how == "pipe":
            os.mkfifo(instruction)
        elif how == "directory":
            instruction.mkdir()
        else:
            with instruction.open("wb") as file:
                file.truncate(100 << 20)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("toml", "at line 1"),
        ("types", r"\[agent\] must be a table"),
        ("bytes", "no UTF-8 text: byte 3 is 0xe9"),
        ("pipe", "no regular file"),
        ("directory", "no regular file"),
        ("huge", "at most"),
    ],
)
def test_a_broken_task_is_named_and_the_others_are_there(tmp_path: Path, how: str, said: str) -> None:
    make_task(tmp_path / "good")
    break_task(make_task(tmp_path / "bad"), how)
    found = load_tasks(str(tmp_path), keep_broken=True)
    assert [task.name for task in found.tasks] == ["good"] and list(found.broken) == ["bad"]
    assert re.search(said, found.broken["bad"])
    with pytest.raises(ConfigError, match=said):
        load_tasks(str(tmp_path))


def test_links_to_tasks_are_followed_and_no_circles(tmp_path: Path) -> None:
    make_task(tmp_path / "elsewhere" / "real")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "linked").symlink_to(tmp_path / "elsewhere" / "real")
    (tmp_path / "tasks" / "up").symlink_to(tmp_path)
    assert [task.name for task in load_tasks(str(tmp_path / "tasks")).tasks] == ["linked"]


def test_a_repository_cannot_reach_out_of_itself(tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    secret = tmp_path / "secret"
    secret.mkdir()
    for name in ("instruction.md", "tests", "environment"):
        directory = make_task(repository / f"with-{name}")
        part = directory / name
        shutil.rmtree(part) if part.is_dir() else part.unlink()
        part.symlink_to(secret)
    make_task(repository / "honest")
    git("init", "-q", "-b", "main", cwd=repository)
    git("add", ".", cwd=repository)
    git("commit", "-qm", "first", cwd=repository)
    found = load_tasks(f"file://{repository}", cache=tmp_path / "cache", keep_broken=True)
    assert [task.name for task in found.tasks] == ["honest"]
    assert set(found.broken) == {"with-instruction.md", "with-tests", "with-environment"}
    assert all("leads out of" in text for text in found.broken.values())


def test_near_names_of_what_is_not_there(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks" / "one")
    with pytest.raises(ConfigError, match="did you mean tasks"):
        load_tasks(str(tmp_path / "taks"))
    with pytest.raises(ConfigError, match="nor is there a directory"):
        load_tasks(str(tmp_path / "nowhere" / "tasks"))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match="no table of tasks"):
        load_tasks(str(tmp_path / "notes.txt"))


def test_a_directory_without_tasks_and_a_revision_of_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no task"):
        load_tasks(str(tmp_path))
    with pytest.raises(ConfigError, match="has no revisions"):
        load_tasks(str(tmp_path), revision="v1")


def test_the_hub_needs_its_extra(tmp_path: Path) -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match="datasets"):
            load_tasks("some/dataset", cache=tmp_path)


def test_globs_choose_and_unknown_names_are_errors(tmp_path: Path) -> None:
    for name in ("git-one", "git-two", "sqlite"):
        make_task(tmp_path / name)
    tasks = load_tasks(str(tmp_path)).tasks
    assert [t.name for t in select(tasks, ["git-*"], ["git-two"])] == ["git-one"]
    assert len(select(tasks, None, None)) == 3
    with pytest.raises(UnknownName, match="did you mean git-two"):
        select(tasks, ["git-twoo"], None)
    with pytest.raises(UnknownName, match="skip_tasks"):
        select(tasks, None, ["nothing-*"])
    with pytest.raises(ConfigError, match="leave no task"):
        select(tasks, ["git-*"], ["git-*"])


def test_all_that_git_says_is_told_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\necho "remote: You are not allowed to read it" >&2\n'
        "echo \"fatal: unable to access 'https://me:secret@host/r.git/': 403\" >&2\nexit 128\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with pytest.raises(ConfigError) as caught:
        load_tasks("https://me:secret@host/r.git", cache=tmp_path / "cache")
    told = str(caught.value)
    assert told.startswith("git ls-remote failed: remote: You are not allowed") and "403" in told
    assert "secret" not in told
