"""What a command tries against the processes that serve its sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path

from environments.errors import SandboxBroken
from environments.sandboxes.local.sandbox import LocalSandbox

from .conftest import ROOTED, World

STOPPING = "kill -STOP $PPID; echo stopped; sleep 300"


def test_what_serves_the_sandbox_goes_on_when_it_is_stopped(isolated_world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        async with asyncio.timeout(30):
            process = await sandbox.spawn(STOPPING)
            output = b""
            while b"stopped" not in output:
                output += await process.read()
            assert (await sandbox.exec("kill -STOP $PPID; echo more")).text == "more\n"
            await process.kill()

    isolated_world.run(body)


def test_what_serves_the_sandbox_is_stopped_again_and_again(rooted_world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.spawn("while :; do kill -STOP -1; done")
        async with asyncio.timeout(60):
            try:
                await sandbox.write_bytes("large", b"x" * 3_000_000)
            except SandboxBroken:
                pass
            else:
                assert (await sandbox.stat("large")).size == 3_000_000
            await sandbox.kill_all()
            assert (await sandbox.exec("echo on")).text == "on\n"

    rooted_world.run(body)


REACHING_INIT = """
import ctypes, resource, signal
def reach(init):
    call = ctypes.CDLL(None, use_errno=True).syscall
    limits, about = (ctypes.c_ulong * 2)(1, 1), ctypes.create_string_buffer(128)
    ctypes.c_int.from_buffer(about, 0).value, ctypes.c_int.from_buffer(about, 8).value = 19, -1
    number = {"x86_64": 0, "aarch64": 1}[__import__("os").uname().machine]
    for resource_number in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE):
        yield call(ctypes.c_long((302, 261)[number]), init, resource_number, limits, None)
    if SIGNALS:
        yield call(ctypes.c_long((62, 129)[number]), init, 19)
        yield call(ctypes.c_long((62, 129)[number]), -init, 19)
        yield call(ctypes.c_long((200, 130)[number]), init, 19)
        yield call(ctypes.c_long((234, 131)[number]), init, init, 19)
        yield call(ctypes.c_long((129, 138)[number]), init, 19, about)
        yield call(ctypes.c_long((297, 240)[number]), init, init, 19, about)
        yield call(ctypes.c_long(434), init, 0)
print([*reach(INIT)])
resource.prlimit(0, resource.RLIMIT_NOFILE, (50, 50))
"""


def test_the_limits_of_the_first_process(isolated_world: World) -> None:
    """One on its processor time would kill it while no command runs, which counts as nobody's doing."""

    async def body(sandbox: LocalSandbox) -> None:
        own_table = isolated_world.rung in ROOTED
        guardian = sandbox._guard._process.pid
        first = Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()[0]
        program = REACHING_INIT.replace("INIT", "1" if own_table else first)
        program = program.replace("SIGNALS", str(not own_table))
        printed = (await sandbox.exec(["/usr/bin/python3", "-c", program])).text
        assert set(printed.strip("[]\n").split(", ")) == {"-1"}
        await sandbox.write_bytes("file", b"x")
        assert (await sandbox.exec("cat file")).text == "x"

    isolated_world.run(body)
