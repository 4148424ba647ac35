"""``hermes-env``: built-in environments by name, the user's own by file or module."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments import command_line
from environments.command_line import ENVIRONMENTS, main
from environments.environment_loading import load_environment
from environments.errors import ConfigError, UserCodeError

ROOT = Path(__file__).parent.parent
FILE = """
from environments.config import BaseEnvConfig
from atroposlib.envs.server_handling.server_manager import APIServerConfig

class {name}:
    name = "mine"
    env_config_cls = BaseEnvConfig

    @classmethod
    def config_init(cls):
        return BaseEnvConfig(group_size=6), APIServerConfig(model_name="m")

    @classmethod
    def run_command(cls, subcommand, effective):
        print(cls.__name__, subcommand, effective.env.group_size, effective.env.limit)
        return 5
"""


@pytest.fixture(autouse=True)
def clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(sys.modules)
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - set(before):
        if not name.startswith(("environments", "pydantic", "yaml")):
            del sys.modules[name]


def write(name: str, *classes: str, text: str = "") -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(FILE.format(name=c) for c in classes) + text)


@pytest.mark.parametrize("target", ["my_env.py", "my_env.py:MyEnv", "./my_env.py", "my_env:MyEnv"])
def test_the_users_own_file(capsys: pytest.CaptureFixture[str], target: str) -> None:
    write("my_env.py", "MyEnv")
    assert main([target, "evaluate", "--env.limit", "3"]) == 5
    assert capsys.readouterr().out == "MyEnv evaluate 6 3\n"


def test_help_names_the_command_as_it_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    write("my_env.py", "MyEnv")
    assert main(["my_env.py", "evaluate", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: hermes-env my_env.py evaluate [")


def test_default_config_lies_beside_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    write("deep/my_env.py", "MyEnv")
    Path("deep/default.yaml").write_text("env: {limit: 8}")
    assert main(["deep/my_env.py", "serve", "--config", "default"]) == 5
    assert capsys.readouterr().out == "MyEnv serve 6 8\n"


def test_the_files_directory_is_importable() -> None:
    write("deep/helper_of_mine.py", text="value = 3\n")
    write("deep/my_env.py", "MyEnv", text="from helper_of_mine import value\nMyEnv.value = value\n")
    assert load_environment("deep/my_env.py").value == 3


def test_a_file_of_a_package_may_import_relatively() -> None:
    write("mypack/__init__.py")
    write("mypack/sub/__init__.py")
    write("mypack/other.py", text="value = 4\n")
    write("mypack/sub/my_env.py", "MyEnv", text="from ..other import value\nMyEnv.value = value\n")
    loaded = load_environment("mypack/sub/my_env.py")
    assert (loaded.value, loaded.__module__) == (4, "mypack.sub.my_env")


def test_a_file_may_have_the_name_of_another_module() -> None:
    write("json.py", "MyEnv")
    assert load_environment("json.py").__name__ == "MyEnv"
    assert load_environment("json.py:MyEnv").__name__ == "MyEnv"


def test_imported_environments_do_not_count() -> None:
    write("parent_env.py", "Parent")
    write("my_env.py", "MyEnv", text="from parent_env import Parent\n")
    assert load_environment("my_env.py").__name__ == "MyEnv"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("termnal_test", "unknown environment 'termnal_test'; did you mean terminal_test?"),
        ("foo", "unknown environment 'foo'; environments: harbor_task, tblite, terminal_test"),
        ("--list", "unknown option --list; an environment or a command comes first"),
        ("my_envv.py", "there is no file my_envv.py; did you mean my_env.py?"),
        ("nowhere/my_env.py", "there is no file nowhere/my_env.py"),
        ("two.py", "two.py defines several environments; name one: two.py:A (A, B)"),
        ("none.py", "none.py defines no environment (a subclass of BaseEnv)"),
        ("my_env.py:MyEnvv", "my_env.py has no 'MyEnvv'; did you mean MyEnv?"),
        ("my_env.py:BaseEnvConfig", "my_env.py:BaseEnvConfig is not an environment (a subclass of BaseEnv)"),
        ("no_pack.mod:MyEnv", "there is no module 'no_pack.mod' (no module named 'no_pack')"),
        (":", "there is no module"),
    ],
)
def test_what_is_not_there(capsys: pytest.CaptureFixture[str], target: str, message: str) -> None:
    write("my_env.py", "MyEnv")
    write("two.py", "A", "B")
    write("none.py")
    assert main([target, "evaluate"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize("target", ["broken.py", "broken:MyEnv"])
def test_a_broken_file_is_shown_with_its_own_traceback(
    capsys: pytest.CaptureFixture[str], target: str
) -> None:
    write("broken.py", text="def f():\n    return 1 / 0\nf()\n")
    assert main([target, "evaluate"]) == 1
    told = capsys.readouterr().err
    assert "cannot be imported" in told.splitlines()[0]
    assert told.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "broken.py" in told.splitlines()[2]
    assert "importlib" not in told
    with pytest.raises(UserCodeError):
        load_environment(target)


def test_a_missing_import_of_the_file_is_its_own_error() -> None:
    write("needs.py", "MyEnv", text="import no_such_package_here\n")
    for target in ("needs.py", "needs:MyEnv"):
        with pytest.raises(UserCodeError, match="No module named 'no_such_package_here'"):
            load_environment(target)


def test_a_syntax_error_is_shown_with_its_line() -> None:
    write("typo.py", text="x = (\n")
    with pytest.raises(UserCodeError, match=r"(?s)line 1.*SyntaxError"):
        load_environment("typo.py")


def test_a_file_that_exits_or_refuses_is_left_alone() -> None:
    write("leaves.py", text="raise SystemExit(3)\n")
    with pytest.raises(SystemExit):
        load_environment("leaves.py")
    write("refuses.py", text="from environments.errors import ConfigError\nraise ConfigError('no')\n")
    with pytest.raises(ConfigError, match=r"^no$"):
        load_environment("refuses.py")


# --- the built-in ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["terminal_test", "Terminal-Test", "TERMINAL_TEST", "terminal-test-env"])
def test_names_in_any_spelling(name: str) -> None:
    assert command_line.find(name) == ENVIRONMENTS["terminal_test"][0]


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(ENVIRONMENTS)
    assert main(["list", "more"]) == 2


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_every_built_in_environment_loads_by_name_and_by_file(name: str) -> None:
    target, description = ENVIRONMENTS[name]
    module, _, class_name = target.partition(":")
    loaded = load_environment(target)
    assert (loaded.__module__, loaded.__name__) == (module, class_name)
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    assert load_environment(str(file)) is loaded
    assert description.endswith(".")


def test_files_of_the_package_are_found_from_anywhere() -> None:
    loaded = load_environment("environments/terminal_test_env/terminal_test_env.py")
    assert loaded.__module__ == "environments.terminal_test_env.terminal_test_env"


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("list >/dev/full", 1, "error: cannot write the output: No space left on device\n"),
        ("terminal_test process --help >/dev/full", 1, "error: cannot write the output: No space left"),
        ("list >&-", 0, ""),
        ("nowhere 2>&-", 2, ""),
        ("nowhere 2>/dev/full", 2, ""),
    ],
)
def test_streams_that_cannot_be_written(command: str, code: int, told: str) -> None:
    line = f'"{sys.executable}" -m environments.command_line {command}'
    done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[: len(told)]) == (code, told)
    assert done.stderr.count("\n") == bool(told)


def test_show_passes_its_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from environments.results import show

    got: list[list[str]] = []
    monkeypatch.setattr(show, "main", lambda argv: got.append(argv) or 4)
    assert main(["show", "file.jsonl", "3"]) == 4
    assert got == [["file.jsonl", "3"]]


def test_without_arguments_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: hermes-env ENVIRONMENT")
    assert main(["--version"]) == 0


@pytest.mark.parametrize("words", [["--help"], ["list"], ["--version"]])
def test_the_front_door_imports_nothing(words: list[str]) -> None:
    script = (
        f"import sys; from environments.command_line import main; code = main({words}); "
        "heavy = {'pydantic', 'yaml', 'asyncio', 'aiohttp', 'rich', 'logging'} & set(sys.modules); "
        "sys.exit(code or bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


# --- scripts of a checkout --------------------------------------------------------------------------------


def test_a_script_finds_its_default_config_from_anywhere(tmp_path: Path) -> None:
    script = ROOT / "environments/terminal_test_env/terminal_test_env.py"
    done = subprocess.run(
        [sys.executable, str(script), "process", "--config", "default", "--print-config"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "default.yaml:" in done.stdout
