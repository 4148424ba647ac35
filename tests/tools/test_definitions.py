from __future__ import annotations

import itertools
import logging
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from environments.errors import ConfigError, UnknownName
from environments.tools import definitions, registry
from environments.tools.definitions import get_tool_definitions, select_tools
from environments.tools.registry import all_tools, get_tool
from environments.tools.toolsets import (
    distribution,
    distribution_names,
    likeliest,
    resolve_toolsets,
    sample_toolsets_from_distribution,
    toolset_names,
)

HERE = ["terminal", "process", "read_file", "write_file", "patch", "search_files", "todo"]


@pytest.fixture(autouse=True)
def tools_of_a_bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tools can be used depends on what is installed; here it is those that need nothing."""
    bare = {name: tool for name, tool in all_tools().items() if name in HERE}
    monkeypatch.setattr(definitions, "all_tools", lambda: bare)


def names(*arguments: object, **options: object) -> list[str]:
    return [tool.name for tool in select_tools(*arguments, **options).tools]  # type: ignore[arg-type]


def test_toolsets_resolve_to_their_tools_in_one_order() -> None:
    assert resolve_toolsets(["file", "terminal"], None) == resolve_toolsets(["terminal", "file"], None)
    assert resolve_toolsets(["terminal", "file"], None) == HERE[:6]


def test_included_toolsets_come_along() -> None:
    assert set(resolve_toolsets(["debugging"], None)) == {*HERE[:6], "web_search", "web_extract"}


def test_a_tool_is_a_toolset_of_one_and_disabled_ones_are_taken_away() -> None:
    assert resolve_toolsets(["patch"], None) == ["patch"]
    assert resolve_toolsets(["terminal", "file"], ["process", "file"]) == ["terminal"]
    assert resolve_toolsets([], None) == []


@pytest.mark.parametrize(("enabled", "disabled"), [(["termnal"], None), (None, ["termnal"])])
def test_an_unknown_toolset_names_the_near_ones(
    enabled: list[str] | None, disabled: list[str] | None
) -> None:
    with pytest.raises(UnknownName, match=r"unknown toolset 'termnal' in (en|dis)abled_toolsets.*terminal"):
        resolve_toolsets(enabled, disabled)


def test_all_toolsets_leave_out_what_is_not_here_and_say_it_once(caplog: pytest.LogCaptureFixture) -> None:
    definitions._say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        first, second = select_tools(), select_tools()
    assert [tool.name for tool in first.tools] == HERE
    assert "web_search" in first.missing
    assert first.missing == second.missing
    assert len(caplog.records) == 1
    assert "web_search" in caplog.text


def test_a_tool_that_was_asked_for_and_is_not_here_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'web_search' of toolset 'web': not available in this version"):
        select_tools(["terminal", "web"])
    with pytest.raises(ConfigError, match=r"'execute_code'"):
        select_tools(["execute_code"])
    assert names(["terminal", "web"], ["web"]) == ["terminal", "process"]


def test_a_requirement_that_is_not_met_is_an_error_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = replace(get_tool("terminal"), requirement=lambda: "needs a moon; order one")
    tools = {**all_tools(), "terminal": needs}
    monkeypatch.setattr(definitions, "all_tools", lambda: tools)
    with pytest.raises(ConfigError, match=r"'terminal' of toolset 'terminal': needs a moon; order one"):
        select_tools(["terminal"])
    selection = select_tools()
    assert selection.missing["terminal"] == "needs a moon; order one"


def test_a_tool_that_a_toolset_is_whole_without_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = replace(
        get_tool("web_search"),
        configured_requirement=lambda settings: "needs a key",
        optional_in=("browser",),
    )
    there = replace(get_tool("browser_back"), configured_requirement=None)
    others = resolve_toolsets(["browser"], ["browser_back", "web_search"])
    monkeypatch.setattr(definitions, "all_tools", lambda: {"web_search": lacking, "browser_back": there})
    selection = select_tools(["browser"], others)
    assert [tool.name for tool in selection.tools] == ["browser_back"]
    assert selection.missing == {"web_search": "needs a key"}
    for enabled in (["browser", "web_search"], ["search"]):
        with pytest.raises(ConfigError, match=r"'web_search'.*needs a key"):
            select_tools(enabled, others)


def test_draws_depend_on_name_and_seed_only() -> None:
    for name in distribution_names():
        draws = [sample_toolsets_from_distribution(name, seed) for seed in range(50)]
        assert draws == [sample_toolsets_from_distribution(name, seed) for seed in range(50)]
        assert all(draws)
        assert {toolset for draw in draws for toolset in draw} <= set(toolset_names())


def likelihood(percentages: dict[str, float], name: str) -> float:
    """How likely a toolset is drawn, where a draw of nothing becomes the likeliest one."""
    none = math.prod(1 - share / 100 for share in percentages.values())
    return percentages[name] / 100 + (none if likeliest(percentages) == name else 0)


def is_likely(count: int, draws: int, probability: float) -> bool:
    """Within four standard deviations. The seeds are fixed, so a test of it does not depend on luck."""
    deviation = math.sqrt(draws * probability * (1 - probability))
    return abs(count - draws * probability) <= 4 * deviation + 1e-9


@pytest.mark.parametrize("name", distribution_names())
def test_each_toolset_is_drawn_with_its_percentage(name: str) -> None:
    draws = [sample_toolsets_from_distribution(name, seed) for seed in range(4_000)]
    for toolset in distribution(name):
        expected = likelihood(distribution(name), toolset)
        count = sum(toolset in draw for draw in draws)
        assert (
            abs(count - len(draws) * expected) <= 4 * math.sqrt(len(draws) * expected * (1 - expected)) + 1e-9
        )


@pytest.mark.parametrize("name", distribution_names())
def test_toolsets_are_drawn_independently(name: str) -> None:
    percentages = distribution(name)
    draws = [sample_toolsets_from_distribution(name, seed) for seed in range(4_000)]
    for one, other in itertools.combinations(percentages, 2):
        if likeliest(percentages) in (one, other):
            continue
        expected = percentages[one] * percentages[other] / 10_000
        count = sum(one in draw and other in draw for draw in draws)
        assert (
            abs(count - len(draws) * expected) <= 4 * math.sqrt(len(draws) * expected * (1 - expected)) + 1e-9
        )


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"enabled": []}, "enabled_toolsets is an empty list"),
        ({"enabled": ["file"], "disabled": ["file"]}, r"disabled_toolsets \['file'\] takes all of them away"),
    ],
)
def test_no_tools_at_all_is_said_once(
    choice: dict[str, list[str]], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    definitions._say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert select_tools(**choice).tools == select_tools(**choice).tools == []
    (record,) = caplog.records
    assert re.search(f"the model gets no tools: {says}", record.message)


def test_an_unknown_distribution_names_the_near_ones() -> None:
    with pytest.raises(UnknownName, match=r"distribution 'terminal_olny'.*terminal_only"):
        sample_toolsets_from_distribution("terminal_olny", 0)


def test_a_distribution_always_leaves_a_tool() -> None:
    for seed in range(30):
        selection = select_tools(distribution="reasoning", seed=seed)
        assert selection.tools
        assert names(distribution="balanced", disabled=["file"], seed=seed) == ["terminal", "process"]


def test_a_distribution_without_any_tool_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'browser_only' has no tool that can be used: .*browser_navigate"):
        select_tools(distribution="browser_only")
    with pytest.raises(ConfigError, match=r"disabled_toolsets"):
        select_tools(disabled=["terminal", "file"], distribution="terminal_only")


def test_definitions_are_what_a_model_server_takes() -> None:
    schemas = get_tool_definitions(["terminal"], None)
    assert [schema["function"]["name"] for schema in schemas] == ["terminal", "process"]


def test_unknown_tools_are_named() -> None:
    with pytest.raises(UnknownName, match=r"'read_fiel'; did you mean read_file"):
        get_tool("read_fiel")
    assert registry.all_tools() is not registry.all_tools()


def test_importing_the_api_loads_no_heavy_module() -> None:
    code = (
        "import sys, environments.tools.definitions, environments.tools.toolbox\n"
        "print([m for m in ('pydantic', 'aiohttp', 'rich', 'yaml', 'jinja2') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
