"""Every tool with bad arguments of every kind: the model is told what to write, and nothing breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from environments.tools.registry import all_tools

from .bench import Bench

TOOLS = sorted(all_tools())
IN_THE_SANDBOX = [
    "terminal",
    "process",
    "read_file",
    "write_file",
    "patch",
    "search_files",
    "todo",
    "execute_code",
]

MALFORMED = {
    "broken JSON": '{"path": "a',
    "Python instead of JSON": "{'path': None}",
    "prose": "please read the file",
    "a list": [1],
    "a list as text": "[]",
    "a number": 5,
    "a number as text": "5",
    "true": True,
    "NaN": '{"limit": NaN}',
    "too deep": "[" * 100_000,
    "an unknown parameter": {"no_such_parameter": 1},
}

WRONG = {
    "string": [["a"], {"a": 1}, True, "\ud800"],
    "integer": ["many", [1], {"a": 1}, 1.5, "1e3", float("nan"), 10**400, True],
    "number": ["many", [1], {"a": 1}, float("inf"), True],
    "boolean": ["maybe", 2, [True], {"a": 1}],
    "array": ["x", 5, {"a": 1}],
    "object": ["x", 5, [1]],
}


def refused(bench: Bench, name: str, arguments: Any) -> str:
    """The error of a call that cannot be carried out."""
    outcome = bench.outcome(name, arguments)
    told = json.loads(outcome.content)
    assert outcome.error == "bad_arguments", (name, arguments, told)
    assert outcome.exception is None
    assert len(told["error"]) > 15
    return str(told["error"])


def least(name: str) -> dict[str, Any]:
    """Arguments of the right types for all that must be given."""
    parameters = all_tools()[name].parameters
    samples = {"string": "x", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    return {
        key: parameters["properties"][key].get("enum", [samples[parameters["properties"][key]["type"]]])[0]
        for key in parameters.get("required", ())
    }


@pytest.mark.parametrize("name", TOOLS)
def test_what_is_no_object_or_has_unknown_parts(bench: Bench, name: str) -> None:
    for arguments in MALFORMED.values():
        refused(bench, name, arguments)
    properties = list(all_tools()[name].parameters.get("properties", {}))
    if properties:
        wrong = {**least(name), f"{properties[0]}x": "1"}
        assert f"did you mean {properties[0]}" in refused(bench, name, wrong)


@pytest.mark.parametrize("name", TOOLS)
def test_what_is_missing_is_named(bench: Bench, name: str) -> None:
    parameters = all_tools()[name].parameters
    for missing in parameters.get("required", ()):
        if "default" in parameters["properties"][missing]:
            continue
        given = {key: value for key, value in least(name).items() if key != missing}
        for arguments in (given, json.dumps(given), {**given, missing: None}):
            assert missing in refused(bench, name, arguments)


@pytest.mark.parametrize("name", TOOLS)
def test_values_of_the_wrong_type(bench: Bench, name: str) -> None:
    for key, schema in all_tools()[name].parameters.get("properties", {}).items():
        values = [*WRONG[schema["type"]], *(["no such choice"] if "enum" in schema else [])]
        for bound, step in (("minimum", -1), ("maximum", 1)):
            if bound in schema:
                values.append(schema[bound] + step)
        if "maxItems" in schema:
            values.append(["x"] * (schema["maxItems"] + 1))
        for value in values:
            assert key in refused(bench, name, {**least(name), key: value})


ODD = {
    "string": ["", " ", "\0", "a\nb", "/", "..", "~", "-", "'; exit 1 #", "x" * 5_000, "\u202e", "*", "("],
    "integer": [0, -1, 10**15, -(10**15)],
    "number": [0, -1, 1e300],
    "boolean": [True, False],
    "array": [[], [{}], ["x"], [None]],
    "object": [{}],
}


@pytest.mark.parametrize("name", IN_THE_SANDBOX)
def test_odd_values_are_results_or_errors_that_help(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path, terminal_timeout=20)
    for key, schema in all_tools()[name].parameters["properties"].items():
        odd = ODD[schema["type"]]
        for value in odd[:5] if name == "execute_code" else odd:  # each of which starts two interpreters
            if (name, key) == ("terminal", "background") or (key == "path" and value in ("/", "..")):
                continue  # the first goes on for ever, the others are this machine's own files
            outcome = bench.outcome(name, {**least(name), key: value})
            told = json.loads(outcome.content)
            assert outcome.exception is None, outcome.exception
            if outcome.error is not None:
                assert told["error"]
    assert bench("terminal", command="echo still here")["output"] == "still here\n"
