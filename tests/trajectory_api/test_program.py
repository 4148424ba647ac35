"""The server as a program: its options, its pages, whom it lets in, and what it says of trouble."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trajectory_api.running import Server, Trainer, call, group, server

numbers = itertools.count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("api")) as one:
        yield one


@pytest.fixture
def url(running: Server) -> str:
    """A job of its own for each test."""
    return f"{running.url}/ns/test{next(numbers)}"


def test_pages_for_people_and_machines(running: Server) -> None:
    assert call(running.url, "GET", "/healthz")[1]["status"] == "ok"
    metrics = call(running.url, "GET", "/metrics")[1]
    assert "# TYPE trajectory_api_groups_received_total counter" in metrics
    paths = call(running.url, "GET", "/openapi.json")[1]["paths"]
    assert {"/register", "/scored_data", "/batch"} <= set(paths)
    assert "<table>" in call(running.url, "GET", "/docs")[1]


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Host": "elsewhere.example:8000"},
    ],
)
def test_web_pages_are_kept_out(url: str, headers: dict[str, str]) -> None:
    assert call(url, "GET", "/reset_data", headers=headers)[0] == 403
    assert call(url, "POST", "/scored_data", group(), headers)[0] == 403


def test_its_own_pages_and_names_of_this_machine_are_let_in(running: Server) -> None:
    for host in ("localhost", "[::1]:8000", "trainer", "host.docker.internal:8000", "10.0.0.5"):
        headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        assert call(running.url, "GET", "/status", headers=headers)[0] == 200


def test_a_token_is_asked_for_everywhere_but_health(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    with server(tmp_path / "data", "--token-file", str(secret)) as running:
        assert call(running.url, "GET", "/healthz")[0] == 200
        assert call(running.url, "GET", "/status")[0] == 401
        assert call(running.url, "GET", "/status", headers={"Authorization": "Bearer no"})[0] == 401
        for scheme in ("Bearer", "bearer"):
            assert (
                call(running.url, "GET", "/status", headers={"Authorization": f"{scheme} s3cret"})[0] == 200
            )


def test_a_directory_has_one_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from environments.trajectory_api.main import main

    with server(tmp_path) as running:
        assert running.url
        assert main(["--data", str(tmp_path), "--port", "0"]) == 2
        assert "another run-api works in" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--port", "{taken}"], "in use"),
        (["--host", "no.such.host.invalid", "--port", "0"], "--host"),
        (["--token-file", "nothing"], "No such file"),
        (["--token-file", "/dev/null"], "holds no token"),
        (["--token-file", "{binary}"], "is no text"),
        (["--token", ""], "holds no token"),
        (["--token", "s p"], "without spaces"),
    ],
)
def test_what_stands_in_the_way_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    from environments.trajectory_api.main import main

    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = str(listener.getsockname()[1])
        (binary := tmp_path / "binary").write_bytes(b"\xff\xfe")
        given = [option.format(taken=taken, binary=binary) for option in options]
        assert main(["--data", str(tmp_path), *given]) == 2
    said = capfd.readouterr().err
    assert reason in said and "Traceback" not in said


@pytest.mark.parametrize(
    "options",
    [
        ["--max-body-mb", "0"],
        ["--max-queue", "-1"],
        ["--lease", "nan"],
        ["--stall", "0"],
        ["--log-level", "loud"],
        ["--port", "99999"],
    ],
)
def test_options_that_make_no_sense(capfd: pytest.CaptureFixture[str], options: list[str]) -> None:
    from environments.trajectory_api.main import main

    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert options[0] in capfd.readouterr().err


def test_a_body_beyond_all_patience_is_refused_before_it_comes(running: Server, url: str) -> None:
    Trainer(url).register()
    path = url.removeprefix(running.url)
    with socket.create_connection(("127.0.0.1", running.port)) as sending:
        head = f"POST {path}/scored_data HTTP/1.1\r\nHost: x\r\nContent-Length: {10**12}\r\n\r\n"
        sending.sendall(head.encode())
        sending.settimeout(50)  # below --stall
        assert b" 413 " in sending.recv(1000)


def test_a_database_that_is_taken_away_takes_no_groups(tmp_path: Path) -> None:
    with server(tmp_path / "data") as running:
        trainer = Trainer(running.url)
        trainer.register()
        for number in range(2):
            call(running.url, "POST", "/scored_data", group(number))
        (tmp_path / "data").rename(tmp_path / "moved")
        status, reply = call(running.url, "POST", "/scored_data", group(2))
        assert status == 503 and "removed or replaced" in reply["detail"]
        assert call(running.url, "GET", "/batch")[0] == 503
        assert call(running.url, "GET", "/healthz")[0] == 503
        (tmp_path / "moved").rename(tmp_path / "data")
        assert call(running.url, "GET", "/healthz")[0] == 200
        assert trainer.fetch() is not None and trainer.groups == [0, 1]
