"""The browser tools against a real site of this machine, in a real headless Chromium."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.browser_users import User, chromium_processes, leftovers, on_site, running
from servers.web_site import WebSite

from environments.tools.base import ToolSettings
from environments.tools.browser import service
from environments.tools.browser.settings import BrowserSettings
from environments.tools.browser.tools import TOOLS, requirement
from environments.tools.toolbox import Toolbox

pytestmark = pytest.mark.integration
if (reason := requirement(ToolSettings())) is not None:
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(autouse=True)
def _temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One of the test's own, which the browser's user may enter: others use browsers at the same time.

    ``tmp_path`` comes first: pytest's own directories must not be made in it.
    """
    with tempfile.TemporaryDirectory(prefix="browsers-") as directory:
        Path(directory).chmod(0o711)
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield


def test_a_page_with_scripts_is_used_from_end_to_end(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user()
        opened = await user("navigate", url=f"{site.url}/shop")
        assert opened["success"]
        assert opened["title"] == "Shop"
        assert 'button "Add to basket"' in opened["snapshot"]
        assert "Tea" not in opened["snapshot"]  # compact
        assert "Tea" in (await user("snapshot", full=True))["snapshot"]  # a script put it there
        name = await user.ref('textbox "Name"')
        assert (await user("type", ref=f"@{name}", text="Ada"))["success"]
        assert (await user("type", ref=await user.ref('combobox "Size"'), text="large"))["success"]
        assert await user.value("document.getElementById('size').value") == "large"
        refused = await user("type", ref=await user.ref('combobox "Size"'), text="huge")
        assert "its options: ['small', 'large']" in refused["error"]
        assert (await user.click('button "Add'))["success"]
        assert "1 in the basket of Ada" in (await user("snapshot", full=True))["snapshot"]
        await user("press", key="Enter")
        assert "2 in the basket of Ada" in (await user("snapshot", full=True))["snapshot"]
        down = await user("scroll", direction="down")
        assert down["moved_pixels"] > 0
        assert (await user("scroll", direction="up"))["pixels_above"] == 0
        images = await user("get_images")
        assert images["images"] == [{"src": f"{site.url}/dot.png", "alt": "A dot", "width": 1, "height": 1}]

    on_site(work, tmp_path)


def test_log_in_and_back_and_every_rollout_for_itself(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        ada, other = new_user(), new_user()
        await ada("navigate", url=f"{site.url}/account")
        assert (await ada("snapshot"))["url"] == f"{site.url}/login"
        await ada("type", ref=await ada.ref('textbox "User"'), text="ada")
        await ada("type", ref=await ada.ref('textbox "Password"'), text="lovelace")
        inside = await ada.click('button "Log in"')
        assert inside["url"] == f"{site.url}/account"
        assert "Account of ada" in (await ada("snapshot"))["snapshot"]
        assert (await other("navigate", url=f"{site.url}/account"))["url"] == f"{site.url}/login"
        assert (await ada("back"))["url"] == f"{site.url}/login"
        assert "no page to go back to" in (await other("back"))["error"]
        started = ada.state.shared.peek("browser").starts
        assert started == other.state.shared.peek("browser").starts

    on_site(work, tmp_path)


def test_dialogs_wait_for_an_answer(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user()
        await user("navigate", url=f"{site.url}/shop")
        assert "no dialog is open" in (await user("dialog", action="accept"))["error"]
        asked = await user.click('button "Ask"')
        assert asked["dialogs"] == [
            {"dialog_id": "d1", "type": "prompt", "message": "How many?", "default": "1"}
        ]
        for name, arguments in [
            ("snapshot", {}),
            ("scroll", {"direction": "up"}),
            ("console", {"expression": "1"}),
        ]:
            assert "answer with browser_dialog" in (await user(name, **arguments))["error"]
        assert "open: d1" in (await user("dialog", action="accept", dialog_id="d7"))["error"]
        assert (await user("dialog", action="accept", prompt_text="seven"))["success"]
        assert await user.value("document.getElementById('count').textContent") == "answer: seven"
        shown = await user("console", expression="alert('from the console')")
        assert shown["dialogs"][0]["message"] == "from the console"
        assert (await user("dialog", action="dismiss", dialog_id="d2"))["success"]
        await user.click('button "Ask"')
        assert (await user("dialog", action="dismiss"))["success"]
        assert await user.value("document.getElementById('count').textContent") == "answer: null"

    on_site(work, tmp_path)


def test_a_page_whose_script_never_ends_holds_nobody_up(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user(timeout=3)
        await user("navigate", url=f"{site.url}/stuck")
        assert "a script ran without end, and was stopped" in (await user.click('button "Hang"'))["error"]
        assert await user.value("document.title") == "Stuck"
        loop = {"method": "Runtime.evaluate", "params": {"expression": "while (true);"}, "timeout": 1}
        assert "and was stopped" in (await user("cdp", **loop))["error"]
        assert (await user("snapshot"))["element_count"] == 1
        await user("console", expression="setTimeout(() => { while (true); }, 50), 1")
        assert (await user("navigate", url=f"{site.url}/shop"))["title"] == "Shop"
        await user("navigate", url=f"{site.url}/stuck?at-once")
        assert (await user("navigate", url=f"{site.url}/shop"))["title"] == "Shop"

    on_site(work, tmp_path)


def test_every_tool_ends_on_a_page_that_does_not_react(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user(timeout=2)
        await user("navigate", url=f"{site.url}/shop")
        hang = "setInterval(() => { while (true); }, 1), 1"  # begins again after each stop
        button = await user.ref('button "Add')
        assert (await user("console", expression=hang))["success"]
        for name, arguments in [
            ("snapshot", {}),
            ("click", {"ref": button}),
            ("scroll", {"direction": "down"}),
            ("console", {"expression": "1"}),
            ("cdp", {"method": "Page.getFrameTree", "timeout": 1}),
            ("back", {}),
        ]:
            async with asyncio.timeout(60):
                assert "success" in await user(name, **arguments)
        assert (await user("navigate", url=f"{site.url}/shop"))["title"] == "Shop"

    on_site(work, tmp_path)


def test_a_page_that_asks_without_end_can_be_left(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user()
        asked = await user("navigate", url=f"{site.url}/stuck?asking")
        assert asked["dialogs"][0]["message"] == "again"
        answered = await user("dialog", action="accept")
        assert answered["dialogs"][0]["message"] == "again"
        left = await user("navigate", url=f"{site.url}/shop")
        assert left["title"] == "Shop"
        assert "dialogs" not in left
        assert "events" not in left

    on_site(work, tmp_path)


def test_a_page_that_asks_whether_it_may_be_left(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user()
        await user("navigate", url=f"{site.url}/leaving")
        await user("type", ref=await user.ref("textbox"), text="x")
        asked = await user("navigate", url=f"{site.url}/shop")
        assert not asked["success"]
        assert "whether it may be left" in asked["error"]
        assert asked["dialogs"][0]["type"] == "beforeunload"
        answered = await user("dialog", action="accept")
        assert answered["success"]
        assert (await user("snapshot"))["title"] == "Shop"

    on_site(work, tmp_path)


def test_the_console_and_expressions(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user(timeout=2)
        await user("navigate", url=f"{site.url}/shop")
        await user.click('button "Add')
        await user.click('button "Fail"')
        printed = await user("console", clear=True)
        assert {"type": "log", "text": "added 1", "source": "console"} in printed["console_messages"]
        assert printed["js_errors"] == [{"message": "broken button", "source": "exception"}]
        assert (await user("console"))["total_messages"] == 0
        assert await user.value("[1, {a: null}]") == [1, {"a": None}]
        assert await user.value("await new Promise(done => setTimeout(() => done('late'), 50))") == "late"
        assert await user.value("Promise.resolve(5)") == 5
        assert await user.value("const x = 2; x * 21") == 42
        assert await user.value("undefined") is None
        assert len(await user.value("'x'.repeat(1e6)")) == 50_000
        assert "y is not defined" in (await user("console", expression="y.z"))["error"]
        assert "SyntaxError" in (await user("console", expression="1 +"))["error"]
        assert "stopped after 2 s" in (await user("console", expression="while (true) {}"))["error"]
        assert "did not end" in (await user("console", expression="new Promise(() => 0)"))["error"]
        assert (await user("snapshot"))["success"]

    on_site(work, tmp_path)


def test_tabs_and_downloads_are_bounded(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user()
        await user("navigate", url=f"{site.url}/shop")
        opened = await user.click('link "Details')
        assert opened["url"] == f"{site.url}/article"
        assert opened["events"] == ["a new tab opened and is in front now"]
        closed = await user("console", expression="window.close()")
        assert "Shop" in str(closed) or (await user("snapshot"))["title"] == "Shop"
        offered = await user.click('link "Download"')
        assert "'file.bin' for download" in offered["events"][0]
        file = await user("navigate", url=f"{site.url}/file.bin")
        assert "web_extract" in file["error"]
        document = await user("navigate", url=f"{site.url}/paper.pdf")
        assert "web_extract" in str(document)
        await user("navigate", url=f"{site.url}/shop")
        await user("console", expression="for (let i = 0; i < 30; i++) window.open('/article')")
        await user("snapshot")
        targets = await user("cdp", method="Target.getTargets")
        assert 1 < len(targets["result"]["targetInfos"]) <= 8

    on_site(work, tmp_path)


def test_private_addresses_and_files_are_out_of_reach_by_every_way(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user()
        async with WebSite() as private:
            for url in (
                private.url,
                f"http://localhost:{private.port}/",
                f"http://2130706433:{private.port}",
            ):
                assert "private network" in (await user("navigate", url=url))["error"]
            for url in (
                "file:///etc/passwd",
                "chrome://version",
                "view-source:file:///etc/passwd",
                "data:text/html,x",
            ):
                assert (await user("navigate", url=url))["success"] is False
            redirected = await user("navigate", url=f"{site.url}/away?to={private.url}/article")
            assert "Moss" not in str(redirected)
            await user("navigate", url=f"{site.url}/article")
            fetch = f"fetch('{private.url}/', {{mode: 'no-cors'}}).then(r => r.type + r.status, e => 'no')"
            await user.value(fetch)
            await user.value(f"document.body.innerHTML = '<iframe src={private.url}/article></iframe>'; 1")
            await user.value(
                f"new WebSocket('ws://{private.host}/'); new Image().src = '{private.url}/dot.png'; 1"
            )
            await user.value(f"location.href = '{private.url}/account'; 1")
            await asyncio.sleep(0.5)
            assert "passwd" not in str(
                await user.value("location.href = 'file:///etc/passwd'; document.body.innerText")
            )
            assert "root:" not in str(await user("snapshot", full=True))
            assert not private.hits

    on_site(work, tmp_path)


def test_devtools_commands_stay_in_the_rollouts_pages(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user, other = new_user(), new_user()
        await other("navigate", url=f"{site.url}/login")
        await user("navigate", url=f"{site.url}/shop")
        [target] = (await user("cdp", method="Target.getTargets"))["result"]["targetInfos"]
        assert target["url"] == f"{site.url}/shop"
        evaluated = await user("cdp", method="Runtime.evaluate", params={"expression": "6 * 7"})
        assert evaluated["result"]["result"]["value"] == 42
        moved = await user(
            "cdp", method="Page.navigate", params={"url": f"{site.url}/article"}, target_id=target["targetId"]
        )
        assert moved["success"]
        assert (await user("snapshot"))["title"] == "Moss gardens"
        tree = await user("cdp", method="Page.getFrameTree")
        frame = tree["result"]["frameTree"]["frame"]["id"]
        assert (await user("cdp", method="Page.getLayoutMetrics", frame_id=frame))["success"]
        files = {"files": ["/etc/passwd"]}
        universal = {"grantUniveralAccess": True}
        never = {"expression": "new Promise(() => 0)", "awaitPromise": True}
        [foreign] = (await other("cdp", method="Target.getTargets"))["result"]["targetInfos"]
        for arguments, reason in [
            ({"method": "Browser.close"}, "not available"),
            ({"method": "Target.createTarget", "params": {"url": "about:blank"}}, "not available"),
            ({"method": "Storage.getCookies"}, "not available"),
            ({"method": "DOM.setFileInputFiles", "params": files}, "framework's machine"),
            ({"method": "Page.navigate", "params": {"url": "file:///etc/passwd"}}, "only http and https"),
            ({"method": "Page.navigate", "params": {"url": "http://127.0.0.1:1/"}}, "private network"),
            ({"method": "Page.createIsolatedWorld", "params": universal}, "not available"),
            ({"method": "Page.nonsense"}, "wasn't found"),
            ({"method": "nonsense"}, "method must be like"),
            ({"method": "Page.reload", "timeout": 0}, "timeout must be"),
            ({"method": "Page.reload", "target_id": foreign["targetId"]}, "no target"),
            ({"method": "Page.reload", "frame_id": "F"}, "no frame"),
            ({"method": "Runtime.evaluate", "params": {"expression": 5}}, "Invalid parameters"),
            ({"method": "Runtime.evaluate", "timeout": 1, "params": never}, "no answer within 1 s"),
        ]:
            assert reason in (await user("cdp", **arguments))["error"], arguments

    on_site(work, tmp_path)


@pytest.mark.parametrize(
    ("name", "arguments", "help"),
    [
        ("navigate", {}, "url is missing"),
        ("navigate", {"url": ["x"]}, "url must be a string"),
        ("navigate", {"url": "   "}, "names no host|not a URL"),
        ("navigate", {"url": "http://nosuch.invalid/"}, "cannot be reached"),
        ("snapshot", {"full": "maybe"}, "full must be true or false"),
        ("snapshot", {}, "open one with browser_navigate"),
        ("click", {}, "ref is missing"),
        ("click", {"ref": "e1"}, "open one with browser_navigate"),
        ("type", {"ref": "e1"}, "text is missing"),
        ("scroll", {"direction": "left"}, "direction must be one of up, down"),
        ("press", {"key": ["a"]}, "key must be a string"),
        ("dialog", {"action": "maybe"}, "action must be one of accept, dismiss"),
        ("console", {"clear": 7}, "clear must be true or false"),
        ("cdp", {"method": "Page.reload", "params": [1]}, "params must be an object"),
        ("cdp", {"method": "Page.reload", "timeout": "soon"}, "timeout must be a number"),
        ("back", {"steps": 2}, "no parameter 'steps'"),
        ("get_images", {}, "open one with browser_navigate"),
    ],
)
def test_bad_arguments_are_explained(name: str, arguments: dict[str, Any], help: str, tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        error = (await new_user()(name, **arguments))["error"]
        assert any(text in error for text in help.split("|")), error

    on_site(work, tmp_path)


def test_elements_that_are_not_there_and_pages_that_do_not_come(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user(timeout=1.5)
        await user("navigate", url=f"{site.url}/shop")
        add = await user.ref('button "Add')
        no_ref = "ref must be one of a snapshot"
        for ref, help in [("e999", "there is no element e999"), ("the button", no_ref), ("", no_ref)]:
            assert help in (await user("click", ref=ref))["error"]
        assert (await user("type", ref=add, text="x"))["success"] is False
        assert "Unknown key" in (await user("press", key="Foo"))["error"]
        assert "key is empty" in (await user("press", key=""))["error"]
        await user.value("document.getElementById('add').remove()")
        assert "the page has changed" in (await user("click", ref=add))["error"]
        assert "did not load within" in (await user("navigate", url=f"{site.url}/slow"))["error"]
        assert (await user("navigate", url=f"{site.url}/article"))["success"]
        assert (await user("navigate", url=f"{site.url}/nothing"))["status"] == 404
        assert (await user("navigate", url=f"{site.url}/huge"))["success"] in (True, False)

    on_site(work, tmp_path)


def test_a_browser_that_crashes_is_replaced(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user, other = new_user(), new_user()
        for each in (user, other):
            await each("navigate", url=f"{site.url}/shop")
        browser = user.state.shared.peek("browser")
        for process in chromium_processes(browser):
            with suppress(ProcessLookupError):  # they die with one another
                os.kill(process, signal.SIGKILL)
        errors = [(await each("snapshot")).get("error", "") for each in (user, other)]
        assert all("crashed" in error or "closed" in error for error in errors), errors
        for each in (user, other):
            assert (await each("navigate", url=f"{site.url}/article"))["title"] == "Moss gardens"
        assert browser.starts == 2
        await user("cdp", method="Runtime.evaluate", params={"expression": "1"})
        crashed = await user("navigate", url="about:blank")
        assert crashed["success"]

    on_site(work, tmp_path)


def test_rollouts_wait_for_a_free_context(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        first, second = new_user(max_contexts=1), new_user(max_contexts=1)
        await first("navigate", url=f"{site.url}/article")
        waiting = asyncio.create_task(second("navigate", url=f"{site.url}/article"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await first.toolbox.cleanup()
        assert (await waiting)["success"]
        assert "closed" in (await first("navigate", url=f"{site.url}/article"))["error"]

    on_site(work, tmp_path)


def test_ten_rollouts_side_by_side(tmp_path: Path) -> None:
    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        async def one(number: int) -> str:
            user = new_user()
            await user("navigate", url=f"{site.url}/shop")
            await user("type", ref=await user.ref('textbox "Name"'), text=f"user {number}")
            await user.click('button "Add')
            return str(await user.value("document.getElementById('count').textContent"))

        found = await asyncio.gather(*(one(number) for number in range(10)))
        assert found == [f"1 in the basket of user {number}" for number in range(10)]

    on_site(work, tmp_path)


def test_nothing_is_left_of_a_run_that_was_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
sys.path[:0] = {[path for path in sys.path if path]!r}
from environments.tools.browser.service import BrowserService
from environments.tools.browser.settings import BrowserSettings
from environments.tools.web.guard import Guard
async def main():
    browser = BrowserService(BrowserSettings(), Guard())
    await browser.open()
    print(browser._directory.path, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    before = leftovers()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        directory = program.stdout.readline().strip()
        assert directory
        assert running(directory)
        program.kill()
    deadline = time.monotonic() + 20
    while running(directory) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running(directory)

    async def next_run() -> None:
        browser = service.BrowserService(BrowserSettings(), service.Guard())
        context = await browser.open()
        await browser.release(context)
        await browser.close()

    asyncio.run(next_run())
    assert leftovers() <= before


def test_the_reward_function_sees_the_tabs_as_the_model_left_them(tmp_path: Path) -> None:
    from environments.tools.registry import all_tools

    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user()
        await user("navigate", url=f"{site.url}/article")
        reward = replace_tools(user, list(all_tools().values()))
        result = json.loads((await reward.call("browser_snapshot", {})).content)
        assert result["title"] == "Moss gardens"

    def replace_tools(user: User, tools: list[Any]) -> Toolbox:
        return Toolbox([replace(tool) for tool in tools], user.state)

    on_site(work, tmp_path)


def test_a_model_that_sees_is_asked_about_the_page(tmp_path: Path) -> None:
    from servers.picture_api import PictureApi

    from environments.tools.registry import get_tool
    from environments.tools.vision.settings import EndpointSettings

    async def work(site: WebSite, new_user: Callable[..., User]) -> None:
        user = new_user()
        async with PictureApi() as api:
            user.state.settings.vision = EndpointSettings(api.url, "eyes")
            user.toolbox = Toolbox([*TOOLS, get_tool("browser_vision")], user.state)
            assert "no page is open" in (await user("vision", question="What?"))["error"]
            await user("navigate", url=f"{site.url}/shop")
            plain = await user("vision", question="What?")
            assert plain["analysis"] == "a red dot"
            labelled = await user("vision", question="What?", annotate=True)
            pictures = [Path(each["screenshot_path"]).read_bytes() for each in (plain, labelled)]
            assert all(picture.startswith(b"\xff\xd8\xff") for picture in pictures)
            assert pictures[0] != pictures[1]
            assert await user.value("document.getElementById('refs-of-the-snapshot')") is None

    on_site(work, tmp_path)
