"""Parsers by name."""

from __future__ import annotations

import pytest

from environments.errors import ConfigError, UnknownName
from environments.tool_call_parsers import get_parser, list_parsers


@pytest.mark.parametrize("name", [name for name in list_parsers() if name != "auto"])
def test_every_name_gives_its_parser(name: str) -> None:
    parser = get_parser(name)
    assert parser.name == name
    assert tuple(parser.parse("plain words")) == ("plain words", None)


def test_a_misspelt_name_lists_the_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean hermes"):
        get_parser("hermse")


def test_auto_without_a_template_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="chat template"):
        get_parser("auto")


def test_auto_says_that_a_template_shows_no_format() -> None:
    with pytest.raises(ConfigError, match="no known format"):
        get_parser("auto", chat_template="{{ messages[0].content }}")
