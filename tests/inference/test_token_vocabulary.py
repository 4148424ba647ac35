"""A tokenizer that is not the model's is found before anything is rolled out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from dialects.small_tokenizer import CHATML, small_dialect

from environments.errors import ConfigError
from tests.inference.token_calls import answer, manager_of
from tests.servers.token_server import TokenServer


def start(
    folder: Path,
    tokenize: Callable[[str], list[int]] | None,
    parser: str = "hermes",
    encode: Callable[[str], list[int]] | None = None,
) -> str | None:
    """Start a manager for a server with that ``/tokenize``, and that beginning of a completion; the name of
    its parser."""

    async def run() -> str | None:
        server = TokenServer(answer)
        server.tokenize, server.encode = tokenize, encode
        await server.start()
        config = {"tokenizer_name": str(folder)}
        try:
            manager = manager_of(server, server_type="vllm", config=config, tool_call_parser=parser)
            async with manager:
                return manager._tokens.parser_name if manager._tokens else None
        finally:
            await server.stop()

    return asyncio.run(run())


def test_the_models_own_tokenizer_is_taken(tmp_path: Path) -> None:
    dialect = small_dialect(tmp_path, CHATML)
    assert start(tmp_path, dialect.tokenizer.encode) == "hermes"
    assert start(tmp_path, lambda text: [1, *dialect.tokenizer.encode(text)]) == "hermes"  # with a beginning


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    dialect = small_dialect(tmp_path, CHATML)
    for other in (
        lambda text: [token + 1 for token in dialect.tokenizer.encode(text)],
        lambda text: [2**31 - 1],
        lambda text: [],
    ):
        with pytest.raises(ConfigError, match=r"tokens differ.*--openai.tokenizer_name"):
            start(tmp_path, other)


def test_a_server_without_tokenize_tells_its_tokens_beside_a_completion(tmp_path: Path) -> None:
    dialect = small_dialect(tmp_path, CHATML)
    assert start(tmp_path, None, encode=dialect.tokenizer.encode) == "hermes"
    with pytest.raises(ConfigError, match="tokens differ"):
        start(tmp_path, None, encode=lambda text: [token + 1 for token in dialect.tokenizer.encode(text)])


def test_a_server_that_does_not_say_is_believed(tmp_path: Path) -> None:
    small_dialect(tmp_path, CHATML)
    assert start(tmp_path, None) == "hermes"
    assert start(tmp_path, lambda text: [-1]) == "hermes"


def test_the_chat_template_may_name_the_parser(tmp_path: Path) -> None:
    small_dialect(tmp_path, CHATML + '{# <tool_call>{"name": ... #}')
    assert start(tmp_path, None, "auto") == "hermes"
