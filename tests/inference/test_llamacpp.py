"""The local llama.cpp server: what is said before it starts, and a real one with real models."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from environments.config import APIServerConfig
from environments.errors import ConfigError, ContextOverflow, MissingExtra, ServerUnavailable
from environments.inference.gguf import find_model, trained_context
from environments.inference.retrying import Backoff
from environments.inference.server_manager import ServerManager

USER = [{"role": "user", "content": "Write 'hello' into notes/a.txt"}]
WRITE_FILE = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Write a file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    },
}


def gguf_bytes(*entries: tuple[str, int, bytes]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))
    return head + b"".join(
        struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value
        for key, kind, value in entries
    )


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def test_the_context_is_read_past_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    words = struct.pack("<IQ", 8, 2) + string("a") + string("bc")
    numbers = struct.pack("<IQ", 5, 3) + bytes(12)
    path.write_bytes(
        gguf_bytes(
            ("general.architecture", 8, string("llama")),
            ("tokenizer.words", 9, words),
            ("tokenizer.types", 9, numbers),
            ("llama.context_length", 4, struct.pack("<I", 4096)),
        )
    )
    assert trained_context(path) == 4096
    path.write_bytes(gguf_bytes(("general.architecture", 8, string("llama"))))
    assert trained_context(path) is None


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a model at all"])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a GGUF file"):
        trained_context(path)


def test_a_truncated_head(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    whole = gguf_bytes(("general.name", 8, string("x")), ("llama.context_length", 4, bytes(4)))
    for content in (whole[:-2], whole[:30], gguf_bytes(("a", 99, b""))):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="damaged"):
            trained_context(path)


def test_a_missing_file_names_the_near_ones(tmp_path: Path) -> None:
    (tmp_path / "SmolLM2-135M.gguf").touch()
    with pytest.raises(ConfigError, match=r"did you mean SmolLM2-135M\.gguf"):
        find_model(str(tmp_path / "SmolLM2-135.gguf"))


def test_the_extra_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="llamacpp"):
        asyncio.run(ServerManager([config(path)]).start())


def test_calls_before_the_start_say_so(tmp_path: Path) -> None:
    manager = ServerManager([config(tmp_path / "m.gguf")])
    with pytest.raises(ConfigError, match="start"):
        asyncio.run(manager.chat_completion(USER))


def config(path: Path, **changes: Any) -> APIServerConfig:
    return APIServerConfig(server_type="llamacpp", model_name=str(path), **changes)


def model(name: str) -> Path:
    directory = os.environ.get("HERMES_TEST_MODELS")
    if not directory:
        pytest.skip("HERMES_TEST_MODELS names no directory with models (.ci/fetch_models.sh makes one)")
    pytest.importorskip("xllamacpp", reason="the extra 'llamacpp' is not installed")
    path = Path(directory) / name
    if not path.is_file():
        pytest.skip(f"{name} is not in HERMES_TEST_MODELS")
    return path


SMOL = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN = "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_real_model_answers() -> None:
    path = model(SMOL)

    async def run() -> None:
        async with ServerManager([config(path, stream=True)]) as manager:
            assert manager.servers[0].config.context_length == 8192
            session = manager.session(split="eval")
            reply = await session.chat_completion(USER, [WRITE_FILE], max_tokens=20, temperature=0.0)
            assert reply.choices[0].message.content
            assert reply.usage.prompt_tokens > 0
            assert 0 < reply.usage.completion_tokens <= 20
            assert reply.timing.first_token_at is not None
            several = await manager.chat_completion(USER, n=3, max_tokens=5)
            assert len(several.choices) == 3
            text = await manager.completion("Once upon", max_tokens=5)
            assert text.choices[0].text
            with pytest.raises(ContextOverflow):
                await manager.chat_completion([{"role": "user", "content": "hello " * 20_000}])

    asyncio.run(run())


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_real_model_writes_a_call_as_text_and_it_is_read() -> None:
    path = model(QWEN)

    async def run() -> None:
        async with ServerManager([config(path, context_length=2048)]) as manager:
            reply = await manager.chat_completion(USER, [WRITE_FILE], max_tokens=80, temperature=0.0)
            choice = reply.choices[0]
            assert choice.message.tool_calls, choice
            call = choice.message.tool_calls[0]
            assert call.function.name == "write_file"
            assert json.loads(call.function.arguments) == {"path": "notes/a.txt", "content": "hello"}
            assert choice.finish_reason == "tool_calls"
            history = [
                *USER,
                choice.message.to_message(),
                {"role": "tool", "tool_call_id": call.id, "content": '{"bytes_written": 5}'},
            ]
            after = await manager.chat_completion(history, [WRITE_FILE], max_tokens=40, temperature=0.0)
            assert after.choices[0].message.content or after.choices[0].message.tool_calls

    asyncio.run(run())


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_damaged_model_says_what_llama_cpp_said(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(model(SMOL).read_bytes()[:5_000_000])
    with pytest.raises(ConfigError, match=r"cannot serve damaged\.gguf.*failed to load model"):
        asyncio.run(ServerManager([config(damaged)]).start())


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_server_that_dies_is_told() -> None:
    path = model(SMOL)

    async def run() -> None:
        manager = ServerManager([config(path, max_retries=1)], backoff=Backoff(0.01, 0.02))
        async with manager:
            (child,) = children_of(os.getpid())
            os.kill(child, signal.SIGKILL)
            with pytest.raises(ServerUnavailable, match="killed by signal 9"):
                await manager.chat_completion(USER, max_tokens=5)

    asyncio.run(run())


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_the_server_does_not_outlive_a_killed_run() -> None:
    program = (
        "import asyncio, sys\n"
        "from environments.inference.server_manager import ServerManager\n"
        "async def main():\n"
        "    manager = ServerManager([{'server_type': 'llamacpp', 'model_name': sys.argv[1]}])\n"
        "    await manager.start()\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(model(SMOL))], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        (child,) = children_of(parent.pid)
        parent.kill()
    deadline = time.monotonic() + 20
    while is_alive(child):
        assert time.monotonic() < deadline, "the llama.cpp server outlived its run"
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    """Processes of llama.cpp below a process."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [
        c for c in map(int, listed.split()) if b"llamacpp_child" in Path(f"/proc/{c}/cmdline").read_bytes()
    ]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
