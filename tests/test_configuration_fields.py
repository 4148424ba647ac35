"""Any value of any field comes through the command line and through YAML unchanged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from fake_environment import Colour, FakeConfig, fake
from hypothesis import given
from hypothesis import strategies as st

from environments.configuration import Flag, resolve
from environments.configuration.fields import describe, expectation, read_text
from environments.configuration.rendering import render
from environments.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
NOT_NONE = TEXT.filter(lambda text: text.strip().lower() not in ("none", "null"))
FINITE = st.floats(allow_nan=False)
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | FINITE.filter(math.isfinite) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "presets": st.lists(TEXT),
    "seeds": st.lists(st.integers()),
    "weights": st.none() | st.lists(FINITE.filter(math.isfinite)),
    "colour": st.sampled_from(Colour),
    "colours": st.lists(st.sampled_from(Colour)),
    "mode": st.sampled_from(["fast", "slow", None]),
    "level": st.sampled_from([1, 2, 3]),
    "ratio": st.floats(0, 1),
    "offset": st.integers(),
    "scale": FINITE,
    "note": TEXT,
    "title": st.none() | NOT_NONE,
    "flag": st.booleans(),
    "maybe": st.none() | st.booleans(),
    "table": st.none() | st.dictionaries(TEXT, st.integers()),
    "anything": st.none() | st.dictionaries(TEXT, JSON_VALUE, max_size=4),
    "folder": st.none() | st.sampled_from([Path("a/b"), Path("/x y")]),
    "eval_handling": st.sampled_from(["STOP_TRAIN", "LIMIT_TRAIN", "NONE"]),
    "reasoning_effort": st.sampled_from([None, "none", "minimal", "xhigh"]),
}
FIELDS = st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), VALUES[name]))
ENV = fake()


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    value = getattr(value, "value", value)
    return str(value) if isinstance(value, Path) else value


def as_text(value: Any) -> str:
    value = plain(value)
    if isinstance(value, str):
        return value
    return "null" if value is None else json.dumps(value)


def expected(name: str, value: Any) -> Any:
    return getattr(FakeConfig.model_validate({name: value}), name)


@given(FIELDS)
def test_command_line_round_trip(field: tuple[str, Any]) -> None:
    name, value = field
    got = resolve(ENV, "serve", flags=[Flag("env", name, as_text(value))])
    assert getattr(got.env, name) == expected(name, value)
    assert got.origins[f"env.{name}"] == f"--env.{name}"


@given(field=FIELDS, style=st.sampled_from([None, '"', "'"]))
def test_yaml_round_trip(
    tmp_path_factory: pytest.TempPathFactory, field: tuple[str, Any], style: str | None
) -> None:
    name, value = field
    escaped = json.loads(json.dumps(plain(value)).replace("${", "$${"))
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    text = yaml.safe_dump({"env": {name: escaped}}, default_style=style if isinstance(escaped, str) else None)
    path.write_text(text, encoding="utf-8")
    assert getattr(resolve(ENV, "serve", config=path).env, name) == expected(name, value)


@given(st.dictionaries(st.sampled_from(sorted(VALUES)), st.none()).flatmap(
    lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
))  # fmt: skip
def test_printed_configuration_is_the_same_configuration(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    first = resolve(ENV, "process", env=without_secrets(values))
    path = tmp_path_factory.getbasetemp() / "printed.yaml"
    path.write_text(render(first), encoding="utf-8")
    second = resolve(ENV, "process", config=path)
    assert (second.env, second.servers) == (first.env, first.servers)


def without_secrets(values: dict[str, Any]) -> dict[str, Any]:
    """Random text may look like a secret, which is not printed on purpose."""
    from environments.configuration.fields import hide_secrets

    return {name: value for name, value in values.items() if hide_secrets(plain(value)) == plain(value)}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=",[{ \x00"), min_size=1)))
def test_comma_list_round_trip(items: list[str]) -> None:
    items = [stripped for item in items if (stripped := item.strip())]
    assert read_text(list[str], ",".join(items)) == items


@given(TEXT)
def test_any_text_is_read_or_refused_with_a_config_error(text: str) -> None:
    for name in VALUES:
        try:
            resolve(ENV, "serve", flags=[Flag("env", name, text)])
        except ConfigError as error:
            assert str(error).startswith(f"--env.{name}: expected ")


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (bool, "TRUE", True), (bool, "Off", False), (bool, "1", True), (bool, "no", False),
        (str, "123", "123"), (str, "true", "true"), (str, "[x]", "[x]"), (str, "none", "none"),
        (str | None, "None", None), (int | None, "NULL", None), (list[str] | None, "none", None),
        (list[str], "", []), (list[int], "1, 2,3", ["1", "2", "3"]), (list[int], "[1]", [1]),
        (list[str], "fix-git,git-multibranch", ["fix-git", "git-multibranch"]),
        (list[str], '["a,b", "c"]', ["a,b", "c"]), (dict[str, int], '{"a": 1}', {"a": 1}),
        (Literal["vllm", "none"] | None, "NONE", "none"), (Colour, "DARK-BLUE", Colour.DARK_BLUE),
        (Colour, "dark_blue", Colour.DARK_BLUE), (list[str] | str, "a,b", "a,b"),
        (list[str] | str, '["a"]', ["a"]),
    ],
)  # fmt: skip
def test_reading(annotation: Any, text: str, value: Any) -> None:
    assert read_text(annotation, text) == value


@pytest.mark.parametrize("text", ["[a]", '["a"', '{"a": 1, "a": 2}', "[" * 100_000])
def test_broken_json_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--env.presets: expected list\[str\].*write it as JSON"):
        resolve(ENV, "serve", flags=[Flag("env", "presets", text)])


def test_descriptions() -> None:
    fields = FakeConfig.model_fields
    assert describe(fields["presets"].annotation) == "list[str]"
    assert describe(fields["weights"].annotation) == "list[float]"
    assert describe(fields["mode"].annotation) == "one of fast|slow"
    assert describe(fields["colour"].annotation) == "one of red|dark-blue"
    assert expectation(fields["ratio"]) == "float >= 0 and <= 1"
    assert expectation(fields["max_reasoning_tokens"]) == "int >= 1024 and <= 32000 or none"
