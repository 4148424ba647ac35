"""Creation, release, and what happens when somebody dies."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from environments.config import HermesAgentEnvConfig
from environments.errors import ConfigError, MachineShortage, NotSupported, SandboxError, UnknownName
from environments.sandboxes.base import Backend, Capabilities, Sandbox, SandboxSpec
from environments.sandboxes.local.backend import LocalBackend
from environments.sandboxes.local.run_directory import RunDirectory
from environments.sandboxes.local.sandbox import LocalSandbox
from environments.sandboxes.registry import create_backend

from .conftest import RUN_ID, World
from .counting import count, new_duration

FRAMEWORK = """
import asyncio, sys
from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.local.backend import LocalBackend

async def main():
    backend = LocalBackend(HermesAgentEnvConfig(local_isolation=sys.argv[1]), "victim" + sys.argv[2])
    one, two = await asyncio.gather(backend.create(SandboxSpec()), backend.create(SandboxSpec()))
    sleep = f"sleep {sys.argv[3]}"
    await one.exec(f"{sleep} & setsid {sleep} & (setsid nohup {sleep} >/dev/null 2>&1 &)")
    await one.exec("mkdir -p locked/deep; touch locked/deep/f; chmod 0 locked/deep locked")
    await two.spawn(f"trap '' TERM HUP INT; while true; do {sleep}; done")
    print("ready", flush=True)
    await two.exec(sleep)

asyncio.run(main())
"""


def base() -> Path:
    return Path(tempfile.gettempdir()) / f"hermes-environments-{os.geteuid()}"


def run_directories() -> set[str]:
    """Those of this test process; others may run at the same time."""
    return {path.name for path in base().iterdir() if RUN_ID in path.name} if base().exists() else set()


def content(place: str) -> set[str]:
    """Names in a directory, which another run that starts just now may have removed."""
    try:
        return {path.name for path in Path(place).iterdir()}
    except FileNotFoundError:
        return set()


def control_groups_work() -> bool:
    return os.geteuid() == 0 and os.access("/sys/fs/cgroup/pids/cgroup.procs", os.W_OK)


def control_groups(name: str) -> list[Path]:
    """Groups by a pattern of their name; they may lie deep, below the group that runs the tests."""
    return [
        Path(place, group)
        for place, below, _ in os.walk("/sys/fs/cgroup")  # which passes over what goes meanwhile
        for group in fnmatch.filter(below, name)
    ]


def wait_until(condition: object, patience: float = 30.0) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_a_killed_framework_leaves_no_process_and_no_directory(world: World) -> None:
    seconds = new_duration()
    framework = subprocess.Popen(
        [sys.executable, "-c", FRAMEWORK, world.rung, RUN_ID, str(seconds)],
        stdout=subprocess.PIPE,
        env=dict(os.environ),
        text=True,
    )
    assert framework.stdout is not None
    assert framework.stdout.readline() == "ready\n"
    mine = {name for name in run_directories() if name.startswith(f"victim{RUN_ID}-")}
    assert mine
    framework.send_signal(signal.SIGKILL)
    framework.wait()
    framework.stdout.close()

    assert wait_until(lambda: count(seconds) == 0)
    places = [str(base() / name) for name in mine]
    assert wait_until(lambda: all(content(place) <= {"lock"} for place in places))

    async def next_start() -> None:
        async with world.backend() as backend:
            await backend.check()

    asyncio.run(next_start())
    assert not mine & run_directories()
    assert not [name for name in run_directories() if f"victim{RUN_ID}" in name]
    assert not control_groups(f"hermes-victim{RUN_ID}*")


def test_control_groups_that_cannot_go_yet_go_with_the_next_start(strongest_world: World) -> None:
    """As those of processes that the kernel does not let die: here a group below holds them."""
    if not control_groups_work():
        pytest.skip("needs to be root, and control groups of version 1")

    async def one_run() -> None:
        async with strongest_world.sandbox() as sandbox:
            for group in control_groups(str(sandbox._guard._settings["name"])):
                (group / "stays").mkdir()

    asyncio.run(one_run())
    stuck = [group / "stays" for group in control_groups(f"hermes-*{RUN_ID}*") if (group / "stays").exists()]
    assert stuck
    assert run_directories()
    for group in stuck:
        group.rmdir()

    async def next_start() -> None:
        async with strongest_world.backend() as backend:
            await backend.check()

    asyncio.run(next_start())
    assert not run_directories()
    assert not control_groups(f"hermes-*{RUN_ID}*")


def test_a_living_run_is_left_alone(strongest_world: World) -> None:
    async def main() -> None:
        async with strongest_world.sandbox() as sandbox:
            await sandbox.write_bytes("file", b"1")
            async with strongest_world.backend() as other:
                await other.check()
            assert await sandbox.read_bytes("file") == b"1"

    asyncio.run(main())


def test_close_leaves_nothing(world: World) -> None:
    async def main() -> None:
        before = run_directories()
        async with world.backend() as backend:
            first = await backend.create(SandboxSpec())
            await backend.create(SandboxSpec())
            await first.exec(
                "mkdir -p a/b/c; touch a/b/c/f; chmod 000 a/b/c a; ln -s / root;"
                " /usr/bin/python3 -c 'import os\n"
                'for i in range(300): os.mkdir("d" * 99); os.chdir("d" * 99)\''
            )
            inside = {path.name for path in base().glob(f"{RUN_ID}-*/*")}
            await first.close()
            assert {path.name for path in base().glob(f"{RUN_ID}-*/*")} < inside
        assert run_directories() <= before

    asyncio.run(main())


def test_thirty_two_at_once(world: World) -> None:
    async def main() -> None:
        async with world.backend() as backend:
            sandboxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(32)))
            assert len({sandbox.id for sandbox in sandboxes}) == 32
            await asyncio.gather(*(s.exec(f"echo {n} > ~/number") for n, s in enumerate(sandboxes)))
            read = await asyncio.gather(*(s.read_bytes("~/number") for s in sandboxes))
            assert read == [b"%d\n" % n for n in range(32)]

    asyncio.run(main())


def test_cancelled_creation_leaves_nothing(strongest_world: World) -> None:
    async def main() -> None:
        async with strongest_world.backend() as backend:
            await backend.check()
            for delay in (0, 0.005, 0.02, 0.05, 0.1):
                creating = asyncio.ensure_future(backend.create(SandboxSpec()))
                await asyncio.sleep(delay)
                creating.cancel()
                try:
                    await (await creating).close()
                except asyncio.CancelledError:
                    continue
            place = [p for p in base().glob(f"{RUN_ID}-*") if p.is_dir()]
            assert place
            assert await asyncio.to_thread(
                wait_until, lambda: all({f.name for f in p.iterdir()} <= {"lock"} for p in place)
            )

    asyncio.run(main())


def test_creation_is_bounded(strongest_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    building, most = 0, 0
    real = LocalBackend._build

    async def counted(self: LocalBackend, rung: str, spec: SandboxSpec) -> Sandbox:
        nonlocal building, most
        building += 1
        most = max(most, building)
        try:
            return await real(self, rung, spec)
        finally:
            building -= 1

    monkeypatch.setattr(LocalBackend, "_build", counted)

    async def main() -> None:
        async with strongest_world.backend(sandbox_creation_concurrency=2) as backend:
            await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(6)))

    asyncio.run(main())
    assert most == 2


def test_a_failed_creation_says_why_and_leaves_nothing(world: World) -> None:
    async def main() -> None:
        async with world.backend() as backend:
            await backend.check()
            with pytest.raises(SandboxError):
                await backend.create(SandboxSpec(working_directory="/proc/nowhere/x"))
            assert not [p for p in base().glob(f"{RUN_ID}-*/*") if p.name != "lock"]

    asyncio.run(main())


def test_the_death_of_the_guardian_is_our_failure_not_the_agents(world: World) -> None:
    from environments.errors import SandboxBroken

    async def main() -> None:
        async with world.sandbox() as sandbox:
            process = sandbox._guard._process
            assert process is not None
            seconds = new_duration()
            await sandbox.exec(f"(setsid sleep {seconds} &)")
            pending = asyncio.ensure_future(sandbox.exec(f"sleep {seconds}"))
            await asyncio.sleep(0.3)
            process.kill()
            with pytest.raises(SandboxError) as caught:
                await pending
            assert not isinstance(caught.value, SandboxBroken)
            detached_survive = world.rung in ("landlock", "none") and not control_groups_work()
        if not detached_survive:
            assert await asyncio.to_thread(wait_until, lambda: count(seconds) == 0)
        assert not control_groups(f"hermes-{RUN_ID}*")

    asyncio.run(main())


@pytest.mark.parametrize("before", [(), ("true",), ("true", "(sleep 60 &)")])
def test_what_is_sent_to_a_dead_sandbox_has_not_broken_it(rooted_world: World, before: tuple[str]) -> None:
    """Its first process was killed from outside, and nobody has told us yet."""
    from environments.errors import SandboxBroken

    async def main() -> None:
        async with rooted_world.backend() as backend:
            for kind in ("command", "process", "file"):
                sandbox = await backend.create(SandboxSpec())
                for command in before:
                    await sandbox.exec(command)
                await rooted_world.destroy(backend, sandbox)
                with pytest.raises(SandboxError) as caught:
                    if kind == "command":
                        await sandbox.exec("true")
                    elif kind == "process":
                        await (await sandbox.spawn("true")).wait(30)
                    else:
                        await sandbox.read_bytes("file")
                assert not isinstance(caught.value, SandboxBroken), kind

    asyncio.run(main())


def test_forcing_an_isolation_that_does_not_work_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.sandboxes.local.rungs.find_bubblewrap", lambda: None)

    async def main() -> None:
        backend = LocalBackend(HermesAgentEnvConfig(local_isolation="bubblewrap"), "test")
        with pytest.raises(NotSupported, match="bubblewrap"):
            await backend.check()
        await backend.close()

    asyncio.run(main())


def test_the_strongest_is_taken_and_reported(strongest_world: World) -> None:
    async def main() -> None:
        backend = LocalBackend(HermesAgentEnvConfig(), "test")
        await backend.check()
        assert backend.isolation == strongest_world.rung
        sandbox = await backend.create(SandboxSpec())
        assert (sandbox.info.backend, sandbox.info.isolation) == ("local", strongest_world.rung)
        await backend.close()
        with pytest.raises(SandboxError):
            await backend.create(SandboxSpec())

    asyncio.run(main())


def test_an_unsafe_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"hermes-environments-{os.geteuid()}"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(SandboxError, match="only this user"):
        RunDirectory("x")
    place.rmdir()
    place.symlink_to("/")
    with pytest.raises(SandboxError, match="only this user"):
        RunDirectory("x")


class OtherBackend(Backend):
    """A backend of a user's own."""

    name = "other"
    capabilities = Capabilities()

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        self.run_id = run_id

    async def create(self, spec: SandboxSpec) -> Sandbox:
        raise NotImplementedError


def test_backends_by_name() -> None:
    config = HermesAgentEnvConfig()

    async def main() -> None:
        assert isinstance(create_backend("local", config, "r"), LocalBackend)
        made = create_backend(f"{__name__}:OtherBackend", config, "r")
        assert isinstance(made, OtherBackend)
        assert made.run_id == "r"
        with pytest.raises(UnknownName, match="did you mean local"):
            create_backend("locl", config, "r")
        for path in ("no_such_module:X", f"{__name__}:Nothing", "json:loads", ":x"):
            with pytest.raises(ConfigError):
                create_backend(path, config, "r")

    asyncio.run(main())


def test_signals_that_the_framework_ignores_are_heeded_inside(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            killed = await sandbox.exec(["/bin/sh", "-c", f"kill -{int(number)} $$; echo still here"])
            assert (killed.killed_by, killed.stdout) == (number, b""), number

    before = [(n, signal.signal(n, signal.SIG_IGN)) for n in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)]
    try:
        world.run(body)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def test_too_few_descriptors_of_the_framework_are_not_the_agents_doing(strongest_world: World) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def attempt(backend: LocalBackend, sandbox: LocalSandbox, descriptors: int) -> list[object]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
        try:
            outcomes: list[object] = []
            for trial in (
                sandbox.exec(f"echo on #{'x' * 60_000}"),
                sandbox.exec("cat", stdin=b"on\n"),
                sandbox.write_bytes("file", b"x" * 100_000),
                sandbox.spawn("true"),
                backend.create(SandboxSpec()),
            ):
                outcomes += await asyncio.gather(trial, return_exceptions=True)
            return outcomes
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def main() -> None:
        async with strongest_world.backend() as backend, asyncio.timeout(100):
            sandbox = await backend.create(SandboxSpec())
            await sandbox.exec("true")
            os.close(lowest := os.dup(0))
            seen = []
            for descriptors in range(lowest, lowest + 6):
                seen += await attempt(backend, sandbox, descriptors)
            errors = [outcome for outcome in seen if isinstance(outcome, BaseException)]
            assert errors
            assert {type(error) for error in errors} == {MachineShortage}
            assert (await sandbox.exec("echo on")).text == "on\n"

    asyncio.run(main())
