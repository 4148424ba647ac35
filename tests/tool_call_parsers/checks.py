"""What the tests of many formats check of a result."""

from __future__ import annotations

import json

from environments.tool_call_parsers import ParseResult
from tool_call_parsers.formats import Call


def found(result: ParseResult) -> list[Call]:
    """Names and arguments of the calls."""
    return [(call.function.name, json.loads(call.function.arguments)) for call in result.tool_calls or []]


def exact(calls: list[Call]) -> list[str]:
    """JSON tells 1 from True and from 1.0, which Python's equality does not."""
    return [json.dumps(call) for call in calls]


def check_attempts(result: ParseResult, text: str) -> None:
    """The attempts stand in order, hold what they say, and none is lost."""
    position = 0
    for attempt in result.attempts:
        assert position <= attempt.span[0] < attempt.span[1] <= len(text)
        assert attempt.raw == text[slice(*attempt.span)]
        position = attempt.span[1]
        if not attempt.runnable and result.reasoning_closed is not False:
            assert attempt.raw.strip() in (result.content or "")
    assert len(result.tool_calls or []) == sum(attempt.runnable for attempt in result.attempts)
    assert all(isinstance(arguments, dict) for _, arguments in found(result))


def check_two_good_beside(result: ParseResult, broken: str) -> None:
    """The two calls that stand around ``broken`` count, and it is reported and kept."""
    assert found(result) == [("f", {"text": "x"}), ("write_file", {"count": 2})], broken
    assert len(result.problems) == 1
    assert broken.strip() in (result.content or "")
