from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from servers.picture_api import PictureApi
from servers.web_site import DOT, WebSite

from environments.errors import EngineUnusable
from environments.tools import asking
from environments.tools.base import ToolSettings, ToolState
from environments.tools.registry import get_tool
from environments.tools.toolbox import Toolbox
from environments.tools.vision.endpoint import key_for, missing
from environments.tools.vision.settings import EndpointSettings
from environments.tools.vision.tools import browser_vision_requirement
from environments.tools.web.settings import WebSettings

from ..plain_sandbox import PlainSandbox

Call = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture(autouse=True)
def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VISION_API_KEY", "IMAGE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(asking.random, "uniform", lambda *_: 0.0)


def with_api(api: PictureApi, root: Path, work: Callable[[Call, WebSite], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with api, WebSite() as site:
            endpoint = EndpointSettings(api.url, "eyes-1", timeout=5)
            settings = ToolSettings(
                vision=endpoint, image=endpoint, web=WebSettings(allowed_hosts=(site.host,))
            )
            state = ToolState(PlainSandbox(root), settings)
            toolbox = Toolbox([get_tool("vision_analyze"), get_tool("image_generate")], state)

            async def call(name: str, **arguments: Any) -> dict[str, Any]:
                result: dict[str, Any] = json.loads((await toolbox.call(name, arguments)).content)
                return result

            try:
                return await work(call, site)
            finally:
                await state.shared.close()

    return asyncio.run(main())


def test_pictures_of_the_web_and_of_the_sandbox_are_looked_at(tmp_path: Path) -> None:
    api = PictureApi()
    url = f"data:image/png;base64,{base64.b64encode(DOT).decode()}"

    async def work(call: Call, site: WebSite) -> None:
        (tmp_path / "work" / "dot.png").write_bytes(DOT)
        for source in (f"{site.url}/dot.png", "dot.png", str(tmp_path / "work" / "dot.png"), url):
            result = await call("vision_analyze", image_url=source, question="What is it?")
            assert result == {"success": True, "analysis": "a red dot"}

    with_api(api, tmp_path, work)
    for request in api.requests:
        [text, image] = request["messages"][0]["content"]
        assert request["model"] == "eyes-1"
        assert text["text"] == "What is it?"
        assert image["image_url"]["url"] == url


def test_what_cannot_be_looked_at_is_said(tmp_path: Path) -> None:
    async def work(call: Call, site: WebSite) -> None:
        (tmp_path / "work" / "text.png").write_text("no picture")
        with (tmp_path / "work" / "big.png").open("wb") as file:
            file.truncate(20_000_000)
        for source, reason in [
            ("nowhere.png", "No such file"),
            ("text.png", "no PNG"),
            ("big.png", "more than 10,000,000"),
            (".", "irectory"),
            (f"{site.url}/nothing", "404"),
            (f"{site.url}/article", "no PNG"),
            ("http://127.0.0.1:1/x.png", "private network"),
            ("data:image/png,xx", "base64"),
            ("data:image/png;base64,!!", "base64"),
            ("  ", "image_url is empty"),
        ]:
            result = await call("vision_analyze", image_url=source, question="?")
            assert reason in result["error"], source
        assert "question is empty" in (await call("vision_analyze", image_url="x", question=" "))["error"]
        assert "question is missing" in (await call("vision_analyze", image_url="x"))["error"]

    api = PictureApi()
    with_api(api, tmp_path, work)
    assert not api.requests


def test_an_api_that_fails_is_asked_again_and_a_bad_key_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(call: Call, site: WebSite) -> dict[str, Any]:
        return await call("vision_analyze", image_url=f"{site.url}/dot.png", question="?")

    assert with_api(PictureApi(statuses=[500, 429]), tmp_path, look)["success"]
    assert "failed: 500" in with_api(PictureApi(statuses=[500] * 9), tmp_path, look)["error"]
    assert "failed: 400" in with_api(PictureApi(statuses=[400] * 9), tmp_path, look)["error"]
    for nothing in (None, "", " ", [], [{"type": "text"}], {}, 3):
        silent = PictureApi()
        silent.text = nothing
        assert "said nothing" in with_api(silent, tmp_path, look)["error"]
    monkeypatch.setenv("VISION_API_KEY", " k-right\n")
    assert with_api(PictureApi(key="k-right"), tmp_path, look)["success"]
    with pytest.raises(EngineUnusable, match="key in VISION_API_KEY") as found:
        with_api(PictureApi(key="another"), tmp_path, look)
    assert "k-right" not in str(found.value)


def test_an_answer_in_parts_is_read_and_a_repeated_key_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(call: Call, site: WebSite) -> dict[str, Any]:
        return await call("vision_analyze", image_url=f"{site.url}/dot.png", question="?")

    monkeypatch.setenv("VISION_API_KEY", "k-right")
    api = PictureApi(key="k-right")
    api.text = [{"type": "text", "text": "a red "}, {"type": "other"}, {"type": "text", "text": "k-right"}]
    assert with_api(api, tmp_path, look) == {"success": True, "analysis": "a red ***"}


@pytest.mark.parametrize("form", ["{}", "data:image/png;base64,{}", "\n{}\n"])
def test_pictures_come_in_every_form_of_base64(tmp_path: Path, form: str) -> None:
    async def work(call: Call, site: WebSite) -> dict[str, Any]:
        return await call("image_generate", prompt="a dot")

    api = PictureApi()
    api.encoded = form.format(api.encoded[:20] + "\n" + api.encoded[20:])
    assert Path(with_api(api, tmp_path, work)["image"]).read_bytes() == DOT
    api.encoded = "no picture"
    assert "no picture" in with_api(api, tmp_path, work)["error"]


def test_pictures_are_made(tmp_path: Path) -> None:
    async def work(call: Call, site: WebSite) -> dict[str, Any]:
        assert "prompt is empty" in (await call("image_generate", prompt=""))["error"]
        assert (
            "aspect_ratio must be one of"
            in (await call("image_generate", prompt="x", aspect_ratio="9"))["error"]
        )
        return await call("image_generate", prompt="a dot", aspect_ratio="square")

    api = PictureApi()
    made = with_api(api, tmp_path, work)
    assert Path(made["image"]).read_bytes() == DOT
    assert made["image"].endswith(".png")
    assert api.requests == [{"model": "eyes-1", "prompt": "a dot", "n": 1, "size": "1024x1024"}]
    elsewhere = with_api(PictureApi(address="https://pictures.example/1.png"), tmp_path, work)
    assert elsewhere == {"success": True, "image": "https://pictures.example/1.png"}


def test_what_is_not_configured_is_said_with_its_cure() -> None:
    assert "--env.vision_base_url and --env.vision_model" in (missing(EndpointSettings(), "vision") or "")
    assert "http address" in (missing(EndpointSettings("x", "m"), "image") or "")
    assert missing(EndpointSettings("http://x/v1", "m"), "image") is None
    assert browser_vision_requirement(ToolSettings()) is not None


def test_openais_key_goes_to_openai_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert key_for(EndpointSettings("https://api.openai.com/v1", "m"), "VISION_API_KEY") == "k"
    for url in ("https://openai.com.evil.example/v1", "http://localhost/v1", "https://notopenai.com"):
        assert key_for(EndpointSettings(url, "m"), "VISION_API_KEY") == ""
