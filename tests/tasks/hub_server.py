"""A server in the shape of the Hugging Face Hub, as far as loading a dataset needs one."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Hub:
    """Datasets: name, then revision (a commit or ``main``), then path and content."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, dict[str, bytes]]] = {}
        self.names: dict[str, dict[str, str]] = {}
        """Branches and tags of a dataset, and their commits."""
        self.asked: list[str] = []
        self.down = False

    def commit(self, dataset: str, files: dict[str, bytes], *names: str) -> str:
        """Add a commit, which ``main`` and ``names`` name from now on; its hash."""
        text = f"{dataset}{len(self.files.get(dataset, {}))}"
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.files.setdefault(dataset, {})[sha] = files
        self.names.setdefault(dataset, {}).update(dict.fromkeys(("main", *names), sha))
        return sha

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content for a path."""
        self.asked.append(path)
        if self.down:
            return 503, {}, b"down"
        words = unquote(path.partition("?")[0]).strip("/").split("/")
        if words[:2] == ["api", "datasets"]:
            return self._api("/".join(words[2:4]), words[4:], body, whole="recursive=true" in path.lower())
        if words[:1] == ["datasets"] and "resolve" in words:
            return self._content("/".join(words[1:3]), words[4], "/".join(words[5:]))
        return _error(404, "RepoNotFound")

    def _commit_of(self, dataset: str, revision: str) -> str | None:
        commit = self.names[dataset].get(revision, revision)
        return commit if commit in self.files[dataset] else None

    def _api(
        self, dataset: str, words: list[str], body: bytes, *, whole: bool
    ) -> tuple[int, dict[str, str], bytes]:
        if dataset not in self.files:
            return _error(401, "RepoNotFound")
        kind = words[0] if words else "revision"
        commit = self._commit_of(dataset, words[1] if len(words) > 1 else "main")
        if commit is None:
            return _error(404, "RevisionNotFound")
        files = self.files[dataset][commit]
        listed: list[dict[str, Any]] = [
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for path, data in files.items()
        ]
        found: Any = {
            "id": dataset,
            "sha": commit,
            "siblings": [{"rfilename": path} for path in files],
            "private": False,
            "gated": False,
            "tags": [],
        }
        if kind == "tree":
            found = _tree(listed, "".join(f"{word}/" for word in words[2:]), whole)
            if not found and words[2:]:
                return _error(404, "EntryNotFound")
        elif kind == "paths-info":
            wanted = json.loads(body)["paths"] if body[:1] == b"{" else body.decode()
            found = [entry for entry in listed if entry["path"] in wanted]
        elif kind != "revision":
            return _error(404, "EntryNotFound")
        return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()

    def _content(self, dataset: str, revision: str, path: str) -> tuple[int, dict[str, str], bytes]:
        commit = self._commit_of(dataset, revision) if dataset in self.files else None
        data = self.files[dataset][commit].get(path) if commit else None
        if commit is None or data is None:
            return _error(404, "EntryNotFound" if commit else "RepoNotFound")
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit}
        return 200, headers, data


def _tree(listed: list[dict[str, Any]], below: str, whole: bool) -> list[dict[str, Any]]:
    """What is in a directory, or everything below it; directories are entries of their own."""
    found = {entry["path"]: entry for entry in listed if entry["path"].startswith(below)}
    for path in list(found):
        parents = path.split("/")[:-1]
        for end in range(1, len(parents) + 1):
            parent = "/".join(parents[:end])
            if parent.startswith(below) and parent != below:
                found[parent] = {"type": "directory", "path": parent, "oid": "0" * 40, "size": 0}
    return [entry for path, entry in found.items() if whole or "/" not in path[len(below) :]]


def _error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}"


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Serve it; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, headers, data = hub.answer(self.path, self.rfile.read(length))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_POST = do_GET

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
