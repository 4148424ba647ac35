"""What the tests of the token servers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hypothesis import strategies as st

from environments.inference.pooled_sampler import PooledSampler
from environments.inference.retrying import Backoff
from environments.inference.server_manager import ServerManager
from environments.inference.token_sampling import TokenReply
from tests.servers.token_server import TokenServer

Result = TypeVar("Result")
PROMPT = [10, 11, 12]
EOS = 2


def answer(prompt: Sequence[int]) -> list[int]:
    """Five tokens and the end, counting on from the prompt's last token."""
    rest = max(0, 17 - prompt[-1]) if prompt[-1] >= 10 else 0
    return [*range(prompt[-1] + 1, prompt[-1] + 1 + rest), EOS]


def manager_of(*servers: TokenServer, server_type: str, **options: Any) -> ServerManager:
    """A manager that tries again soon."""
    config = options.pop("config", {})
    return ServerManager(
        [server.config(server_type, **config) for server in servers],
        backoff=Backoff(first=0.01, longest=0.02),
        seed=1,
        **options,
    )


@asynccontextmanager
async def closing(manager: ServerManager) -> AsyncIterator[ServerManager]:
    """A manager that is not started: there is no tokenizer for a script."""
    try:
        yield manager
    finally:
        await manager.close()


def using(
    server: TokenServer, server_type: str, work: Callable[[ServerManager], Awaitable[Result]], **options: Any
) -> Result:
    """What ``work`` gives with a manager of that one server, which is running meanwhile."""

    async def run() -> Result:
        await server.start()
        try:
            async with closing(manager_of(server, server_type=server_type, **options)) as manager:
                await manager.find_token_endpoint(manager.servers[0])
                return await work(manager)
        finally:
            await server.stop()

    return asyncio.run(run())


def sample(server: TokenServer, server_type: str, **call: Any) -> TokenReply:
    """One reply after ``PROMPT``."""
    options = {name: call.pop(name) for name in ("config",) if name in call}
    prompt = call.pop("prompt", PROMPT)

    async def work(manager: ServerManager) -> TokenReply:
        call.setdefault("stop_token_ids", [EOS])
        call.setdefault("max_tokens", 50)
        return await PooledSampler(manager, "train", {}).sample(prompt, **call)

    return using(server, server_type, work, **options)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def spoilt(data: st.DataObject, payload: Any) -> Any:
    """The payload with one of its values, at any depth, replaced by any other or left out."""
    inside = payload.items() if isinstance(payload, dict) else enumerate(payload or [])
    places = [key for key, _ in inside]
    place = data.draw(st.sampled_from(places))
    value = payload[place]
    if isinstance(value, dict | list) and value and data.draw(st.integers(0, 3)):
        payload[place] = spoilt(data, value)
    elif data.draw(st.booleans()):
        payload[place] = data.draw(json_values)
    else:
        del payload[place]
    return payload
