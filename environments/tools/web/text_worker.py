"""A program of its own that turns pages into text: hostile input stays out of the framework's process.

It reads one request after another from its standard input and writes the answers to its standard
output; each is a line of JSON, and a request's line is followed by ``size`` bytes of the page. It knows
no key, may use little memory, and is ended by the kernel where one page takes too long.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import sys
from typing import IO, Any

MEMORY = 2 << 30
"""Bytes of address space."""

MOST_CHARACTERS = 500_000
"""Longest text of a page."""

_MOST_PAGES = 500
_META_CHARSET = re.compile(rb"""<meta[^>]{1,200}charset\s*=\s*["']?([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
_WITHOUT_TEXT = ("script", "style", "template", "noscript", "title")


def html_text(body: bytes, charset: str | None, url: str) -> dict[str, Any]:
    """Title and main text of an HTML page, as Markdown."""
    import trafilatura
    from trafilatura.metadata import extract_metadata

    named = _META_CHARSET.search(body[:4096])
    source = decode(body, charset or (named[1].decode() if named else None))
    tree = trafilatura.load_html(source)  # None for what hardly looks like a page
    found = extract_metadata(tree, default_url=url) if tree is not None else None
    text = trafilatura.extract(
        tree, url=url, output_format="markdown", include_links=True, include_tables=True, favor_recall=True
    )
    if text:
        return {"title": (found.title if found is not None else None) or "", "text": text}
    return all_text(source)


def all_text(source: str) -> dict[str, Any]:
    """Title and every line of text of a page that has no main part."""
    from lxml import etree, html

    try:
        # As bytes: lxml refuses text that names an encoding of its own.
        tree = html.document_fromstring(source.encode(), parser=html.HTMLParser(encoding="utf-8"))
    except (etree.ParserError, ValueError):  # nothing in it
        return {"title": "", "text": ""}
    lines: list[str] = []
    for element in tree.iter():
        if isinstance(element.tag, str) and element.tag not in _WITHOUT_TEXT:
            lines.append(" ".join((element.text or "").split()))
        lines.append(" ".join((element.tail or "").split()))
    return {"title": (tree.findtext(".//title") or "").strip(), "text": "\n".join(filter(None, lines))}


def pdf_text(body: bytes) -> dict[str, Any]:
    """Title and text of a PDF document, page by page."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(io.BytesIO(body))
        if reader.is_encrypted and not reader.decrypt(""):
            return {"error": "the PDF is encrypted"}
        title = str(reader.metadata.title or "") if reader.metadata else ""
        pages: list[str] = []
        length = 0
        for page in reader.pages[:_MOST_PAGES]:
            pages.append(page.extract_text().strip())
            length += len(pages[-1])
            if length > MOST_CHARACTERS:
                break
    except PyPdfError as error:
        return {"error": f"the PDF cannot be read: {error}"}
    return {"title": title, "text": "\n\n".join(filter(None, pages))}


def decode(body: bytes, charset: str | None) -> str:
    """Text in the charset that was named, else UTF-8, else what browsers take for it."""
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        charset = "utf-16"
    for name in (charset, "utf-8-sig"):
        try:
            if name:
                return body.decode(name)
        except (LookupError, UnicodeDecodeError):
            continue
    return body.decode("utf-8" if charset and "utf" in charset.lower() else "cp1252", "replace")


def read(kind: str, body: bytes, charset: str | None, url: str) -> dict[str, Any]:
    """Title and text of a page of this kind: ``html``, ``pdf`` or ``text``."""
    if kind == "pdf":
        return pdf_text(body)
    if kind == "html":
        return html_text(body, charset, url)
    return {"title": "", "text": decode(body, charset)}


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    while line := requests.readline():
        request = json.loads(line)
        body = requests.read(request["size"])
        signal.alarm(request["seconds"])
        try:
            answer = read(request["kind"], body, request["charset"], request["url"])
        except ImportError as error:
            answer = {"broken": str(error)}
        except Exception as error:  # noqa: BLE001 - the parsers of hostile documents fail in all ways
            answer = {"error": f"the page cannot be read: {type(error).__name__}: {error}"[:500]}
        signal.alarm(0)
        if "text" in answer:
            answer["text"] = answer["text"][:MOST_CHARACTERS]
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def main() -> None:
    """Serve on standard input and output; what libraries print goes nowhere."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the framework ends us itself
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
