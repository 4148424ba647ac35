"""A small web site of this machine: everything that the web and browser tools meet outside."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import Counter
from typing import Any

from aiohttp import web

from .listening import LocalServer

ARTICLE = """<!doctype html><html lang="en"><head><title>Moss gardens</title>
<meta name="description" content="On moss"></head><body>
<nav><a href="/">Home</a> <a href="/about">About</a></nav>
<article><h1>Moss gardens</h1>
<p>Moss grows where grass will not: in the shade of old trees, on stone and along water. It needs neither
soil nor fertiliser, and a garden of moss stays green through the winter.</p>
<p>The oldest such garden was laid out in the fourteenth century around a pond; about one hundred and
twenty kinds grow there. Visitors write a sutra before they may walk through it.</p>
<ul><li>Water it in the morning</li><li>Keep leaves off it</li></ul></article>
<footer>Imprint and cookies</footer></body></html>"""

SCRIPTED = """<!doctype html><html><head><title>Shop</title></head><body>
<h1>Shop</h1><div id="list"></div><p id="count">0 in the basket</p>
<label>Name <input id="name"></label>
<label>Size <select id="size"><option>small</option><option>large</option></select></label>
<button id="add">Add to basket</button> <button id="ask">Ask</button> <button id="warn">Warn</button>
<button id="fail">Fail</button> <a href="/article" target="_blank">Details in a new tab</a>
<a href="/file.bin" download>Download</a>
<img src="/dot.png" alt="A dot" width="10" height="10">
<div style="height:3000px"></div><p>The end of the page</p>
<script>
let count = 0;
setTimeout(() => {
  document.getElementById("list").innerHTML = "<ul><li>Tea</li><li>Coffee</li></ul>";
}, 150);
document.getElementById("add").onclick = () => {
  count += 1;
  const who = document.getElementById("name").value;
  document.getElementById("count").textContent = count + " in the basket" + (who ? " of " + who : "");
  console.log("added", count);
};
document.getElementById("ask").onclick = () => {
  document.getElementById("count").textContent = "answer: " + prompt("How many?", "1");
};
document.getElementById("warn").onclick = () => { alert("careful"); };
document.getElementById("fail").onclick = () => { throw new Error("broken button"); };
</script></body></html>"""

LOGIN = """<!doctype html><title>Log in</title><h1>Log in</h1>
<form method="post" action="/login"><label>User <input name="user"></label>
<label>Password <input name="password" type="password"></label><button>Log in</button></form>"""

DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cfc0f01f0005050200a6a2e5a60000000049454e44ae426082"
)


BOMB = zlib.compress(b"<p>" + b"a " * 20_000_000)
"""Forty megabytes in forty kilobytes."""


def pdf(text: str) -> bytes:
    """A PDF document of one page with one line of text."""
    stream = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    document, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(document))
        document += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start = len(document)
    document += b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
    document += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return document


class WebSite(LocalServer):
    """``async with WebSite() as site``; ``site.hits`` counts requests by path."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.searches: list[dict[str, Any]] = []
        self.robots: str | int = "User-agent: *\nDisallow: /private\n"
        self.search_failures: list[int] = []

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._count], client_max_size=10_000_000)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def __aenter__(self) -> WebSite:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @web.middleware
    async def _count(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.hits[request.path] += 1
        return await handler(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.strip("/").partition("/")[0].replace(".", "_") or "index"
        handler = getattr(self, f"page_{name}", None)
        if handler is None:
            return web.Response(status=404, text="nothing here")
        return await handler(request)

    async def page_index(self, request: web.Request) -> web.Response:
        return _html(
            "<title>Start</title><h1>Start</h1><a href='/article'>Moss</a><p>Welcome to this site.</p>"
        )

    async def page_robots_txt(self, request: web.Request) -> web.Response:
        if isinstance(self.robots, int):
            return web.Response(status=self.robots)
        return web.Response(text=self.robots)

    async def page_private(self, request: web.Request) -> web.Response:
        return _html("<p>not for programs</p>")

    async def page_stuck(self, request: web.Request) -> web.Response:
        """A script without end: at once, behind a button, or one question after another."""
        script = {"at-once": "while (true);", "asking": "while (true) alert('again')"}.get(
            request.query_string, ""
        )
        return _html(
            f"<title>Stuck</title><button onclick='while (true);'>Hang</button><script>{script}</script>"
        )

    async def page_leaving(self, request: web.Request) -> web.Response:
        """Asks whether it may be left."""
        return _html(
            "<title>Leaving</title><input><script>onbeforeunload = event => event.preventDefault()</script>"
        )

    async def page_article(self, request: web.Request) -> web.Response:
        return _html(ARTICLE)

    async def page_shop(self, request: web.Request) -> web.Response:
        return _html(SCRIPTED)

    async def page_dot_png(self, request: web.Request) -> web.Response:
        return web.Response(body=DOT, content_type="image/png")

    async def page_file_bin(self, request: web.Request) -> web.Response:
        return web.Response(body=bytes(range(256)) * 100, content_type="application/octet-stream")

    async def page_paper_pdf(self, request: web.Request) -> web.Response:
        return web.Response(body=pdf("Spores travel far"), content_type="application/pdf")

    async def page_broken_pdf(self, request: web.Request) -> web.Response:
        return web.Response(body=b"%PDF-1.7 and then nothing", content_type="application/pdf")

    async def page_data_json(self, request: web.Request) -> web.Response:
        return web.json_response({"answer": 42})

    async def page_latin(self, request: web.Request) -> web.Response:
        text = "<!doctype html><title>Grüße</title><p>Schöne Grüße aus Köln, wo der Fluß fließt.</p>"
        return web.Response(
            body=text.encode("latin-1"), headers={"Content-Type": "text/html; charset=latin-1"}
        )

    async def page_meta(self, request: web.Request) -> web.Response:
        text = "<html><meta charset='shift_jis'><title>苔</title><body><p>苔の庭は緑です。</p></html>"
        return web.Response(body=text.encode("shift_jis"), headers={"Content-Type": "text/html"})

    async def page_empty(self, request: web.Request) -> web.Response:
        return _html("<!doctype html><title>App</title><div id=root></div><script>1</script>")

    async def page_hop(self, request: web.Request) -> web.Response:
        raise web.HTTPFound("/hop2")

    async def page_hop2(self, request: web.Request) -> web.Response:
        raise web.HTTPMovedPermanently("/article#part")

    async def page_loop(self, request: web.Request) -> web.Response:
        raise web.HTTPFound("/loop")

    async def page_away(self, request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": request.query["to"]})

    async def page_slow(self, request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return _html("<p>late</p>")

    async def page_huge(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        await response.write(b"<!doctype html><title>Huge</title><body>")
        paragraph = b"<p>" + b"There is a great deal to be said about this. " * 400 + b"</p>\n"
        with contextlib.suppress(ConnectionError):  # nobody reads all of it
            for _ in range(2_000):
                await response.write(paragraph)
        return response

    async def page_many(self, request: web.Request) -> web.Response:
        """Very many small parts, which cost the reader of pages far more than their bytes."""
        return _html(
            "<title>Many</title><h1>Many</h1>" + "<p>A <b>small</b> <i>part</i> of it.</p>\n" * 240_000
        )

    async def page_late_pdf(self, request: web.Request) -> web.Response:
        """A page in place of a document, as sites have it where one must log in first."""
        return web.Response(body=ARTICLE.encode(), headers={"Content-Type": "application/pdf"})

    async def page_bomb(self, request: web.Request) -> web.Response:
        return web.Response(body=BOMB, headers={"Content-Type": "text/html", "Content-Encoding": "deflate"})

    async def page_sometimes(self, request: web.Request) -> web.Response:
        if self.hits["/sometimes"] == 1:
            return web.Response(status=503)
        return _html("<title>Back</title><p>Here again after a little pause.</p>")

    async def page_login(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            form = await request.post()
            if form.get("user") == "ada" and form.get("password") == "lovelace":
                response = web.HTTPSeeOther("/account")
                response.set_cookie("session", "s3cret", httponly=True)
                raise response
            return _html("<title>Log in</title><p role=alert>Wrong password</p>" + LOGIN)
        return _html(LOGIN)

    async def page_account(self, request: web.Request) -> web.Response:
        if request.cookies.get("session") != "s3cret":
            raise web.HTTPFound("/login")
        return _html("<title>Account</title><h1>Account of ada</h1><a href='/login'>Out</a>")

    async def page_search(self, request: web.Request) -> web.Response:
        """As SearXNG answers."""
        self.searches.append(dict(request.query))
        if self.search_failures:
            return web.Response(status=self.search_failures.pop(0), text="try later")
        if request.query.get("format") != "json":
            return _html("<p>results for people</p>")
        page = int(request.query.get("pageno", "1"))
        results = [
            {
                "url": f"{self.url}/article?n={page}-{number}",
                "title": f"<b>Moss</b> &amp; {request.query['q']} {page}-{number}",
                "content": "All about   moss",
                "engine": "test",
            }
            for number in range(10)
        ]
        return web.json_response({"query": request.query["q"], "results": results if page < 4 else []})


def _html(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html")
