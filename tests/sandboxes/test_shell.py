"""The shell whose state outlives its processes."""

from __future__ import annotations

import asyncio
import shlex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.sandboxes.local.sandbox import LocalSandbox
from environments.sandboxes.shell import Shell

from .conftest import World


def test_directory_variables_and_functions_persist(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        shell = Shell(sandbox)

        async def run(command: str, **options: str) -> str:
            return (await shell.run(command, timeout=30, **options)).text

        assert shell.cwd == sandbox.working_directory
        await run("mkdir -p 'a b\nc'; cd 'a b\nc'")
        assert shell.cwd == f"{sandbox.working_directory}/a b\nc"
        assert await run("pwd; cd -; cd -") == f"{shell.cwd}\n{sandbox.working_directory}\n{shell.cwd}\n"
        await run(
            'export V="x \'y\'\n\\z"; export -n W; hello() { echo "hello $1"; }; export -f hello; local_=1'
        )
        assert await run('echo "$V"; hello you; bash -c "hello child"; echo $local_') == (
            "x 'y'\n\\z\nhello you\nhello child\n\n"
        )
        assert await run("pwd", cwd="/usr") == "/usr\n"
        assert await run("pwd", cwd="..") == sandbox.working_directory + "\n"
        assert (await shell.run("echo no", timeout=30, cwd="missing")).exit_code == 1
        assert shell.cwd.endswith("/a b\nc")
        await run("unset V; unset -f hello; export PATH=$PATH:/more")
        assert await run("echo [$V] ${PATH##*:}; type hello 2>&1 | tail -1") == (
            "[] /more\nbash: line 1: type: hello: not found\n"
        )

    world.run(body)


def test_whatever_a_command_does_to_its_shell(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        shell = Shell(sandbox)

        async def run(command: str, timeout: float = 30) -> tuple[int, bytes]:
            result = await shell.run(command, timeout=timeout)
            assert result.stderr == b""
            return result.exit_code, result.stdout

        await run("export KEPT=1; cd /tmp" if world.rung != "landlock" else "export KEPT=1; mkdir d; cd d")
        where = shell.cwd
        assert await run("export GONE=1; exit 3") == (3, b"")
        assert await run("echo $GONE") == (0, b"1\n")
        assert await run("export LOST=1; kill -9 $$") == (137, b"")
        assert (await run("export LOST=1; sleep 60", timeout=0.3))[0] == 124
        assert await run("echo [$LOST]") == (0, b"[]\n")
        code, text = await run("echo 'unfinished")
        assert (code, b"unexpected EOF" in text) == (2, True)
        assert (await run("if true; then"))[0] == 2
        assert await run("cat <<'END'\n$x \"y\"\nEND") == (0, b'$x "y"\n')
        assert await run('read line; echo "[$line]"; cat') == (0, b"[]\n")
        assert await run("exec <&- >&- 2>&-; echo unseen") == (1, b"")
        assert await run("trap 'echo bye' EXIT; export TRAPPED=1") == (0, b"bye\n")
        assert await run("set -e; false; echo no") == (1, b"")
        assert await run("set -u; echo $undefined_") != (0, b"")
        assert await run("exec printf replaced") == (0, b"replaced")
        assert await run("printf '\\0\\377'") == (0, b"\0\xff")
        assert (await run("head -c 30000000 /dev/zero"))[0] == 0
        assert await run("(sleep 979 &) ; nohup sleep 979 >/dev/null 2>&1 & echo up") == (0, b"up\n")
        assert await run("f() { return 7; }; f") == (7, b"")
        assert await run("echo a; echo b >&2; echo c") == (0, b"a\nb\nc\n")
        assert await run("false\n\nno_such_command_") == (
            127,
            b"bash: line 3: no_such_command_: command not found\n",
        )
        assert await run(f"echo {'y' * 300_000} | wc -c") == (0, b"300001\n")
        assert await run("echo $KEPT $TRAPPED $-") == (0, b"1 1 hBc\n")
        assert shell.cwd == where

    world.run(body)


def test_a_directory_that_was_deleted(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        shell = Shell(sandbox)
        await shell.run("mkdir gone; cd gone; rmdir ../gone", timeout=30)
        result = await shell.run("pwd", timeout=30)
        note, where = result.text.splitlines()
        assert "no longer exists" in note
        assert where == shell.cwd == sandbox.working_directory

    world.run(body)


def test_without_bash(strongest_world: World) -> None:
    """A shell that learned that there is no bash keeps directory and variables with plain sh."""

    async def body(sandbox: LocalSandbox) -> None:
        real = sandbox.exec

        async def without_bash(command: object, **options: object) -> object:
            if command[0] == "bash":
                command = ["no-bash-here", *command[1:]]
            elif command[:2] == ["sh", "-c"] and "command -v" in command[2]:
                command = ["false"]
            return await real(command, **options)

        sandbox.exec = without_bash
        shell = Shell(sandbox)
        await shell.run("mkdir d; cd d; export A='1 2'", timeout=30)
        result = await shell.run('pwd; echo "$A"; echo err >&2; exit 4', timeout=30)
        assert result.text == f"{sandbox.working_directory}/d\n1 2\nerr\n"
        assert result.exit_code == 4
        assert (await shell.run("kill -9 $$", timeout=30)).exit_code == 137
        assert (await shell.run("rmdir ../d", timeout=30)).exit_code == 0
        assert "no longer exists" in (await shell.run("pwd", timeout=30)).text

    strongest_world.run(body)


def test_a_poisoned_state_does_no_harm(strongest_world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        shell = Shell(sandbox)
        await shell.run("export A=1", timeout=30)
        await shell.run(f"rm -rf {sandbox.scratch}", timeout=30)
        assert (await shell.run("echo x; export B=2", timeout=30)).text == "x\n"
        assert (await shell.run("echo $B", timeout=30)).text == "2\n"
        await sandbox.exec(f"for f in {sandbox.scratch}/shell-*; do echo 'syntax ( error' > $f; done")
        assert (await shell.run("echo y", timeout=30)).text == "y\n"

    strongest_world.run(body)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",))),
        min_size=1,
        max_size=3,
    )
)
def test_any_value_survives(shared: tuple[asyncio.Runner, Shell], values: list[str]) -> None:
    runner, shell = shared

    async def body() -> None:
        await shell.run("; ".join(f"export V{n}={shlex.quote(v)}" for n, v in enumerate(values)), timeout=30)
        for number, value in enumerate(values):
            result = await shell.run(f'printf %s "$V{number}"', timeout=30)
            assert result.stdout == value.encode()

    runner.run(body())


@pytest.fixture(scope="module")
def shared() -> object:
    """One shell for all examples."""
    from environments.config import HermesAgentEnvConfig
    from environments.sandboxes.base import SandboxSpec
    from environments.sandboxes.local.backend import LocalBackend

    with asyncio.Runner() as runner:

        async def make() -> tuple[LocalBackend, Shell]:
            backend = LocalBackend(HermesAgentEnvConfig(), "test")
            return backend, Shell(await backend.create(SandboxSpec()))

        backend, shell = runner.run(make())
        yield runner, shell
        runner.run(backend.close())
