"""What is special to containers: images, networks, limits, faults of the engine, dead runs."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from docker_engines import BUSYBOX, IMAGE, VARIABLES, EngineWorld, use_engine
from real_backends import RUN_ID, SECONDS, STARVE_INIT

from environments.errors import NotSupported, SandboxBroken, SandboxError, SandboxReleased
from environments.sandboxes.answering import ensure_answer
from environments.sandboxes.base import NetworkPolicy, Resources, SandboxSpec
from environments.sandboxes.docker.backend import DockerBackend
from environments.sandboxes.docker.containers import find_containers, our_containers
from environments.sandboxes.docker.engine import Engine, EngineError
from environments.sandboxes.docker.ownership import RUN
from environments.sandboxes.docker.sandbox import DockerSandbox

pytestmark = pytest.mark.integration

HOG = "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20) + b\"1\")'"


@pytest.fixture(params=list(VARIABLES))
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EngineWorld:
    use_engine(request.param, monkeypatch)
    return EngineWorld()


def run(
    world: EngineWorld,
    body: Callable[[DockerSandbox, DockerBackend], Awaitable[None]],
    spec: SandboxSpec | None = None,
) -> None:
    """Run ``body`` on a new sandbox and its backend."""

    async def main() -> None:
        async with world.backend() as backend:
            await body(await backend.create(spec or SandboxSpec()), backend)

    asyncio.run(asyncio.wait_for(main(), 110))


async def engine_call(backend: DockerBackend, method: str, path: str, **query: str) -> object:
    return await backend._engine.call(method, path, query=query)


def test_what_is_said_about_a_sandbox(world: EngineWorld) -> None:
    async def body(sandbox: DockerSandbox, backend: DockerBackend) -> None:
        info = sandbox.info
        assert (info.backend, info.isolation, info.network) == ("docker", "container", "none")
        assert info.image == IMAGE
        assert info.image_digest and info.image_digest.startswith("sha256:")
        assert info.resources["memory_mb"] == 256
        assert info.resources["cpus"] == 0.5
        assert 20 <= info.resources["processes"] < 30
        assert any("storage" in text for text in info.limitations) or info.resources.get("storage_mb") == 500
        described = await engine_call(backend, "GET", f"/containers/{sandbox._container.id}/json")
        host = described["HostConfig"]
        assert host["Memory"] == 256 << 20
        assert host["NanoCpus"] == 500_000_000
        assert host["NetworkMode"] == "none"
        assert not host["Privileged"]

    resources = Resources(cpus=0.5, memory_mb=256, storage_mb=500, processes=20)
    run(world, body, SandboxSpec(resources=resources))


def test_networks(world: EngineWorld) -> None:
    async def without(sandbox: DockerSandbox, _: DockerBackend) -> None:
        assert (await sandbox.exec("cat /proc/net/dev | grep -c eth0")).text == "0\n"
        probe = "import socket; socket.create_connection(('10.0.0.1', 80), timeout=3)"
        assert (await sandbox.exec(["python3", "-c", probe])).exit_code == 1

    async def public(sandbox: DockerSandbox, backend: DockerBackend) -> None:
        assert (await sandbox.exec("cat /proc/net/dev | grep -c eth0")).text == "1\n"

    run(world, without)
    run(world, public, SandboxSpec(network=NetworkPolicy("public")))


def test_nothing_of_the_framework_is_in_reach(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_FRAMEWORK", "sesame")
    (tmp_path / "secret").write_text("sesame")

    async def body(sandbox: DockerSandbox, _: DockerBackend) -> None:
        found = await sandbox.exec("env; cat /proc/*/environ; cat /proc/*/cmdline", user="0")
        assert b"sesame" not in found.stdout
        with pytest.raises(FileNotFoundError):
            await sandbox.read_bytes(str(tmp_path / "secret"))
        assert (await sandbox.exec(f"kill -0 {os.getpid()}")).exit_code != 0
        assert (await sandbox.exec("mount -t proc proc /mnt")).exit_code != 0
        assert (await sandbox.exec("ls /var/run/docker.sock")).exit_code != 0

    run(world, body)


def test_links_stay_in_the_container(world: EngineWorld, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")

    async def body(sandbox: DockerSandbox, _: DockerBackend) -> None:
        await sandbox.exec(["ln", "-s", str(secret), "/leak"])
        await sandbox.exec(["ln", "-s", str(tmp_path), "/leakdir"])
        for path in ("/leak", "/leakdir/secret", f"/../../..{secret}", f"/proc/1/root{secret}"):
            with pytest.raises(FileNotFoundError):
                await sandbox.read_bytes(path)
        await sandbox.write_bytes("/leak", b"overwritten")
        await sandbox.write_bytes("/leakdir/new", b"written")
        assert await sandbox.read_bytes(str(secret)) == b"overwritten"
        assert secret.read_text() == "host secret"
        assert [p.name for p in tmp_path.iterdir()] == ["secret"]

    run(world, body)


def test_the_agent_cannot_end_the_first_process(world: EngineWorld) -> None:
    async def body(sandbox: DockerSandbox, _: DockerBackend) -> None:
        await sandbox.exec("for s in TERM INT HUP QUIT KILL STOP USR1 SEGV; do kill -$s 1; done; kill -9 -1")
        await sandbox.exec("kill -9 -1", user="0")
        assert (await sandbox.exec("echo alive")).text == "alive\n"
        late = await sandbox.exec("setsid sleep 100 & sleep 100", timeout=1)  # the guard was killed too
        assert late.timed_out
        left = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 10[0]'")
        assert left.text == "0\n"

    run(world, body)


def test_a_kill_that_the_agent_only_feigns_is_noticed(world: EngineWorld) -> None:
    feigning = (
        "#!/usr/bin/python3\nimport subprocess, sys\n"
        "if 'GUARD' not in ' '.join(sys.argv): sys.exit(subprocess.call(['/bin/dash', *sys.argv[1:]]))\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin: print('done', line.split()[1], 0, flush=True)\n"
    )

    async def body(sandbox: DockerSandbox, _: DockerBackend) -> None:
        await sandbox.write_bytes("/bin/feigned", feigning.encode(), mode=0o755)
        await sandbox.exec("setsid sleep 300 >/dev/null 2>&1 & rm /bin/sh; ln -s feigned /bin/sh")
        await sandbox.exec("kill -9 $(grep -l HERMES_GUAR[D] /proc/[0-9]*/cmdline | cut -d/ -f3)")
        with pytest.raises(SandboxBroken, match="killed"):
            await sandbox.kill_all()

    run(world, body)


def test_memory_and_processes_are_bounded(world: EngineWorld) -> None:
    async def body(sandbox: DockerSandbox, _: DockerBackend) -> None:
        result = await sandbox.exec(HOG, timeout=60)
        assert (result.exit_code, result.killed_by) == (137, 9)
        assert (await sandbox.exec("echo alive")).text == "alive\n"
        await sandbox.exec("for i in $(seq 100); do sleep 300 & done", timeout=3)
        await sandbox.kill_all()
        assert (await sandbox.exec("echo alive")).text == "alive\n"
        bomb = await sandbox.exec("f() { f | f & f | f & }; f; sleep 100", timeout=2)
        assert bomb.timed_out or bomb.exit_code != 0
        await sandbox.kill_all()
        await sandbox.exec("setsid sh -c 'f() { f | f & f | f & }; f; sleep 100' > /dev/null 2>&1 & sleep 1")
        await ensure_answer(sandbox)
        await sandbox.kill_all()
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    run(world, body, SandboxSpec(resources=Resources(memory_mb=128, processes=60)))


def test_whose_doing_the_end_of_a_container_is(world: EngineWorld) -> None:
    async def removed(sandbox: DockerSandbox, backend: DockerBackend) -> None:
        await engine_call(backend, "DELETE", f"/containers/{sandbox._container.id}", force="1")
        with pytest.raises(SandboxError, match="vanished") as caught:
            await sandbox.exec("true")
        assert not isinstance(caught.value, SandboxBroken)
        await sandbox.close()

    async def stopped_idle(sandbox: DockerSandbox, backend: DockerBackend) -> None:
        await engine_call(backend, "POST", f"/containers/{sandbox._container.id}/kill")
        with pytest.raises(SandboxError, match="nothing ran") as caught:
            await sandbox.exec("true")
        assert not isinstance(caught.value, SandboxBroken)

    async def starved(sandbox: DockerSandbox, _: DockerBackend) -> None:
        with pytest.raises(SandboxBroken):
            await sandbox.exec(STARVE_INIT, timeout=60)
        assert not await sandbox.alive()

    async def without_shell(sandbox: DockerSandbox, _: DockerBackend) -> None:
        await sandbox.exec("rm -f /bin/sh /usr/bin/sh")
        with pytest.raises(SandboxBroken, match="/bin/sh"):
            await sandbox.exec("true")
        assert not await sandbox.alive()
        await sandbox.kill_all()

    for body in (removed, stopped_idle, starved, without_shell):
        run(world, body, SandboxSpec(resources=Resources(memory_mb=256)))


@pytest.mark.parametrize("how", ["remove", "kill", "stop"])
def test_what_is_done_to_a_container_from_outside_is_no_fault_of_the_agent(
    world: EngineWorld, how: str
) -> None:
    async def body(sandbox: DockerSandbox, backend: DockerBackend) -> None:
        where = f"/containers/{sandbox._container.id}"
        if how != "remove" and not await sandbox._container._memory_is_told():
            pytest.skip("this engine does not tell a death for want of memory from others")
        running = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await asyncio.sleep(1)
        if how == "remove":
            await engine_call(backend, "DELETE", where, force="1")
        else:
            await engine_call(backend, "POST", f"{where}/{how}", **({"t": "1"} if how == "stop" else {}))
        for use in (running, sandbox.exec("true")):
            with pytest.raises(SandboxError, match=r"vanished|from outside|nothing ran") as caught:
                await use
            assert not isinstance(caught.value, SandboxBroken)

    run(world, body)


def test_an_engine_that_is_gone_is_no_fault_of_the_agent(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def body(sandbox: DockerSandbox, backend: DockerBackend) -> None:
        address, backend._engine.address = (
            backend._engine.address,
            type(backend._engine.address)(path=str(tmp_path / "no.sock")),
        )
        await backend._engine.close()
        for use in (sandbox.exec("true"), sandbox.alive()):
            with pytest.raises(SandboxError, match="does not run") as caught:
                await use
            assert not isinstance(caught.value, SandboxBroken)
        backend._engine.address = address
        await backend._engine.close()
        assert await sandbox.alive()

    run(world, body)


def test_a_missing_engine_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    async def main() -> None:
        async with EngineWorld().backend() as backend:
            with pytest.raises(SandboxError, match=r"start dockerd .* DOCKER_HOST") as caught:
                await backend.check()
            assert caught.value.fatal

    asyncio.run(main())


def test_a_missing_image_is_named(world: EngineWorld) -> None:
    async def plain() -> None:
        async with world.backend() as backend:
            with pytest.raises(SandboxError, match=r"registry.invalid/no/such:1 is not on the engine"):
                await backend.create(SandboxSpec(image="registry.invalid/no/such:1"))
            with pytest.raises(NotSupported, match="Dockerfile"):
                await backend.create(SandboxSpec(image="./no/such/directory"))

    asyncio.run(plain())


def test_an_image_is_built_once_from_its_directory(world: EngineWorld, tmp_path: Path) -> None:
    place = tmp_path / "task"
    place.mkdir()
    (place / "data.txt").write_text(f"content {time.time()}")
    (place / "ignored.txt").write_text("x")
    (place / ".dockerignore").write_text("ignored.*\n")
    base = f"docker.io/{IMAGE}"  # in full: Podman knows no short names
    (place / "Dockerfile").write_text(
        f"FROM {base}\nRUN useradd -m agent\nCOPY . /data\nENV FROM_IMAGE=yes\n"
        "WORKDIR /home/agent/work\nRUN chown agent .\nUSER agent\n"
        'ENTRYPOINT ["/bin/false"]\nCMD ["nothing"]\n'
    )

    async def main() -> None:
        async with world.backend() as backend:
            both = await asyncio.gather(*(backend.create(SandboxSpec(image=str(place))) for _ in range(2)))
            sandbox = both[0]
            assert sandbox.info.image_digest == both[1].info.image_digest
            assert (sandbox.home, sandbox.working_directory) == ("/home/agent", "/home/agent/work")
            assert (await sandbox.exec("whoami; pwd; echo $FROM_IMAGE; ls /data")).text == (
                "agent\n/home/agent/work\nyes\nDockerfile\ndata.txt\n"
            )
            await sandbox.write_bytes("mine", b"1")
            with pytest.raises(PermissionError):
                await sandbox.write_bytes("/etc/mine", b"1")
            assert (await sandbox.exec("whoami", user="root")).text == "root\n"
            elsewhere = await backend.create(SandboxSpec(image=str(place), working_directory="/srv/deep/er"))
            assert (await elsewhere.exec("touch here && pwd")).text == "/srv/deep/er\n"
            described = await engine_call(backend, "GET", f"/containers/{sandbox._container.id}/json")
            image = described["Image"].removeprefix("sha256:")
            await asyncio.gather(*(s.close() for s in (*both, elsewhere)))
            await engine_call(backend, "DELETE", f"/images/{image}", force="1")

    asyncio.run(asyncio.wait_for(main(), 110))


def test_a_build_that_fails_says_why(world: EngineWorld, tmp_path: Path) -> None:
    base = f"docker.io/{IMAGE}"  # in full: Podman knows no short names
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN echo oh no >&2; exit 7\n")

    async def main() -> None:
        async with world.backend() as backend:
            with pytest.raises(NotSupported, match="7"):
                await backend.create(SandboxSpec(image=str(tmp_path)))

    asyncio.run(main())


def test_an_image_without_bash_or_with_nothing_but_busybox(world: EngineWorld) -> None:
    async def body(sandbox: DockerSandbox, _: DockerBackend) -> None:
        assert (await sandbox.exec("echo $0; echo err >&2", merge_output=True)).text == "sh\nerr\n"
        await sandbox.write_bytes("/a/b/new\nline", bytes(range(256)))
        assert await sandbox.read_bytes("/a/b/new\nline", offset=250) == bytes(range(250, 256))
        assert [entry.path for entry in await sandbox.list("/a/b")] == ["/a/b/new\nline"]
        late = await sandbox.exec("(setsid sleep 300 &); sleep 300", timeout=1)
        assert late.timed_out
        assert (await sandbox.exec("ps | grep -c 'sleep 30[0]'")).text == "0\n"
        chunks = [chunk async for chunk in sandbox.download_tar("/a")]

        async def stream():
            for chunk in chunks:
                yield chunk

        await sandbox.upload_tar(stream(), "/copy")
        assert await sandbox.read_bytes("/copy/a/b/new\nline") == bytes(range(256))

    run(world, body, SandboxSpec(image=BUSYBOX))


def test_a_creation_whose_answer_was_lost_is_found_again(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Engine.call
    lost = []

    async def losing(self: Engine, method: str, path: str, **options: object) -> object:
        answer = await real(self, method, path, **options)
        if path == "/containers/create" and not lost:
            lost.append(answer)
            raise EngineError("504 Gateway Timeout", 504)
        return answer

    monkeypatch.setattr(Engine, "call", losing)

    async def body(sandbox: DockerSandbox, backend: DockerBackend) -> None:
        assert sandbox._container.id == lost[0]["Id"]
        assert len(await find_containers(backend._engine, f"{RUN}={RUN_ID}")) == 1
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    run(world, body)


def test_a_cancelled_creation_leaves_nothing(world: EngineWorld) -> None:
    async def main() -> None:
        async with world.backend() as backend:
            for pause in (0.01, 0.05, 0.1, 0.2, 0.3, 0.5):
                creating = asyncio.ensure_future(backend.create(SandboxSpec()))
                await asyncio.sleep(pause)
                creating.cancel()
                await asyncio.gather(creating, return_exceptions=True)
                await asyncio.sleep(0.3)
                left = await find_containers(backend._engine, f"{RUN}={RUN_ID}")
                assert len(left) == (0 if creating.cancelled() else 1)
                if not creating.cancelled():
                    await creating.result().close()

    asyncio.run(asyncio.wait_for(main(), 110))


def test_a_lifetime_ends_a_sandbox(world: EngineWorld) -> None:
    async def body(sandbox: DockerSandbox, _: DockerBackend) -> None:
        await asyncio.sleep(4)
        with pytest.raises(SandboxError, match="lifetime") as caught:
            await sandbox.exec("true")
        assert not isinstance(caught.value, SandboxBroken)

    run(world, body, SandboxSpec(lifetime=2))


def test_sixty_four_at_once(world: EngineWorld) -> None:
    async def main() -> None:
        async with world.backend() as backend:
            sandboxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(64)))
            results = await asyncio.gather(*(s.exec("echo $0 > f; cat f; hostname") for s in sandboxes))
            assert {r.exit_code for r in results} == {0}
            assert len({r.text for r in results}) == 64
            assert len({s.id for s in sandboxes}) == 64
        async with world.backend() as backend:
            assert await find_containers(backend._engine, f"{RUN}={RUN_ID}") == []

    asyncio.run(asyncio.wait_for(main(), 115))


DOOMED = """
import asyncio, sys
from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.docker.backend import DockerBackend

async def main():
    backend = DockerBackend(HermesAgentEnvConfig(docker_image=sys.argv[1]), "doomed")
    sandboxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(6)))
    await asyncio.gather(*(s.spawn(f"setsid sleep {sys.argv[2]} & sleep {sys.argv[2]}") for s in sandboxes))
    print("ready", flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""


def test_what_a_killed_run_left_is_gone_once_the_next_has_started(world: EngineWorld) -> None:
    doomed = subprocess.Popen([sys.executable, "-c", DOOMED, IMAGE, str(SECONDS)], stdout=subprocess.PIPE)
    assert doomed.stdout is not None
    assert doomed.stdout.readline() == b"ready\n"

    async def main() -> None:
        async with world.backend() as backend:
            await backend.check()  # the other run lives: nothing of it is touched
            assert len(await find_containers(backend._engine, f"{RUN}=doomed")) == 6
            doomed.send_signal(signal.SIGKILL)
            doomed.wait()
            mine = await backend.create(SandboxSpec())
            await backend.check()
            assert await find_containers(backend._engine, f"{RUN}=doomed") == []
            assert await mine.alive()
            assert len([c for c in await our_containers(backend._engine) if c["Labels"][RUN] == RUN_ID]) == 1

    try:
        asyncio.run(asyncio.wait_for(main(), 110))
    finally:
        doomed.kill()
        doomed.stdout.close()


def test_a_released_sandbox_says_so(world: EngineWorld) -> None:
    async def body(sandbox: DockerSandbox, _: DockerBackend) -> None:
        process = await sandbox.spawn("sleep 100")
        await sandbox.close()
        assert process.exit_code == 137
        with pytest.raises(SandboxReleased):
            await sandbox.stat("/")

    run(world, body)


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and pass the end on."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_an_engine_behind_tls(world: EngineWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*command.split(), *files], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "ca.pem").write_bytes((tmp_path / "cert.pem").read_bytes())
    real = os.environ["DOCKER_HOST"].removeprefix("unix://")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_unix_connection(real)
        both = forward(reader, engine_writer), forward(engine_reader, writer)
        await asyncio.gather(*both, return_exceptions=True)

    async def main() -> None:
        server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
        monkeypatch.setenv("DOCKER_HOST", f"tcp://localhost:{server.sockets[0].getsockname()[1]}")
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
        async with world.backend() as backend:
            await backend.check()
            sandbox = await backend.create(SandboxSpec())
            data = bytes(range(256)) * 9000
            await sandbox.write_bytes("/a/data", data)
            assert await sandbox.read_bytes("/a/data") == data
            assert (await sandbox.exec("wc -c; exit 3", stdin=data)).text.strip() == str(len(data))
            assert (await sandbox.exec("cat; exit 3", stdin=b"x")).exit_code == 3
            chunks = [chunk async for chunk in sandbox.download_tar("/a")]

            async def stream():
                for chunk in chunks:
                    yield chunk

            await sandbox.upload_tar(stream(), "/copy")
            assert await sandbox.read_bytes("/copy/a/data") == data
            process = await sandbox.spawn("read x; echo got $x; sleep 100")
            await process.write(b"it\n")
            said = b""
            while b"got it" not in said:
                await asyncio.sleep(0.02)
                said += await process.read()
            with pytest.raises(OSError, match="TLS"):
                await process.close_stdin()
            await process.kill()
            assert await process.wait(10) == 137
            assert (await sandbox.exec("sleep 100", timeout=1)).timed_out
        server.close()

    asyncio.run(asyncio.wait_for(main(), 110))
