"""Throughput of the tool call parsers, beside those of vLLM and SGLang.

``python perf/parsers.py [--vllm PYTHON] [--sglang PYTHON]``: the options name interpreters of environments
that have vLLM, or llm-router-utils (SGLang's detectors without SGLang). Prints millions of characters per
second of CPU time, and how many times faster than the peer this is. Three loads: many short replies, one
argument of 100,000 characters, and 20,000 characters of openings that lead nowhere.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Write a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
                "required": ["path"],
            },
        },
    }
]
PEER_NAMES = {
    "vllm": {"qwen": "hermes", "deepseek_v3_1": "deepseek_v31"},
    "sglang": {
        "qwen": "qwen25",
        "llama3_json": "llama3",
        "deepseek_v3": "deepseekv3",
        "deepseek_v3_1": "deepseekv31",
    },
}
LIMIT = 10.0  # seconds of CPU for one pass over one load; some parsers would take minutes


def loads() -> dict[str, dict[str, list[str]]]:
    """Texts for each parser and kind of load."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from tool_call_parsers.formats import FORMATS

    code = "".join(f"def f{i}(x):\n    return x < {i} and '</b>' or \"é\"\n" for i in range(3_000))
    result = {}
    for form in FORMATS:
        call = ("write_file", {"path": "a.py", "content": code[:800]})
        short = f"I write it.\n{form.write([call, call])}"
        result[form.name] = {
            "short replies": [short] * 100,
            "100 KB argument": [form.write([("write_file", {"path": "a.py", "content": code[:100_000]})])],
            "bad openings": [(form.marks[0] + "{") * (20_000 // (len(form.marks[0]) + 1))],
        }
    return result


def measure(parse: Callable[[str], Any], texts: list[str]) -> float:
    """Mean CPU seconds for all texts over half a second; ``LIMIT`` where once would take longer."""
    passes, started = 0, time.process_time()
    while time.process_time() - started < 0.5:
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            for text in texts:
                parse(text)
        except OutOfTime:
            return LIMIT
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        passes += 1
    return (time.process_time() - started) / passes


class OutOfTime(BaseException):
    """Not an ``Exception``: parsers that catch everything must let it through."""


def stop(signum: int, frame: Any) -> None:
    """What the timer does."""
    raise OutOfTime


def parser_of(engine: str, name: str) -> Callable[[str], Any]:
    """What parses one text with the parser of that engine."""
    if engine == "ours":
        from environments.tool_call_parsers import get_parser

        parser = get_parser(name)
        return lambda text: parser.parse(text, tools=TOOLS)
    peer_name = PEER_NAMES[engine].get(name, name)
    return vllm_parser(peer_name) if engine == "vllm" else sglang_parser(peer_name)


def vllm_parser(name: str) -> Callable[[str], Any]:
    """vLLM's parser over a tokenizer of single bytes that has the markers as tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tool_call_parsers.formats import FORMATS
    from transformers import PreTrainedTokenizerFast
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(sorted({mark for form in FORMATS for mark in form.marks if mark[0] in "<["}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    messages = [{"role": "user", "content": "go"}]
    request = ChatCompletionRequest(model="m", messages=messages, tools=TOOLS)
    kind = ToolParserManager.get_tool_parser(name)

    def parse(text: str) -> Any:
        return kind(tokenizer, request.tools).extract_tool_calls(text, request)

    return parse


def sglang_parser(name: str) -> Callable[[str], Any]:
    """SGLang's detector, with the cost of making it as a request does."""
    from llm_router_utils.sglang.srt.entrypoints.openai.protocol import Tool
    from llm_router_utils.sglang.srt.function_call.function_call_parser import FunctionCallParser

    tools = [Tool(**tool) for tool in TOOLS]
    return lambda text: FunctionCallParser(tools, name).parse_non_stream(text)


def measure_engine(engine: str) -> dict[str, dict[str, float | str]]:
    """CPU seconds by parser and load, or what went wrong."""
    result: dict[str, dict[str, float | str]] = {}
    for name, kinds in loads().items():
        result[name] = {}
        try:
            parse = parser_of(engine, name)
            for kind, texts in kinds.items():
                result[name][kind] = measure(parse, texts)
        except Exception as problem:  # noqa: BLE001 - foreign parsers fail in many ways
            result[name]["failed"] = f"{type(problem).__name__}: {problem}"[:100]
    return result


def measure_peer(engine: str, python: str) -> dict[str, dict[str, float | str]]:
    """The same, in the interpreter that has the peer."""
    done = subprocess.run([python, __file__, "--child", engine], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    if not lines:
        sys.exit(f"{engine}: {done.stderr.strip()[-2_000:]}")
    found: dict[str, dict[str, float | str]] = json.loads(lines[-1])
    return found


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for engine in PEER_NAMES:
        options.add_argument(
            f"--{engine}", metavar="PYTHON", help=f"an interpreter that has {engine}'s parsers"
        )
    options.add_argument("--child", choices=[*PEER_NAMES], help=argparse.SUPPRESS)
    chosen = options.parse_args()
    signal.signal(signal.SIGPROF, stop)
    if chosen.child:
        print(json.dumps(measure_engine(chosen.child)))
        return
    peers = {
        engine: measure_peer(engine, python) for engine in PEER_NAMES if (python := getattr(chosen, engine))
    }
    ours = measure_engine("ours")
    print(
        f"{'parser':<14} {'load':<16} {'Mchar/s':>8}" + "".join(f" {'x ' + engine:>10}" for engine in peers)
    )
    for name, kinds in loads().items():
        for kind, texts in kinds.items():
            seconds = float(ours[name][kind])
            speed = sum(map(len, texts)) / seconds / 1e6
            ratios = "".join(f" {ratio(peer[name].get(kind), seconds):>10}" for peer in peers.values())
            print(f"{name:<14} {kind:<16} {speed:>8.1f}{ratios}")
    for engine, peer in peers.items():
        for name, kinds_of_peer in peer.items():
            if "failed" in kinds_of_peer:
                print(f"{engine} {name}: {kinds_of_peer['failed']}")


def ratio(peer_seconds: float | str | None, seconds: float) -> str:
    """How many times as long the peer took."""
    if not isinstance(peer_seconds, float):
        return "-"
    return f"{'>' if peer_seconds >= LIMIT else ''}{peer_seconds / seconds:.1f}"


if __name__ == "__main__":
    main()
