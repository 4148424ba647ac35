"""`serve` and a server that is no trajectory API, or one that is broken for a while."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from environments.config import BaseEnvConfig
from environments.errors import ConfigError
from environments.trajectory_api.client import Rejected, TrajectoryClient
from environments.workflows.serve_ledger import SENT, Ledger
from environments.workflows.serve_link import Link, Training
from environments.workflows.serve_sending import Sender

Answer = Callable[[str], tuple[int, bytes]]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """A server that answers each path as it is told; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", "http://elsewhere.example/")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = reply

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def link(client: TrajectoryClient, notes: list[str]) -> Link:
    return Link(client, BaseEnvConfig(group_size=2), "e", "i", notes.append)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (200, b"[1]"),
        (200, b"null"),
        (200, b" " * (17 << 20)),
        (200, b'{"project": "p", "batch_size": "x"}'),
        (200, b'{"project": "p", "batch_size": 4, "max_token_len": null}'),
        (200, b'{"project": "p", "batch_size": 4, "max_token_len": 9, "status": "success", "env_id": []}'),
        (302, b""),
        (500, b"oops"),
    ],
)
def test_it_waits_for_a_real_api_and_says_what_is_wrong(status: int, body: bytes) -> None:
    notes: list[str] = []

    async def run(url: str) -> None:
        async with TrajectoryClient(url) as client:
            joining = asyncio.ensure_future(link(client, notes).join())
            while not notes and not joining.done():
                await asyncio.sleep(0.01)
            assert not joining.done()
            joining.cancel()

    with answering(lambda path: (status, body)) as url:
        asyncio.run(run(url))
        assert url in notes[0]
    expected = {302: "redirects to", 500: "oops"}.get(status, "is this a trajectory API?")
    assert expected in notes[0]


def test_garbage_in_the_middle_of_a_training_is_waited_out() -> None:
    notes: list[str] = []
    replies = [b"[]", b'{"current_step": null}', b'{"current_step": 3, "queue_size": 1}']

    async def run(url: str) -> Link:
        async with TrajectoryClient(url) as client:
            one = link(client, notes)
            one.training = Training("r", True, 0, "e_0", "g", "p", 4, 0, 0, 9, 0, "", False)
            assert [await one.look() for _ in range(3)] == [True] * 3
            return one

    with answering(lambda path: (200, replies.pop(0))) as url:
        assert asyncio.run(run(url)).demand.step == 3
    assert len(notes) == 2 and "groups wait on disk" in notes[0]


def test_groups_that_are_not_taken_wait_and_the_reason_is_said(tmp_path: Path) -> None:
    notes: list[str] = []
    replies = [
        (503, b'{"detail": "no more room"}'),
        (302, b""),
        (200, b"[]"),
        (200, b'{"status": "received"}'),
    ]
    outcomes: list[str] = []

    async def run(url: str) -> None:
        ledger = Ledger(tmp_path)
        ledger.begin("r", 0)
        async with TrajectoryClient(url) as client:
            one = link(client, notes)
            one.training = Training("r", True, 0, "e_0", "g", "p", 4, 0, 0, 9, 0, "", False)
            sender = Sender(one, lambda spooled, outcome, text: outcomes.append(outcome))
            sender.start()
            sender.add(ledger.spool(ledger.key(0, 0), 0, 2, json.dumps({"tokens": []}).encode()))
            while not outcomes:
                sender.check()
                await asyncio.sleep(0.01)
            await sender.stop()
        ledger.close()

    with answering(lambda path: replies.pop(0)) as url:
        asyncio.run(run(url))
    assert outcomes == [SENT]
    assert len(notes) == 1 and "no more room" in notes[0] and "wait on disk" in notes[0]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:99999", "http://[::1"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="no URL"):
        TrajectoryClient(url)


def test_numbers_of_a_reply_are_numbers() -> None:
    async def ask(url: str) -> None:
        async with TrajectoryClient(url) as client:
            reply = await client.get("/x")
            assert reply.number("a") == 1 and reply.number("missing", 7) == 7
            for name in ("b", "c", "missing"):
                with pytest.raises(Rejected, match="not a number"):
                    reply.number(name)
            assert reply.objects("missing") == []
            with pytest.raises(Rejected, match="no list"):
                reply.objects("c")

    with answering(lambda path: (200, b'{"a": 1, "b": true, "c": "x"}')) as url:
        asyncio.run(ask(url))
