"""The command line of an environment: what is read, what is refused, and how that is told.

The cases that broke the original's command line are marked with "original:".
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_environment import FakeEnv, fake, run
from hypothesis import given
from hypothesis import strategies as st

from environments.cli import main, scan
from environments.config import APIServerConfig
from environments.configuration import Effective, resolve
from environments.errors import ConfigError, HermesError, MissingExtra, RunAborted

TESTS = Path(__file__).parent
HEAVY = ["aiohttp", "rich", "yaml", "greenlet", "starlette", "uvicorn", "openai", "numpy", "jinja2", "wandb"]


@pytest.fixture(autouse=True)
def quiet_logger() -> Iterator[None]:
    logger = logging.getLogger("environments")
    before = (logger.level, list(logger.handlers))
    yield
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


def accepted(*argv: str, cls: Any = FakeEnv) -> Effective:
    code, effective = run(cls, argv)
    assert code == 0
    assert effective is not None
    return effective


def refused(capsys: pytest.CaptureFixture[str], *argv: str, cls: Any = FakeEnv) -> list[str]:
    """The lines on stderr of a command line that must not run anything."""
    code, effective = run(cls, argv)
    captured = capsys.readouterr()
    assert (code, effective, captured.out) == (2, None, "")
    return captured.err.splitlines()


# --- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["space", "equals"])
@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("total_steps", "-1", -1),  # original: became 1
        ("offset", "-7", -7),  # original: became 1
        ("scale", "-1.5e3", -1500.0),
        ("scale", "-inf", float("-inf")),
        ("presets", '["fast_test"]', ["fast_test"]),  # original: impossible
        ("seeds", "[1]", [1]),
        ("seeds", "-1,2", [-1, 2]),
        ("presets", "", []),
        ("note", "- be brief", "- be brief"),
        ("note", "a=b", "a=b"),
        ("note", "", ""),
        ("title", "None", None),
        ("flag", "TRUE", True),
        ("colour", "DARK-blue", "dark-blue"),
        ("eval_handling", "limit_train", "LIMIT_TRAIN"),
        ("extra_body", '{"provider": {"order": ["x"]}}', {"provider": {"order": ["x"]}}),
    ],
)
def test_values(form: str, name: str, text: str, value: Any) -> None:
    words = [f"--env.{name}", text] if form == "space" else [f"--env.{name}={text}"]
    got = getattr(accepted("serve", *words, "--env.seed", "9").env, name)
    assert getattr(got, "value", got) == value


def test_a_bare_boolean_means_true() -> None:  # original: exit code 2
    env: Any = accepted("serve", "--env.flag", "--env.maybe").env
    assert (env.flag, env.maybe) == (True, True)
    env = accepted("serve", "--env.flag", "off", "--env.seed", "3").env
    assert (env.flag, env.seed) == (False, 3)


def test_the_last_of_a_repeated_flag_wins() -> None:
    assert accepted("serve", "--env.seed", "1", "--env.seed=2").env.seed == 2


def test_later_files_win_over_earlier_ones_and_flags_over_both(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("env: {seed: 1, limit: 1, offset: 1}")
    (tmp_path / "b.yaml").write_text("env: {seed: 2, limit: 2}")
    files = ["--config", str(tmp_path / "a.yaml"), f"--config={tmp_path / 'b.yaml'}"]
    env: Any = accepted("serve", "--env.seed", "3", *files).env
    assert (env.seed, env.limit, env.offset, env.group_size) == (3, 2, 1, 3)


def test_flags_and_files_may_describe_several_servers(tmp_path: Path) -> None:  # original: exit code 2
    (tmp_path / "a.yaml").write_text("openai: [{base_url: http://1}, {base_url: http://2}]")
    got = accepted("serve", "--config", str(tmp_path / "a.yaml"), "--openai.model_name", "q").servers
    assert [(s.base_url, s.model_name, s.api_key) for s in got] == [
        ("http://1", "q", "sk-secret"), ("http://2", "q", "sk-secret"),
    ]  # fmt: skip


def test_a_single_server_with_a_flag_loses_nothing() -> None:  # original: base_url and key discarded
    server = APIServerConfig(base_url="http://localhost:9001/v1", api_key="x", health_check=False)
    got = accepted("process", "--openai.model_name", "q", cls=fake(servers=server)).servers
    assert got == [server.model_copy(update={"model_name": "q"})]


def test_an_empty_file_is_accepted(tmp_path: Path) -> None:  # original: AttributeError
    (tmp_path / "empty.yaml").write_text("")
    accepted("serve", "--config", str(tmp_path / "empty.yaml"))


def test_options_of_the_original_without_effect_say_so(caplog: pytest.LogCaptureFixture) -> None:
    accepted("serve", "--slurm", "false", "--testing", "--max_n_completions=8", "--proxy_url", "http://x")
    told = caplog.text
    for option in ("--slurm", "--testing", "--max_n_completions", "--proxy_url"):
        assert f"{option} has no effect here" in told


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        # original: an abbreviation was accepted and ignored
        (["--env.group_siz", "8"], "unknown option --env.group_siz; did you mean --env.group_size?"),
        (["--env.group-size=8"], "unknown option --env.group-size; did you mean --env.group_size?"),
        (["--group_size", "8"], "unknown option --group_size; did you mean --env.group_size?"),
        (["--model_name", "8"], "unknown option --model_name; did you mean --openai.model_name?"),
        (["--conf", "x"], "unknown option --conf; did you mean --config, --print-config?"),
        (["--zzz"], "unknown option --zzz; --help lists them all"),
        (["-x"], "unknown option -x; --help lists them all"),
        (["env.seed=3"], "unexpected argument 'env.seed=3'; did you mean --env.seed 3?"),
        (["seed=3"], "unexpected argument 'seed=3'; did you mean --env.seed 3?"),
        (["--env.presets", "a", "b"], "unexpected argument 'b'; options begin with --, lists are written a,b "
         "or '[\"a\", \"b\"]'"),
        (["--env.seed"], "--env.seed needs a value (write --env.seed=VALUE if it begins with a dash)"),
        (["--env.seed", "--env.flag"],
         "--env.seed needs a value (write --env.seed=VALUE if it begins with a dash)"),
        (["--print-config=3"], "--print-config takes no value"),
        (["--log-level", "loud"], "--log-level: expected one of DEBUG|INFO|WARNING|ERROR, got 'loud'"),
        (["--env.seed", "four"], "--env.seed: expected int, got 'four' (command line)"),
        (["--env.ratio", "2"], "--env.ratio: expected float >= 0 and <= 1, got '2' (command line)"),
        (["--env.flag", "maybe"], "--env.flag: expected bool, got 'maybe' (command line)"),
        (["--env.mode", "x"], "--env.mode: expected one of fast|slow or none, got 'x' (command line)"),
        (["--env.seeds", "1,x"], "--env.seeds: expected list[int], got ['1', 'x']: [1]: Input should be a "
         "valid integer, unable to parse string as an integer (command line)"),
        (["--openai.api_key", "k", "--openai.timeout", "x"],
         "--openai.timeout: expected int > 0, got 'x' (command line)"),
        (["--config", "nowhere.yaml"], "--config nowhere.yaml: no such file"),
    ],
)  # fmt: skip
def test_mistakes(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert refused(capsys, "serve", *words) == [f"error: {line}"]


def test_every_bad_value_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("env: {limit: -1}\n")
    config = str(tmp_path / "a.yaml")
    lines = refused(capsys, "serve", "--config", config, "--env.seed", "x", "--openai.timeout", "y")
    assert sorted(lines) == [
        "error: --env.seed: expected int, got 'x' (command line)",
        "error: --openai.timeout: expected int > 0, got 'y' (command line)",
        f"error: env.limit: expected int >= 1 or none, got -1 ({config}:1)",
    ]


@pytest.mark.parametrize("words", [[], ["--env.seed", "1"], ["evaluat"], ["Serve"]])
def test_the_subcommand_is_needed(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    told = "\n".join(refused(capsys, *words))
    assert all(name in told for name in ("serve", "process", "evaluate")) or "did you mean" in told


def test_without_a_subcommand_each_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys)  # original: AttributeError
    assert told[0] == "usage: fake.py {serve,process,evaluate} [options]"
    assert any(line.startswith("  process   ") for line in told)


@given(st.lists(st.text(max_size=8) | st.sampled_from(["--env.seed", "--config", "--env.flag", "-1", "-h"])))
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    try:
        scan(words, {"--env.seed": False, "--env.flag": True})
    except ConfigError as error:
        assert str(error)


# --- running ----------------------------------------------------------------------------------------------


def running(behaviour: Any) -> Any:
    return fake(run_command=classmethod(lambda cls, subcommand, effective: behaviour()))


def raising(error: BaseException) -> Any:
    def behaviour() -> int:
        raise error

    return running(behaviour)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("bad\nworse"), 2, "error: bad\nerror: worse\n"),
        (MissingExtra("modal", "modal"), 2,
         "error: modal needs the extra 'modal': pip install 'hermes-environments[modal]'\n"),
        (RunAborted("disk full"), 1, "error: disk full\n"),
        (HermesError(), 1, "error: HermesError\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)  # fmt: skip
def test_exit_codes(capsys: pytest.CaptureFixture[str], error: BaseException, code: int, told: str) -> None:
    assert main(raising(error), ["serve"]) == code
    assert capsys.readouterr().err == told


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        main(raising(ZeroDivisionError()), ["serve"])


async def three() -> int:
    return 3


@pytest.mark.parametrize(("behaviour", "code"), [(lambda: 3, 3), (lambda: None, 0), (three, 3)])
def test_the_exit_code_of_the_run_is_passed_on(behaviour: Any, code: int) -> None:
    assert main(running(behaviour), ["serve"]) == code


def test_logging_is_set_up_once(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    logger = logging.getLogger("environments")
    before, root.handlers[:] = list(root.handlers), []
    try:
        for level in ("debug", "INFO"):
            accepted("serve", "--log-level", level)
        assert (len(logger.handlers), logger.level, root.level) == (1, logging.INFO, root.level)
        logging.getLogger("environments.x").info("hello")
        assert capsys.readouterr().err.count("hello") == 1
    finally:
        root.handlers[:] = before


# --- print-config -----------------------------------------------------------------------------------------


def test_print_config_gives_origins_and_no_secrets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("env:\n  offset: 7\nopenai:\n  base_url: https://user:hunter2@host/v1\n")
    options = [
        "--config",
        str(path),
        "--env.seeds",
        "4,5",
        "--env.extra_body",
        '{"api_key": "hunter2", "n": 1}',
    ]
    code, ran = run(FakeEnv, ["process", *options, "--print-config"])
    shown = capsys.readouterr().out
    assert (code, ran) == (0, None)
    assert "sk-secret" not in shown
    assert "hunter2" not in shown
    for line in (
        "  group_size: 3  # config_init",
        f"  offset: 7  # {path}:2",
        "  seeds: [4, 5]  # --env.seeds",
        "  include_messages: true  # process",
        "  limit: null  # default",
        "  extra_body: {n: 1}  # --env.extra_body",
        "  # api_key: set, not shown  # config_init",
    ):
        assert line in shown.splitlines()


def test_what_is_printed_can_be_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = [
        "--env.note",
        "a: #b\n${X} 'q' \"r\"",
        "--env.colours",
        "red,dark-blue",
        "--env.title",
        "none ",
    ]
    expected = accepted("process", *options)
    run(FakeEnv, ["process", *options, "--print-config"])
    path = tmp_path / "printed.yaml"
    path.write_text(capsys.readouterr().out)
    again = resolve(FakeEnv, "process", config=path)
    assert (again.env, again.servers) == (expected.env, expected.servers)


# --- help -------------------------------------------------------------------------------------------------


def shown_help(capsys: pytest.CaptureFixture[str], *words: str, cls: Any = FakeEnv) -> str:
    assert run(cls, [*words, "--help"]) == (0, None)
    return capsys.readouterr().out


def test_help_lists_every_field_with_what_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    text = shown_help(capsys, "process")
    for section, model in (("env", FakeEnv.env_config_cls), ("openai", APIServerConfig)):
        for name in model.model_fields:
            assert f"  --{section}.{name} " in text
    order = ["General", "FakeEnv", "--env.presets", "Agent", "--env.enabled_toolsets", "All environments",
             "--env.group_size", "Model server", "--openai.model_name"]  # fmt: skip
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)
    lines = " ".join(text.split())
    assert '--env.presets list[str] Presets to play. (default: ["fast_test", "medium"])' in lines
    assert "Rollouts of one item that form a group. (default: 3)" in lines
    assert "(default: true, from process)" in lines
    assert "(default: data/fake.jsonl, from process)" in lines
    assert "sk-secret" not in text


def test_help_shows_what_files_and_flags_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(default: 17, from --env.seed)" in shown_help(capsys, "serve", "--env.seed", "17")
    assert "are not valid" in shown_help(capsys, "serve", "--env.seed", "x")
    assert "--env.seed int" in shown_help(capsys, "serve", "--nonsense")


def test_help_and_version_without_a_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Plays a game." in shown_help(capsys)
    assert run(FakeEnv, ["--version"]) == (0, None)
    assert capsys.readouterr().out.startswith("hermes-environments ")


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from fake_environment import FakeEnv
from environments.cli import main
code = main(FakeEnv, ["process", "--help"])
print(sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def test_help_imports_nothing_heavy() -> None:
    script = SCRIPT.format(tests=str(TESTS), heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=TESTS.parent, check=True
    )
    assert done.stderr.strip() == "[]"


def test_help_into_a_closed_pipe_is_no_error() -> None:
    script = SCRIPT.format(tests=str(TESTS), heavy=[])
    command = f'"{sys.executable}" -c "$SCRIPT" | true'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={"SCRIPT": script, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
