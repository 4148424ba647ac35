"""An image registry that is down at first: it serves one image of a Docker engine under another name."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from aiohttp import web
from servers.thread import LoopThread

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class EngineCalls:
    """Plain calls of a Docker engine behind a Unix socket."""

    def __init__(self, host: str) -> None:
        self._path = host.removeprefix("unix://")

    def call(self, method: str, path: str) -> bytes:
        """The body of the answer. Raises ``OSError`` where it is an error."""
        connection = _SocketConnection(self._path)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise OSError(f"{method} {path}: {response.status} {body[:500]!r}")
        return body

    def tag(self, image: str, name: str) -> None:
        """Give an image another name."""
        self.call("POST", f"/images/{quote(image, safe='/:')}/tag?repo={quote(name)}&tag=latest")

    def untag(self, name: str) -> None:
        """Take a name away, where it is there."""
        with suppress(OSError):
            self.call("DELETE", f"/images/{quote(name, safe='/:')}?noprune=1")

    def containers(self, run: str) -> list[Any]:
        """Containers of a run of ours, stopped ones included."""
        filters = quote(json.dumps({"label": [f"hermes.run={run}"]}))
        found: list[Any] = json.loads(self.call("GET", f"/containers/json?all=1&filters={filters}"))
        return found


class SmallRegistry:
    """Serves one image under every name but ``absent/...``; answers 503 to the first ``down`` requests."""

    def __init__(self, archive: bytes, down: int) -> None:
        self.down = down
        self.refused = 0
        self.port = 0
        self._blobs: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:

            def content(name: str) -> bytes:
                file = tar.extractfile(name)
                assert file is not None
                return file.read()

            (entry,) = json.loads(content("manifest.json"))
            config = self._add(content(entry["Config"]), _CONFIG)
            layers = [self._add(gzip.compress(content(name), 1, mtime=0), _LAYER) for name in entry["Layers"]]
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": layers}
        self._manifest = json.dumps(manifest).encode()

    def _add(self, data: bytes, kind: str) -> dict[str, Any]:
        digest = _digest(data)
        self._blobs[digest] = data
        return {"mediaType": kind, "size": len(data), "digest": digest}

    async def start(self) -> web.AppRunner:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_get("/v2/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        if self.refused < self.down:
            self.refused += 1
            return web.Response(status=503, text="down for repairs")
        *_, kind, name = ["", *request.match_info["path"].rpartition("/")[::2]]
        if kind.startswith("absent/"):
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)
        if kind.endswith("/manifests"):
            headers = {"Docker-Content-Digest": _digest(self._manifest)}
            return web.Response(body=self._manifest, content_type=_MANIFEST, headers=headers)
        if kind.endswith("/blobs") and name in self._blobs:
            return web.Response(body=self._blobs[name], content_type="application/octet-stream")
        return web.Response(status=404 if name else 200)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextmanager
def small_registry(engine: EngineCalls, image: str, down: int) -> Iterator[SmallRegistry]:
    """A registry in a thread of its own that serves ``image`` of the engine."""
    registry = SmallRegistry(engine.call("GET", f"/images/{quote(image, safe='/:')}/get"), down)
    thread = LoopThread()
    runner = thread.run(registry.start())
    try:
        yield registry
    finally:
        thread.run(runner.cleanup())
        thread.stop()
