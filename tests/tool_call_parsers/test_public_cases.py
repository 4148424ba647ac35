"""The engines' own cases for the eleven formats of Hermes Agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from environments.tool_call_parsers import get_parser
from tool_call_parsers.cases import read_cases

CASES = Path(__file__).parents[1] / "data" / "parser_cases.jsonl"

TEXT_KEPT = "text between and after calls is kept"
BROKEN_KEPT = "what was meant as a call and is none stays in the content and is no call"
CUT_OFF = "a call that was cut off is no call"
UNKNOWN = "a call of a tool that is not offered is answered by the loop, not dropped"
NOT_REPAIRED = "text that is escaped twice, and quotes around a string, are not taken away in silence"
EVERY_BYTE = "a string value keeps every byte, quotes included"
NOT_GUESSED = "a tool's name is not guessed from its arguments"
PROSE = "JSON in the middle of a sentence is prose"
INSIDE_BROKEN = "a call inside a broken one may be its argument"

DEVIATIONS = {
    "sglang-glm45-021d6db1da": NOT_REPAIRED,
    "sglang-glm45-9cd0225cd3": NOT_REPAIRED,
    "sglang-glm45-ceae0a1b1e": NOT_REPAIRED,
    "sglang-glm47-0b191bb13e": NOT_REPAIRED,
    "sglang-glm47-ac26fc8e22": NOT_REPAIRED,
    "sglang-glm47-e71f27c939": NOT_REPAIRED,
    "sglang-glm45-a57d383665": EVERY_BYTE,
    "sglang-glm47-2a3a2f5aee": EVERY_BYTE,
    "sglang-glm45-7279566756": UNKNOWN,
    "sglang-glm47-b760cf2015": UNKNOWN,
    "sglang-kimi_k2-0c3f61c3db": NOT_GUESSED,
    "sglang-kimi_k2-63193b35ba": BROKEN_KEPT,
    "sglang-mistral-798ffe10ac": BROKEN_KEPT,
    "vllm-0.33.0-kimi_k2-a1dcdacdb7": BROKEN_KEPT,
    "vllm-0.33.0-kimi_k2-f4294513a2": BROKEN_KEPT,
    "vllm-0.33.0-longcat-71535a3946": BROKEN_KEPT,
    "vllm-0.33.0-qwen3_coder-0649375ec1": BROKEN_KEPT,
    "vllm-0.33.0-qwen3_coder-85cf5f8817": BROKEN_KEPT,
    "vllm-0.33.0-qwen3_coder-dfa42085ac": BROKEN_KEPT,
    "vllm-0.33.0-qwen3_coder-f16a26a2ce": BROKEN_KEPT,
    "sglang-llama3_json-1a10563c46": INSIDE_BROKEN,
    "sglang-qwen3_coder-73fb6db04d": CUT_OFF,
    "vllm-0.33.0-deepseek_v31-030d64d23c": TEXT_KEPT,
    "vllm-0.33.0-longcat-4f875a2622": TEXT_KEPT,
    "vllm-0.33.0-llama3_json-3d6f7ddd0f": PROSE,
    "vllm-0.33.0-llama3_json-8a23ee46ec": PROSE,
}
"""Cases whose expectation breaks a rule, and the rule."""


@pytest.mark.parametrize("case", list(read_cases(CASES)), ids=lambda case: case["id"])
def test_public_case(case: dict[str, Any]) -> None:
    content, calls = get_parser(case["parser"]).parse(case["text"], tools=case["tools"])
    found = [(call.function.name, exact(json.loads(call.function.arguments))) for call in calls or []]
    expected = [(name, exact(arguments)) for name, arguments in case["calls"]]
    same = found == expected and (content or "").strip() == case["content"].strip()
    assert same != (case["id"] in DEVIATIONS), (content, found)


def exact(value: Any) -> str:
    """JSON tells 1 from True and from 1.0, which Python's equality does not."""
    return json.dumps(value, sort_keys=True)


def test_every_deviation_is_of_a_case() -> None:
    assert set(DEVIATIONS) <= {case["id"] for case in read_cases(CASES)}
