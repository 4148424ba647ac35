"""Parsers by name."""

from __future__ import annotations

import pytest

from environments.errors import ConfigError, UnknownName
from environments.tool_call_parsers import get_parser, list_parsers


def test_hermes_and_qwen_are_there() -> None:
    assert {"hermes", "qwen"} <= set(list_parsers())
    assert get_parser("qwen").name == "qwen"


def test_a_misspelt_name_lists_the_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean hermes"):
        get_parser("hermse")


def test_a_parser_of_a_later_version_says_so() -> None:
    with pytest.raises(ConfigError, match="not available in this version; available: hermes, qwen"):
        get_parser("kimi_k2")
