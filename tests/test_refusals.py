"""What is refused before anything is done ends with 2, on every command; what ran and failed with 1."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tasks.making import make_task

from environments.command_line import main

QUIET = '[environment]\nnetwork_mode = "no-network"\n'
NOP = ("--openai.server_type", "nop", "--env.use_wandb", "false", "--env.progress", "none")
EVALUATE = ("terminal_test", "evaluate", *NOP)
TASKS = ("harbor_task", "evaluate", "--env.terminal_backend", "local", "--env.task_images", "replay", *NOP)
MODEL = ("--env.use_wandb", "false", "--openai.model_name", "m", "--openai.base_url")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with what the commands below name, and a port at which nobody listens."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENROUTER_API_KEY", "TERMINAL_SSH_HOST", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    make_task(tmp_path / "good" / "one", QUIET)
    make_task(tmp_path / "unsolved" / "one", QUIET, solve=None)
    make_task(tmp_path / "unsolved" / "two", QUIET, solve=None)
    (make_task(tmp_path / "broken" / "one", QUIET) / "task.toml").write_text("[[[")
    make_task(tmp_path / "images" / "one", '[environment]\ndocker_image = "i:1"\n', dockerfile=None)
    (tmp_path / "file").write_text("text\nmore\n")
    (tmp_path / "empty").mkdir()
    yield tmp_path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


REFUSED: list[tuple[tuple[str, ...], str]] = [
    ((), "usage"),
    (("nothing",), "unknown environment 'nothing'"),
    (("terminal_test",), "usage"),
    (("terminal_test", "evalute"), "did you mean evaluate"),
    ((*EVALUATE, "--env.nothing", "1"), "unknown option --env.nothing"),
    ((*EVALUATE, "--env.limit", "0"), "--env.limit: expected int >= 1"),
    ((*EVALUATE, "--env.limit", "-3"), "--env.limit: expected int >= 1"),
    ((*EVALUATE, "--config", "nowhere.yaml"), "no such file"),
    ((*EVALUATE, "--env.item_ids", "nothing"), "unknown item 'nothing'"),
    ((*EVALUATE, "--env.data_dir_to_save_evals", "file"), "a directory is needed"),
    ((*EVALUATE, "--env.terminal_backend", "nothing"), "unknown sandbox backend"),
    ((*EVALUATE, "--env.terminal_backend", "docker"), "does not run"),
    ((*EVALUATE, "--env.terminal_backend", "ssh"), "needs a host"),
    (
        (
            *EVALUATE,
            *("--env.terminal_backend", "ssh", "--env.ssh_host", "127.0.0.1", "--env.ssh_port", "PORT"),
            *("--env.sandbox_network", "public"),
        ),
        "127.0.0.1",
    ),
    ((*EVALUATE, "--env.terminal_backend", "singularity", "--env.singularity_image", "/no/such"), ""),
    (("terminal_test", "evaluate", *MODEL, "http://127.0.0.1:PORT/v1"), "no model server answers"),
    (("terminal_test", "process", *MODEL, "http://127.0.0.1:PORT/v1"), "no model server answers"),
    (("terminal_test", "evaluate", "--env.use_wandb", "false"), "no API key for openrouter.ai"),
    (("terminal_test", "serve", *NOP), "gives no token ids"),
    (("terminal_test", "process", *NOP, "--env.total_steps", "0"), "at least 1 group"),
    (("terminal_test", "process", *NOP, "--env.limit", "0"), "--env.limit: expected int >= 1"),
    (("terminal_test", "process", *NOP, "--env.data_path_to_save_groups", "empty"), "is a directory"),
    (("terminal_test", "process", *NOP, "--env.data_path_to_save_groups", "file"), "is no file of results"),
    (TASKS, "there are no tasks"),
    ((*TASKS, "--env.dataset_name", "nowhere"), "there is no file or directory nowhere"),
    ((*TASKS, "--env.dataset_name", "empty"), "holds no task"),
    ((*TASKS, "--env.dataset_name", "file"), "is no table of tasks"),
    ((*TASKS, "--env.dataset_name", "good", "--env.dataset_revision", "x"), "has no revisions"),
    ((*TASKS, "--env.dataset_name", "good", "--env.task_filter", "on"), "did you mean one"),
    ((*TASKS, "--env.dataset_name", "good", "--env.skip_tasks", "one"), "leave no task"),
    ((*TASKS, "--env.dataset_name", "good", "--env.task_images", "own"), "replay does without"),
    ((*TASKS, "--env.dataset_name", "broken"), "--env.skip_tasks one"),
    ((*TASKS, "--env.dataset_name", "file:///nowhere/repository"), "git ls-remote failed"),
    ((*TASKS, "--env.dataset_name", "unsolved", "--openai.server_type", "oracle"), "skip_tasks one,two"),
    (("harbor_task", "evaluate", *NOP, "--env.dataset_name", "good"), "--env.task_images replay"),
    (("terminalbench_2", "evaluate", *NOP, "--env.terminal_backend", "docker"), "without an engine"),
    (("terminalbench_2", "process", *NOP, "--env.dataset_name", "good"), "harbor_task process"),
    (("tblite", "serve", *NOP, "--env.dataset_name", "good"), "harbor_task serve"),
    (("tasks",), "usage"),
    (("tasks", "check"), "needs a SOURCE"),
    (("tasks", "check", ""), "needs a SOURCE"),
    (("tasks", "check", "nowhere"), "there is no file or directory"),
    (("tasks", "check", "/dev/null"), "neither a file nor a directory"),
    (("tasks", "check", "good", "broken"), "takes one SOURCE"),
    (("tasks", "check", "good", "--nothing"), "unknown option"),
    (("tasks", "validate", "good", "broken"), "takes one SOURCE"),
    (("tasks", "validate", "good", "--env.limit", "1"), "--env.task_filter chooses tasks"),
    (("tasks", "validate", "good", "--env.dataset_name", "x"), "SOURCE is what is validated"),
    (("tasks", "validate", "good", "--openai.server_type", "nop"), "no model acts"),
    (("tasks", "validate", "good", "--env.group_size", "2"), "has no effect"),
    (("tasks", "validate", "good", "--env.terminal_backend", "docker"), "does not run"),
    (("tasks", "validate", "empty"), "holds no task"),
    (("rescore",), "usage"),
    (("rescore", "nowhere"), "is no run"),
    (("compare", "nowhere"), "takes two results"),
    (("compare", "nowhere", "empty"), "nowhere does not exist"),
    (("compare", "file", "file"), "is no JSONL file of results"),
    (("show", "nowhere"), "nowhere does not exist"),
    (("show", "empty"), "holds no results"),
    (("export", "sft", "nowhere", "out"), "nowhere does not exist"),
    (("export", "harbor", "nowhere", "out"), "is no directory of a run"),
    (("sandboxes", "nothing"), "unknown action"),
    (("sandboxes", "list", "--backend", "nothing"), "unknown sandbox backend"),
    (("sandboxes", "shell", "nothing-such", "--backend", "local"), "unknown sandbox"),
    (("api", "--data", "file"), "cannot use file"),
    (("api", "--token", ""), "holds no token"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=lambda value: " ".join(value)[:70] or "nothing")
def test_what_is_refused_ends_with_2(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(free_port())
    assert main([word.replace("PORT", port) for word in words]) == 2
    told = capsys.readouterr()
    assert said in told.out + told.err and "Traceback" not in told.err


@pytest.mark.parametrize("words", [("show",), ("export", "dpo"), ("api", "--port", "99999999")])
def test_words_that_argparse_refuses_end_with_2(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2


def test_what_was_made_with_other_settings_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(EVALUATE)) == 0
    assert main([*EVALUATE, "--env.max_agent_turns", "3"]) == 2
    assert "env.max_agent_turns: was 10, is now 3" in capsys.readouterr().err


def test_an_exception_of_the_users_code_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("1 / 0\n")
    assert main(["mine.py", "evaluate"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
