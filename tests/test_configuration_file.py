"""Configuration files: what is read, and how mistakes in them are told."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_environment import FakeConfig, fake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.configuration import resolve
from environments.configuration.rendering import render
from environments.configuration.yaml_file import PACKAGE, find_config
from environments.errors import ConfigError


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str | bytes, **options: Any) -> Any:
    data = text.encode() if isinstance(text, str) else text
    Path("a.yaml").write_bytes(data)
    return resolve(fake(), "serve", config="a.yaml", **options)


def env(text: str) -> FakeConfig:
    found = read("env:\n" + "".join(f"  {line}\n" for line in text.splitlines())).env
    assert isinstance(found, FakeConfig)
    return found


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "env:\nopenai:\n", "\ufeff"])
def test_an_empty_file_is_fine(text: str) -> None:
    assert read(text).env.group_size == 4


def test_scalars_follow_the_type_of_the_field() -> None:
    got = env(
        "note: 123\ntitle: 2025-01-01\npresets: [no, 1.0, x]\nscale: 3\nflag: yes\nseeds: 7\nmode: FAST"
    )
    assert (got.note, got.title, got.presets) == ("123", "2025-01-01", ["no", "1.0", "x"])
    assert (got.scale, got.flag, got.seeds, got.mode) == (3.0, True, [7], "fast")


def test_none_is_nothing_unless_quoted() -> None:
    assert env("title: null").title is None
    assert env("title: none").title is None
    assert env("title: 'none'").title == "none"
    assert env("title:").title is None


def test_comma_lists_and_scientific_numbers() -> None:
    got = env("presets: fix-git,git-multibranch\nscale: 1e5")
    assert (got.presets, got.scale) == (["fix-git", "git-multibranch"], 100_000.0)


def test_anchors_and_merge_keys() -> None:
    got = read("env: &base\n  group_size: 8\n  extra_body: {a: 1}\nopenai: {timeout: 3}").env
    assert (got.group_size, got.extra_body) == (8, {"a": 1})
    merged = env("table: &t {a: 1, b: 2}\nanything: {<<: *t, b: 3}")
    assert merged.anything == {"a": 1, "b": 3}


def test_keys_of_the_original_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    read("slurm: false\ntesting: false\nenv: {group_size: 2}")
    assert [r.getMessage() for r in caplog.records] == [
        "a.yaml:1: 'slurm' has no effect here",
        "a.yaml:2: 'testing' has no effect here",
    ]


# --- variables --------------------------------------------------------------------------------------------


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBER", "7")
    monkeypatch.setenv("WORD", "w: #x")
    monkeypatch.setenv("EMPTY", "")
    got = env(
        "offset: ${NUMBER}\nnote: 'a ${WORD} b ${NO:-d}'\ntitle: ${EMPTY}\nseeds: ['${NUMBER}', 2]\n"
        "anything: {n: '${NUMBER}', s: 'v${NUMBER}', raw: '$${NUMBER}', d: '${EMPTY:-3}'}"
    )
    assert (got.offset, got.note, got.title, got.seeds) == (7, "a w: #x b d", None, [7, 2])
    assert got.anything == {"n": 7, "s": "v7", "raw": "${NUMBER}", "d": 3}


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"env.note: .*variable NO_SUCH is not set \(a.yaml:2\)"):
        env("note: x${NO_SUCH}")
    with pytest.raises(ConfigError, match=r"openai.api_key: the environment variable NO_SUCH is not set"):
        read("openai: {api_key: '${NO_SUCH}'}")


def test_a_variable_never_shows_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", "hunter2")
    with pytest.raises(ConfigError) as caught:
        env("offset: ${HIDDEN}")
    assert str(caught.value) == "env.offset: expected int, got '${HIDDEN}' (a.yaml:2)"
    shown = render(read("env: {anything: {headers: {Authorization: '${HIDDEN}', x: '${HIDDEN}'}}}\n"
                        "openai: {api_key: '${HIDDEN}'}"))  # fmt: skip
    assert "hunter2" not in shown
    assert 'anything: {headers: {Authorization: "${HIDDEN}", x: "${HIDDEN}"}}' in shown
    assert 'api_key: "${HIDDEN}"' in shown


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env:\n  group_siz: 3", "a.yaml:2: unknown key in env 'group_siz'; did you mean group_size?"),
        ("openai:\n- {}\n- modelname: x",
         "a.yaml:3: unknown key in openai[1] 'modelname'; did you mean model_name?"),
        ("env: {zzz: 1}", "a.yaml:1: unknown key in env 'zzz'; --help lists them all"),
        ("evn: {}", "a.yaml:1: unknown section 'evn'; did you mean env?"),
        ("env:\n  seed: 1\n  seed: 2", "a.yaml:3: 'seed' stands there already (line 2)"),
        ("env: {}\nenv: {}", "a.yaml:2: 'env' stands there already (line 1)"),
        ("env:\n  anything:\n    a: 1\n    a: 2", "a.yaml:4: 'a' stands there already (line 3)"),
        ("- 1", "a.yaml:1: the file must be a mapping (key: value)"),
        ("env: 3", "a.yaml:1: env: must be a mapping (key: value)"),
        ("openai: [3]", "a.yaml:1: openai[0]: must be a mapping (key: value)"),
        ("env: {group_size: many}", "env.group_size: expected int >= 1, got 'many' (a.yaml:1)"),
        ("env: {group_size: true}", "env.group_size: expected int >= 1, got 'true' (a.yaml:1)"),
        ("env: {group_size: null}", "env.group_size: expected int >= 1, got None (a.yaml:1)"),
        ("env: {note: [x]}", "env.note: expected str, got ['x'] (a.yaml:1)"),
        ("env: {seeds: [1, x]}", "env.seeds: expected list[int], got [1, 'x']: [1]: Input should be a valid "
         "integer, unable to parse string as an integer (a.yaml:1)"),
        ("env: {note: !thing x}", "env.note: expected str, got 'x': "
         "the tag !thing is not known here (a.yaml:1)"),
        ("env: {anything: &a {x: *a}}", "env.anything: an anchor that contains itself (a.yaml:1)"),
        ("env: {note: !!int ''}", "env.note: expected str, got '': not a YAML int (a.yaml:1)"),
        ("env: {flag: !!bool x}", "env.flag: expected bool, got 'x': not a YAML bool (a.yaml:1)"),
        ("env: {<<: 3}", "a.yaml:1: expected a mapping or list of mappings for merging, but found scalar"),
        ("env: {anything: &a {x: {<<: *a}}}", "env.anything: an anchor that contains itself (a.yaml:1)"),
        ("env: {? [a] : 3}", "a.yaml:1: a key must be plain text"),
        ("openai: {server_type: vlm, api_key: [hunter2]}",
         "openai.server_type: expected one of openai|vllm|sglang|trl|llamacpp|oracle|nop, "
         "got 'vlm' (a.yaml:1)\n"
         "openai.api_key: expected str or none, got *** (a.yaml:1)"),
        ("env: {a: [}", "a.yaml:1:11: not valid YAML: expected the node content, but found '}' "
         "(while parsing a flow node)"),
        ("env:\n\tx: 1", "a.yaml:2:1: not valid YAML: found character '\\t' that cannot start any token "
         "(while scanning for the next token)"),
        ("a: 1\n---\nb: 2", "a.yaml:2:1: not valid YAML: but found another document "
         "(expected a single document in the stream)"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value) == message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.text(st.sampled_from("env: openai\n -[]{}&a*<!?|>'\"#$%@,0123none~\t"), max_size=60))
def test_any_file_is_read_or_refused(text: str) -> None:
    for whole in (text, f"env:\n  anything: {text}", f"env: {{note: {text}}}", f"openai:\n- {text}"):
        with contextlib.suppress(ConfigError):
            read(whole)


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read("env:\n  nope: 1\n  seed: x\n  limit: -1\nopenai:\n  timeout: y\n")
    assert len(str(caught.value).splitlines()) == 4


def test_a_file_that_is_no_text() -> None:
    with pytest.raises(ConfigError, match=r"^a.yaml: not valid YAML: "):
        read(b"env: \xff\xfe\x00")


# --- finding ----------------------------------------------------------------------------------------------


def test_a_missing_file_names_the_near_ones() -> None:
    Path("default.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"--config defualt.yaml: no such file; did you mean default.yaml"):
        resolve(fake(), "serve", config="defualt.yaml")


def test_a_directory_is_no_file() -> None:
    Path("d").mkdir()
    with pytest.raises(ConfigError, match="--config d: is a directory"):
        find_config("d", None)


def test_default_is_the_file_beside_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("elsewhere").resolve()
    folder.mkdir()
    (folder / "its_module.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("its_module")
    monkeypatch.setitem(sys.modules, "its_module", module)
    cls = fake(__module__="its_module")
    with pytest.raises(ConfigError, match=r"--config default: there is no .*default.yaml"):
        resolve(cls, "serve", config="default")
    (folder / "default.yaml").write_text("env: {group_size: 21}")
    assert resolve(cls, "serve", config="default").env.group_size == 21


def test_files_of_the_package_are_found_from_anywhere() -> None:
    shipped = sorted(PACKAGE.rglob("default.yaml"))
    for path in shipped:
        assert find_config(str(path.relative_to(PACKAGE.parent)), None) == path
        assert find_config(str(path.relative_to(PACKAGE)), None) == path
    with pytest.raises(ConfigError):
        find_config("environments/../pyproject.toml", None)


def test_what_lies_here_wins_over_the_package() -> None:
    local = Path("environments/terminal_test_env/default.yaml")
    local.parent.mkdir(parents=True)
    local.write_text("")
    assert find_config(str(local), None) == local
