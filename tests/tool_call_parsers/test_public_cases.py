"""The engines' own cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from environments.tool_call_parsers import get_parser
from tool_call_parsers.cases import read_cases
from tool_call_parsers.deviations import DEVIATIONS, RULES

ROOT = Path(__file__).parents[2]
CASES = [
    case
    for name in ("parser_cases", "parser_cases_further")
    for case in read_cases(ROOT / "tests" / "data" / f"{name}.jsonl")
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_public_case(case: dict[str, Any]) -> None:
    content, calls = get_parser(case["parser"]).parse(case["text"], tools=case["tools"])
    found = [(call.function.name, exact(json.loads(call.function.arguments))) for call in calls or []]
    expected = [(name, exact(arguments)) for name, arguments in case["calls"]]
    same = found == expected and (content or "").strip() == case["content"].strip()
    assert same != (case["id"] in DEVIATIONS), (content, found)


def exact(value: Any) -> str:
    """JSON tells 1 from True and from 1.0, which Python's equality does not."""
    return json.dumps(value, sort_keys=True)


def test_every_deviation_is_of_a_case_and_is_documented_with_its_rule() -> None:
    assert {case["id"] for case in CASES} >= DEVIATIONS
    page = (ROOT / "docs" / "parsers.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines()}
    for rule, cases in RULES.items():
        assert all(f"`{case}`" in rows[rule] for case in cases), rule
