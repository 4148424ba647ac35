"""Random tool calls with the values that formats tend to lose, and the tools they belong to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Arguments = dict[str, Any]

MARKS = (
    "<tool_call>",
    "</tool_call>",
    '<tool_call>\n{"name": "web_search", "arguments": {}}\n</tool_call>',
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<think>",
    "</think>",
    "<function=web_search>",
    "</function>",
    "<parameter=text>",
    "</parameter>",
    '<invoke name="web_search">',
    "</invoke>",
    '<parameter name="text">',
    "<arg_key>text</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "[TOOL_CALLS]",
    "[ARGS]{}",
    "</tool_calls>",
    "</TOOLCALL>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<|call|>",
    "<|start|>assistant<|channel|>final<|message|>",
    '<|"|>',
    "<tool_call|>",
    "<escape>",
    "</function_calls>",
    "<|eot_id|>",
    "<|python_tag|>",
    "functools[",
    "```json\n",
    "```",
    "</s>",
)
"""What formats are made of; in an argument it is text."""

TEXTS = (
    "",
    " ",
    "\n",
    "\n\n",
    "\t",
    "Paris",
    "  indented\n    code()\n",
    "\nbegins with a line break",
    "ends with one\n",
    " blanks around ",
    "\r\nDOS\r\n",
    "123",
    "-0",
    "1e5",
    "007",
    "true",
    "False",
    "null",
    "None",
    '{"a": 1}',
    "[1, 2",
    "]",
    "}",
    '"quoted"',
    "it's",
    "back\\slash \\n \\u0041 \\",
    "a,b=c)",
    "key: value, {other: [thing]}",
    "<b>&amp;</b>",
    "naïve café",
    "日本語のテキスト",
    "עברית",
    "🙂👩‍👩‍👧 e\u0301",
    "\u2028line\u2029separators\u0085",
    "\x00\x01\x1f\x7f",
    "\ufeffbom",
    "for i in range(3):\n\tprint(f'{i}: \"x\"')\n",
)
KEYS = ("a", "b1", "snake_case", "two words", "", "ключ", "x:y", '"q"', "new\nline", "$ref", "a.b", "{", "-")
NUMBERS = (0.5, -0.0, 1e-7, 1.5e300, 3.141592653589793, 1e16, -2.5, 100000.0)

PARAMETERS = {
    "text": "string",
    "filePath": "string",
    "line_count": "integer",
    "ratio": "number",
    "flag": "boolean",
    "items": "array",
    "options": "object",
    "nothing": "null",
}
DEFAULT_NAMES = ("web_search", "read_file", "run2", "Cancel-Order", "x")


def tools(names: Sequence[str]) -> list[dict[str, Any]]:
    """The offered tools: every one has all parameters."""
    properties = {key: {"type": kind, "description": f"the {key}"} for key, kind in PARAMETERS.items()}
    parameters = {"type": "object", "properties": properties, "required": []}
    return [
        {"type": "function", "function": {"name": name, "description": "a tool", "parameters": parameters}}
        for name in names
    ]


def strings(value: Any) -> Iterator[str]:
    """All strings in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)


def keys(value: Any) -> Iterator[str]:
    """All keys below the arguments themselves."""
    if isinstance(value, list):
        for item in value:
            yield from keys(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys(item)


class Generator:
    """Makes calls from a seed; ``carries`` says which arguments the format can hold."""

    def __init__(self, seed: str, names: Sequence[str], carries: Callable[[Arguments], bool]) -> None:
        self._random = random.Random(seed)
        self._names, self._carries = names, carries
        self.refused = 0

    def call(self) -> tuple[str, Arguments]:
        """A name and arguments."""
        while True:
            chosen = self._random.sample(list(PARAMETERS), self._random.randint(0, 4))
            arguments = {key: self._value(PARAMETERS[key], 3) for key in chosen}
            if self._carries(arguments):
                return self._random.choice(list(self._names)), arguments
            self.refused += 1

    def content(self) -> str:
        """Text beside calls; often none."""
        return self._random.choice(["", "", "I will look that up.", "Erst 中文,\n\ndann 1 < 2 & {x}: [y]."])

    def _value(self, kind: str, depth: int) -> Any:
        chance = self._random
        match kind:
            case "string":
                return self._string()
            case "integer":
                return chance.choice([0, -1, 7, 2**31, 2**64 + 1, -(10**40), chance.randint(-999, 999)])
            case "number":
                return chance.choice([*NUMBERS, chance.uniform(-1e6, 1e6)])
            case "boolean":
                return chance.random() < 0.5
            case "array":
                return [self._any(depth - 1) for _ in range(chance.randint(0, 3))]
            case "object":
                return {chance.choice(KEYS): self._any(depth - 1) for _ in range(chance.randint(0, 3))}
            case _:
                return None

    def _any(self, depth: int) -> Any:
        kinds = ["string", "integer", "number", "boolean", "null"] + ["array", "object"] * (depth > 0)
        return self._value(self._random.choice(kinds), depth)

    def _string(self) -> str:
        chance = self._random
        kind = chance.random()
        if kind < 0.5:
            return chance.choice(TEXTS)
        if kind < 0.55:
            return chance.choice(TEXTS) * chance.randint(50, 400)
        return "".join(chance.choice(MARKS + TEXTS) for _ in range(chance.randint(1, 4)))
