"""Parts of the docker backend that need no engine."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from environments.config import HermesAgentEnvConfig
from environments.errors import ConfigError, NotSupported, SandboxBroken, SandboxError
from environments.sandboxes.base import Resources, SandboxSpec
from environments.sandboxes.docker import images, ownership
from environments.sandboxes.docker.address import Address, find_address, parse_address
from environments.sandboxes.docker.building import Ignored, read_context
from environments.sandboxes.docker.containers import Container
from environments.sandboxes.docker.credentials import authentication_header, credentials_for, registry_of
from environments.sandboxes.docker.engine import Engine
from environments.sandboxes.docker.execution import EndMark, NotStarted
from environments.sandboxes.docker.images import Images
from environments.sandboxes.docker.request import limits_of
from environments.sandboxes.docker.scripts import shell_command


def test_where_the_engine_is(tmp_path: Path) -> None:
    assert parse_address("unix:///x/y.sock", {}) == Address(path="/x/y.sock")
    assert parse_address("tcp://box:1234", {}) == Address(host="box", port=1234)
    assert parse_address("tcp://[::1]", {}).url == "http://[::1]:2375"
    assert find_address({"DOCKER_HOST": "tcp://box", "HOME": str(tmp_path)}).port == 2375
    for bad in ("ssh://box", "box:1234", "unix://", "tcp://box:port"):
        with pytest.raises(ConfigError, match="DOCKER_HOST"):
            parse_address(bad, {})
    with pytest.raises(ConfigError, match="DOCKER_CERT_PATH"):
        parse_address("tcp://box", {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)})


def test_a_docker_context_is_followed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"currentContext": "remote"}')
    with pytest.raises(ConfigError, match="remote"):
        find_address({"DOCKER_CONFIG": str(tmp_path)})
    place = tmp_path / "contexts" / "meta" / hashlib.sha256(b"remote").hexdigest()
    place.mkdir(parents=True)
    (place / "meta.json").write_text('{"Endpoints": {"docker": {"Host": "tcp://far:99"}}}')
    assert find_address({"DOCKER_CONFIG": str(tmp_path)}) == Address(host="far", port=99)


def test_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\nread host\necho "{\\"Username\\": \\"u\\", \\"Secret\\": \\"$host\\"}"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "auths": {"ghcr.io": {"auth": base64.b64encode(b"me:pass:word").decode()}},
                "credHelpers": {"helped.io": "test", "broken.io": "missing"},
            }
        )
    )

    async def main() -> None:
        assert await credentials_for("ghcr.io") == {
            "username": "me",
            "password": "pass:word",
            "serveraddress": "ghcr.io",
        }
        assert (await credentials_for("helped.io"))["password"] == "helped.io"
        assert await authentication_header("python:3") == {}
        with pytest.raises(SandboxError, match="docker-credential-missing"):
            await credentials_for("broken.io")
        header = await authentication_header("ghcr.io/a/b:1")
        assert json.loads(base64.urlsafe_b64decode(header["X-Registry-Auth"]))["username"] == "me"

    asyncio.run(main())
    assert registry_of("me/tool") == registry_of("docker.io/me/tool") == "https://index.docker.io/v1/"
    assert registry_of("localhost:5000/x") == "localhost:5000"


def test_whose_a_container_is() -> None:
    labels = ownership.labels_for("run", "box", 100)
    assert not ownership.is_abandoned(labels)
    assert ownership.is_abandoned({**labels, ownership.DEADLINE: str(int(time.time()) - 1)})
    code = "from environments.sandboxes.docker import ownership as o; print(o.this_process())"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ownership.is_abandoned({**labels, ownership.OWNER: dead.stdout.strip()})
    pid, started, *world = labels[ownership.OWNER].split("/")
    elsewhere = "/".join(["999999999", started, "another-boot", world[-1]])
    assert not ownership.is_abandoned({**labels, ownership.OWNER: elsewhere})
    reused = "/".join([pid, f"{started}1", *world])
    assert ownership.is_abandoned({**labels, ownership.OWNER: reused})


def test_ignored_files() -> None:
    ignored = Ignored("# comment\n*.log\nbuild/\n**/cache\n!keep.log\ndocs/*.md\n")
    assert ignored.matches("a.log")
    assert ignored.matches("build/x/y")
    assert ignored.matches("deep/er/cache/file")
    assert ignored.matches("docs/a.md")
    for path in ("keep.log", "sub/a.log", "docs/deep/a.md", "builds"):
        assert not ignored.matches(path)


def test_a_build_context_is_named_by_its_content(tmp_path: Path) -> None:
    place = tmp_path / "My Task"
    place.mkdir()
    (place / "Dockerfile").write_text("FROM --platform=linux/amd64 ghcr.io/a/b AS x\nFROM python:3\n")
    with read_context(place) as first:
        assert first.tag.startswith("hermes-environments/my-task:")
        assert first.registries == ["ghcr.io", "https://index.docker.io/v1/"]
    os.utime(place / "Dockerfile", (1, 1))
    with read_context(place) as same:
        assert same.tag == first.tag
    (place / "Dockerfile").chmod(stat.S_IRUSR | stat.S_IXUSR)
    with read_context(place) as other:
        assert other.tag != first.tag


@given(st.binary(max_size=60), st.lists(st.integers(0, 80), max_size=6), st.integers(0, 255))
def test_the_end_of_a_command_is_found_wherever_it_is_cut(output: bytes, cuts: list[int], code: int) -> None:
    whole = output + b"\0mark. %d\n" % code + b"late output"
    finder = EndMark("mark.")
    seen, last = b"", 0
    for cut in [*sorted(cuts), len(whole)]:
        seen += finder.cut(whole[last:cut])
        last = max(last, cut)
    assert (seen, finder.code) == (output, code)


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_output_without_an_end_comes_through(parts: list[bytes]) -> None:
    finder = EndMark("mark.")
    assert b"".join(map(finder.cut, parts)) + finder.held == b"".join(parts)


@given(st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"\0", b"x"))))
def test_arguments_of_any_bytes_reach_a_program(words: list[bytes]) -> None:
    program = 'for word; do printf "%s\\0" "$word"; done'
    argv = shell_command(program, *(os.fsdecode(word) for word in words))
    found = subprocess.run(argv, capture_output=True, check=True).stdout
    assert found == b"".join(word + b"\0" for word in words)


def test_limits_fit_the_machine() -> None:
    config = HermesAgentEnvConfig(sandbox_memory_mb=512)
    limits = limits_of(SandboxSpec(resources=Resources(cpus=64, storage_mb=100)), config, {"NCPU": 2})
    assert (limits.cpus, limits.memory_mb) == (2.0, 512)
    assert len(limits.limitations(storage=False)) == 2
    assert limits.in_force(storage=True)["storage_mb"] == 100


class Registry:
    """An engine that has no images, and answers pulls as it is told."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.answers = list(answers)
        self.pulls = 0
        self.has_image = False

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == "/images/create":
            self.pulls += 1
            status, content = self.answers.pop(0)
            self.has_image = status == 200 and "error" not in str(content)
            return web.Response(status=status, text=json.dumps(content) + "\n")
        if self.has_image:
            return web.json_response({"Id": "sha256:1", "RepoDigests": ["x@sha256:2"], "Config": {}})
        return web.json_response({"message": "no such image"}, status=404)


def pull(registry: Registry, path: Path, count: int = 1) -> list[images.Image | BaseException]:
    """Ask an engine for one image ``count`` times at once."""

    async def main() -> list[images.Image | BaseException]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", registry.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(path / "engine.sock")).start()
        engine = Engine(Address(path=str(path / "engine.sock")))
        try:
            got = Images(engine)
            return await asyncio.gather(*(got.get("me/tool") for _ in range(count)), return_exceptions=True)
        finally:
            await engine.close()
            await runner.cleanup()

    return asyncio.run(main())


def test_a_pull_waits_where_the_registry_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_FIRST_PAUSE", 0.01)
    limit = {"error": "toomanyrequests: You have reached your pull rate limit"}
    registry = Registry((429, {"message": "slow down"}), (200, limit), (503, {}), (200, {"status": "done"}))
    found = pull(registry, tmp_path, count=10)
    assert registry.pulls == 4
    assert {image.digest for image in found if isinstance(image, images.Image)} == {"sha256:2"}
    assert len(found) == 10


def test_an_image_that_cannot_be_had_ends_the_run(tmp_path: Path) -> None:
    denied = {"error": "pull access denied for me/tool, repository does not exist"}
    registry = Registry((200, denied))
    (error,) = pull(registry, tmp_path)
    assert isinstance(error, NotSupported)
    assert "me/tool" in str(error)
    assert "docker login" in str(error)
    assert registry.pulls == 1


@pytest.mark.parametrize(
    ("rows", "alone"),
    [
        ([["32619", "32619"], ["32700", "32619"]], True),
        ([["444", "32619"], ["32619", "32619"]], True),  # the host's numbers have begun again
        ([["444", "444"], ["32619", "32619"]], False),
        ([["32619", "32619"], ["32700", "32700"]], False),
    ],
)
def test_what_an_engine_lists_beside_the_first_process(
    tmp_path: Path, rows: list[list[str]], alone: bool
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"Titles": ["PID", "SID"], "Processes": rows})

    async def main() -> bool:
        app = web.Application()
        app.router.add_get("/{path:.*}/top", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "engine.sock")).start()
        engine = Engine(Address(path=str(tmp_path / "engine.sock")))
        try:
            return await Container(engine, "0" * 64, 60).only_init_runs()
        finally:
            await engine.close()
            await runner.cleanup()

    assert asyncio.run(main()) is alone


def test_a_name_says_that_a_container_is_kept_and_until_when() -> None:
    labels = ownership.labels_for("run", "box", 100)
    until = int(time.time()) + 50
    container = {"Id": "1", "Labels": labels, "Names": [f"/{ownership.kept_name('hermes-box', until)}"]}
    entry = ownership.entry_of(container)
    assert (entry.id, entry.run, entry.kept, entry.deadline) == ("hermes-box", "run", True, float(until))
    assert not entry.abandoned
    late = {**container, "Names": [f"/{ownership.kept_name('hermes-box', time.time() - 1)}"]}
    assert ownership.entry_of(late).abandoned
    assert not ownership.entry_of({**container, "Names": ["/hermes-box"]}).kept


@pytest.mark.parametrize(
    ("looks", "components", "broken"),
    [
        ([{"ExitCode": 137, "OOMKilled": True}] * 2, ["Engine"], True),
        ([{"ExitCode": 137}, {"ExitCode": 137, "OOMKilled": True}], ["Engine"], True),  # told a little late
        ([{"ExitCode": 137}] * 2, ["Engine"], False),  # by hand, or by an engine that stops
        ([{"ExitCode": 137}] * 2, ["Podman Engine"], True),  # which may hide that memory ran out
        ([{"ExitCode": 137}, None], ["Podman Engine"], False),  # it is being removed
        ([{"ExitCode": 127}], ["Engine"], True),  # the shell was taken from under it
        ([None], ["Engine"], False),
    ],
)
def test_whose_doing_the_end_of_a_container_under_a_command_is(
    tmp_path: Path, looks: list[dict[str, Any] | None], components: list[str], broken: bool
) -> None:
    left = list(looks)

    async def container(request: web.Request) -> web.Response:
        state = left.pop(0)
        if state is None:
            return web.json_response({"message": "no such container"}, status=404)
        return web.json_response({"State": {"Running": False, **state}})

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"Components": [{"Name": name} for name in components]})

    async def main() -> Any:
        app = web.Application()
        app.router.add_get("/{path:.*}/version", version)
        app.router.add_get("/version", version)
        app.router.add_get("/{path:.*}/json", container)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "engine.sock")).start()
        engine = Engine(Address(path=str(tmp_path / "engine.sock")))
        try:
            return await Container(engine, "0" * 64, 60).why_dead(during_command=True, cause=None)
        finally:
            await engine.close()
            await runner.cleanup()

    error = asyncio.run(main())
    assert isinstance(error, SandboxError)
    assert isinstance(error, SandboxBroken) is broken


@pytest.mark.parametrize(
    ("reason", "engine"),
    [
        ("fork/exec /usr/sbin/runc: resource temporarily unavailable: unknown", True),
        ("error starting setns process: fork/exec /proc/self/exe: resource temporarily unavailable", True),
        ("runc did not terminate successfully: exit status 2: unknown", True),
        (
            "exec failed: unable to start container process: error executing setns process: exit status 1",
            False,
        ),
        ("read init-p: connection reset by peer: unknown", False),
        ("sh: fork: resource temporarily unavailable", False),
    ],
)
def test_an_engine_that_lacks_processes_is_told_from_a_sandbox_that_does(reason: str, engine: bool) -> None:
    """The texts are those of Docker 20.10 with its engine, and with the container, in a full group."""
    assert NotStarted(f"OCI runtime exec failed: {reason}".encode(), 126).by_the_engine is engine
