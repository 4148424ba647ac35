from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from environments.tools.web.cache import NotRecorded, WebCache

REQUEST = {"kind": "page", "url": "https://a.example/"}


class Web:
    def __init__(self, lasting: bool = True) -> None:
        self.asked = 0
        self.lasting = lasting

    async def __call__(self) -> tuple[dict[str, Any], bool]:
        self.asked += 1
        await asyncio.sleep(0.01)
        return {"answer": self.asked, "text": "ünï\ud800"}, self.lasting


def test_those_who_ask_at_the_same_time_pay_once(tmp_path: Path) -> None:
    async def main() -> None:
        web = Web()
        cache = WebCache("record", tmp_path)
        answers = await asyncio.gather(*(cache.answer(REQUEST, web) for _ in range(20)))
        assert web.asked == 1
        assert {answer["answer"] for answer in answers} == {1}
        assert (await WebCache("replay", tmp_path).answer(REQUEST, web))["answer"] == 1
        assert (await WebCache("record", tmp_path).answer({**REQUEST, "url": "b"}, web))["answer"] == 2
        assert not list(tmp_path.rglob("*.part"))

    asyncio.run(main())


def test_replay_never_asks(tmp_path: Path) -> None:
    web = Web()
    with pytest.raises(NotRecorded):
        asyncio.run(WebCache("replay", tmp_path).answer(REQUEST, web))
    assert web.asked == 0


def test_what_will_not_last_is_not_kept_and_off_keeps_nothing(tmp_path: Path) -> None:
    async def main(cache: WebCache, web: Web) -> int:
        await cache.answer(REQUEST, web)
        await cache.answer(REQUEST, web)
        return web.asked

    assert asyncio.run(main(WebCache("record", tmp_path), Web(lasting=False))) == 2
    assert asyncio.run(main(WebCache("off", tmp_path), Web())) == 2
    assert asyncio.run(main(WebCache("record", None), Web())) == 1
    assert not list(tmp_path.rglob("*.json"))


def test_a_failure_goes_to_who_asked_and_the_next_one_asks_anew(tmp_path: Path) -> None:
    async def main() -> None:
        cache, web = WebCache("record", tmp_path), Web()
        first = asyncio.create_task(cache.answer(REQUEST, web))
        second = asyncio.create_task(cache.answer(REQUEST, web))
        await asyncio.sleep(0.005)
        first.cancel()
        assert (await second)["answer"] == 2

    asyncio.run(main())


def test_an_entry_that_was_cut_short_is_asked_for_again(tmp_path: Path) -> None:
    web = Web()
    asyncio.run(WebCache("record", tmp_path).answer(REQUEST, web))
    [path] = tmp_path.rglob("*.json")
    assert json.loads(path.read_bytes())["request"] == REQUEST
    for broken in (b"", path.read_bytes()[:-5], b"[]", b"\xff"):
        path.write_bytes(broken)
        asked = web.asked
        asyncio.run(WebCache("record", tmp_path).answer(REQUEST, web))
        assert web.asked == asked + 1
