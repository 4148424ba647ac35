"""Which source wins, for each pair of sources, and what config_init may return."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Self

import pytest
from fake_environment import FakeConfig, fake
from pydantic import BaseModel, Field, field_validator, model_validator

from environments.config import APIServerConfig, BaseEnvConfig, ServerBaseline
from environments.configuration import Flag, resolve
from environments.errors import ConfigError

SOURCES = ["default", "config_init", "first file", "second file", "argument", "flag"]


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("lower", "higher"), list(itertools.combinations(range(len(SOURCES)), 2)))
def test_the_higher_source_wins(tmp_path: Path, lower: int, higher: int) -> None:
    active = {SOURCES[lower], SOURCES[higher]}
    number = {source: 10 + i for i, source in enumerate(SOURCES)}
    number["default"] = 4
    sections = "env:\n  group_size: {0}\nopenai:\n  timeout: {0}\n"
    files = [
        write(tmp_path, f"{source}.yaml", sections.format(number[source]))
        for source in ("first file", "second file")
        if source in active
    ]
    init = number["config_init"]
    cls = fake()
    if "config_init" in active:
        cls = fake({"group_size": init}, [APIServerConfig(timeout=init)])
    argument, text = number["argument"], str(number["flag"])
    got = resolve(
        cls,
        "serve",
        config=files,
        env={"group_size": argument} if "argument" in active else None,
        openai={"timeout": argument} if "argument" in active else None,
        flags=[Flag("env", "group_size", text), Flag("openai", "timeout", text)] if "flag" in active else [],
    )
    assert (got.env.group_size, got.servers[0].timeout) == (number[SOURCES[higher]],) * 2
    origins = {"flag": "--env.group_size", "first file": f"{files[0] if files else ''}:2"}
    origins["second file"] = f"{files[-1] if files else ''}:2"
    assert got.origins["env.group_size"] == origins.get(SOURCES[higher], SOURCES[higher])


def test_process_changes_stand_above_config_init() -> None:
    cls = fake({"ensure_scores_are_not_same": True, "include_messages": False})
    env = resolve(cls, "process").env
    assert (env.ensure_scores_are_not_same, env.include_messages) == (False, True)
    assert env.data_path_to_save_groups == "data/fake.jsonl"
    serve = resolve(cls, "serve").env
    assert (serve.ensure_scores_are_not_same, serve.data_path_to_save_groups) == (True, None)


def test_process_changes_stand_below_yaml_and_flags(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "env: {include_messages: false, data_path_to_save_groups: null}")
    got = resolve(fake(), "process", config=path, flags=[Flag("env", "ensure_scores_are_not_same", "true")])
    assert (got.env.include_messages, got.env.ensure_scores_are_not_same) == (False, True)
    assert got.env.data_path_to_save_groups is None


def test_process_keeps_a_path_that_config_init_set() -> None:
    assert resolve(fake({"data_path_to_save_groups": "x.jsonl"}), "process").env.data_path_to_save_groups == (
        "x.jsonl"
    )


def test_process_names_the_file_after_the_class_where_there_is_no_name() -> None:
    assert resolve(fake(name=None), "process").env.data_path_to_save_groups == "data/OtherEnv.jsonl"


@pytest.mark.parametrize(
    ("init", "override", "directory"),
    [
        ({}, {}, "evals/fake"),
        ({"wandb_name": "run"}, {}, "evals/run"),
        ({"wandb_name": "run"}, {"wandb_name": "mine"}, "evals/mine"),
        ({"data_dir_to_save_evals": "there"}, {}, "there"),
        ({"data_dir_to_save_evals": "there"}, {"data_dir_to_save_evals": None}, None),
    ],
)
def test_evaluate_has_a_place_for_results(
    init: dict[str, Any], override: dict[str, Any], directory: str | None
) -> None:
    assert resolve(fake(init), "evaluate", env=override).env.data_dir_to_save_evals == directory


# --- servers ----------------------------------------------------------------------------------------------

TWO = [
    APIServerConfig(model_name="a", base_url="http://a/v1", tokenizer_name="t"),
    APIServerConfig(model_name="b", base_url="http://b/v1"),
]


def urls(cls: Any, **options: Any) -> list[str | None]:
    return [server.base_url for server in resolve(cls, "serve", **options).servers]


def test_a_single_server_is_a_list_of_one_and_keeps_everything() -> None:
    server = APIServerConfig(base_url="http://x/v1", api_key="k", health_check=False, n_kwarg_is_ignored=True)
    assert resolve(fake(servers=server), "serve").servers == [server]


def test_a_server_baseline_is_accepted_and_overridable() -> None:
    got = resolve(fake(servers=ServerBaseline(model_name="m")), "serve", openai={"base_url": "http://y"})
    assert (got.servers[0].model_name, got.servers[0].base_url) == ("m", "http://y")


def test_several_entries_inherit_from_the_server_of_their_index_else_the_first(tmp_path: Path) -> None:
    text = "openai:\n- base_url: http://1\n- timeout: 5\n- base_url: http://3\n"
    got = resolve(fake(servers=TWO), "serve", config=write(tmp_path, "a.yaml", text)).servers
    assert [(s.model_name, s.base_url, s.tokenizer_name) for s in got] == [
        ("a", "http://1", "t"), ("b", "http://b/v1", "none"), ("a", "http://3", "t"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["openai: {timeout: 5}", "openai: [{timeout: 5}]"])
def test_one_entry_is_merged_over_the_first_server(tmp_path: Path, text: str) -> None:
    got = resolve(fake(servers=TWO), "serve", config=write(tmp_path, "a.yaml", text))
    assert [(s.base_url, s.timeout) for s in got.servers] == [("http://a/v1", 5)]


def test_server_flags_count_for_every_server() -> None:
    got = resolve(fake(servers=TWO), "serve", flags=[Flag("openai", "timeout", "7")])
    assert [(s.base_url, s.timeout) for s in got.servers] == [("http://a/v1", 7), ("http://b/v1", 7)]
    assert got.origins["openai[1].timeout"] == "--openai.timeout"
    assert got.origins["openai[1].base_url"] == "config_init"


def test_without_a_section_all_servers_stay() -> None:
    assert urls(fake(servers=TWO)) == ["http://a/v1", "http://b/v1"]
    assert urls(fake(servers=TWO), openai={"timeout": 1}) == ["http://a/v1", "http://b/v1"]
    assert urls(fake(servers=TWO), openai=[{"base_url": "http://1"}]) == ["http://1"]
    assert urls(fake(servers=[])) == [""]


class OwnServer(APIServerConfig):
    region: str = "eu"


def test_a_subclass_of_the_server_config_keeps_its_fields() -> None:
    got = resolve(fake(servers=[OwnServer(region="us")]), "serve", openai={"timeout": 3}).servers[0]
    assert isinstance(got, OwnServer)
    assert (got.region, got.timeout) == ("us", 3)


# --- objects of another package ---------------------------------------------------------------------------


class ForeignServer(BaseModel):
    """Like atroposlib's: other defaults, fields that are not ours."""

    timeout: int = 999
    base_url: str | None = None
    model_name: str = Field(default="foreign-default")
    server_class: str = "x"
    weight: float = 1.0


class ForeignEnv(BaseModel):
    group_size: int = 4
    use_wandb: bool = True
    worker_timeout: float = 1
    curriculum: str = "x"


def test_foreign_objects_give_only_what_they_were_told() -> None:
    server = ForeignServer(base_url="http://f/v1", server_class="own")
    server.weight = 2
    got = resolve(fake(servers=[server], config_init=classmethod(foreign_init)), "serve")
    assert got.servers == [APIServerConfig(base_url="http://f/v1")]
    assert got.servers[0].timeout == APIServerConfig().timeout
    assert isinstance(got.env, FakeConfig)
    assert (got.env.group_size, got.env.worker_timeout) == (8, 600)


def foreign_init(cls: Any) -> tuple[Any, Any]:
    return ForeignEnv(group_size=8, curriculum="y"), cls.initial_servers


def test_a_base_config_serves_an_environment_with_its_own() -> None:
    def init(cls: Any) -> tuple[Any, Any]:
        return BaseEnvConfig(group_size=9), []

    env = resolve(fake(config_init=classmethod(init)), "serve").env
    assert isinstance(env, FakeConfig)
    assert env.group_size == 9


def test_a_value_assigned_after_construction_counts() -> None:
    def init(cls: Any) -> tuple[Any, Any]:
        config = FakeConfig()
        config.group_size = 9
        return config, []

    got = resolve(fake(config_init=classmethod(init)), "serve")
    assert (got.env.group_size, got.origins["env.group_size"]) == (9, "config_init")


class UnrelatedConfig(BaseEnvConfig):
    speed: int = 1


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"must return \(env_config, server_configs\)"),
        ((FakeConfig(), "http://x"), "returns str where a APIServerConfig belongs"),
        (({}, []), "returns dict where a FakeConfig belongs"),
        ((UnrelatedConfig(speed=3), []), "env_config_cls is FakeConfig, which has no speed"),
    ],
)
def test_what_config_init_must_not_return(returned: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(fake(config_init=classmethod(lambda cls: returned)), "serve")


def test_a_mistake_inside_config_init_is_told() -> None:
    with pytest.raises(ConfigError, match=r"OtherEnv.config_init\(\): FakeConfig group_size: Input should"):
        resolve(fake({"group_size": "many"}), "serve")


class CheckedConfig(FakeConfig):
    required: int
    even: int = 0

    @field_validator("even")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    @model_validator(mode="after")
    def has_presets(self) -> Self:
        if not self.presets:
            raise ValueError("there are no presets")
        return self


def checked(**env: Any) -> Any:
    def init(cls: Any) -> tuple[Any, Any]:
        return FakeConfig(), []

    return resolve(fake(config_init=classmethod(init), env_config_cls=CheckedConfig), "serve", env=env)


def test_checks_of_the_users_own_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        checked(even=3)
    assert sorted(str(caught.value).splitlines()) == [
        "--env.required: a value is required",
        "env.even: expected int, got 3: must be even (argument)",
    ]
    with pytest.raises(ConfigError, match=r"^env: there are no presets$"):
        checked(required=1, presets=[])
    assert checked(required=1, even=2).env.even == 2


# --- arguments from Python --------------------------------------------------------------------------------


def test_python_values_and_text() -> None:
    got = resolve(
        fake(), "serve", env={"presets": ["a"], "seeds": "1,2", "eval_handling": "none", "title": "none"}
    ).env
    assert isinstance(got, FakeConfig)
    assert (got.presets, got.seeds, got.eval_handling.value, got.title) == (["a"], [1, 2], "NONE", "none")


def test_python_mistakes_are_all_told() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(fake(), "serve", env={"group_siz": 1, "limit": -1, "title": 3}, openai={"tiemout": 3})
    assert str(caught.value).splitlines() == [
        "unknown key 'group_siz' in env; did you mean group_size?",
        "unknown key 'tiemout' in openai; did you mean timeout?",
        "env.limit: expected int >= 1 or none, got -1 (argument)",
        "env.title: expected str or none, got 3: put it in quotes (argument)",
    ]


def test_neither_the_result_nor_the_arguments_are_shared() -> None:
    seeds = [5]
    cls = fake({"presets": ["x"]})
    first = resolve(cls, "serve", env={"seeds": seeds})
    assert isinstance(first.env, FakeConfig)
    first.env.seeds.append(6)
    assert seeds == [5]
