"""Passing our own input on to a shell in a sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

_WAKES_TOO_OFTEN = """
import asyncio
from environments.sandboxes import terminal

class Process:
    received = b""

    async def write(self, data):
        self.received += data

    async def close_stdin(self):
        self.received += b"<end>"

async def main():
    loop = asyncio.get_running_loop()
    add_reader = loop.add_reader

    def add(descriptor, callback):
        def called():
            callback()
            loop.call_later(0.02, callback)  # as a loop does that looked before the input was read

        add_reader(descriptor, called)

    loop.add_reader = add
    process = Process()
    feeding = asyncio.ensure_future(terminal._feed(process))
    print("ready", flush=True)
    for _ in range(200):
        await asyncio.sleep(0.005)
        if process.received:
            break
    await asyncio.sleep(0.2)
    print("alive", flush=True)
    await asyncio.wait_for(feeding, 20)
    print(process.received.decode(), flush=True)

asyncio.run(main())
"""


def test_a_shell_is_not_held_up_until_the_next_key() -> None:
    shell = subprocess.Popen(
        [sys.executable, "-c", _WAKES_TOO_OFTEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    giving_up = threading.Timer(60, shell.kill)
    giving_up.start()
    assert shell.stdin is not None and shell.stdout is not None
    assert shell.stdout.readline() == b"ready\n"
    shell.stdin.write(b"one")
    shell.stdin.flush()
    assert shell.stdout.readline() == b"alive\n"  # although no more input comes
    shell.stdin.write(b"two")
    shell.stdin.close()
    assert shell.stdout.readline() == b"onetwo<end>\n"
    assert shell.wait(20) == 0
    giving_up.cancel()


_READS_LATE = """
import os, sys
from environments.sandboxes import terminal

print("ready", flush=True)
os.read(int(sys.argv[1]), 1)
with terminal._raw_terminal():
    print("got " + repr(os.read(0, 100)), flush=True)
"""


def test_what_was_typed_before_the_shell_is_there_is_not_lost() -> None:
    go, given = os.pipe()
    ours, theirs = os.openpty()
    shell = subprocess.Popen(
        [sys.executable, "-c", _READS_LATE, str(go)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        pass_fds=(go,),
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    giving_up = threading.Timer(60, shell.kill)
    giving_up.start()
    assert shell.stdout is not None
    assert shell.stdout.readline() == b"ready\n"
    os.write(ours, b"early\n")
    os.write(given, b"x")
    assert shell.stdout.readline().startswith(b"got b'early")
    assert shell.wait(20) == 0
    giving_up.cancel()
    for descriptor in (go, given, ours, theirs):
        os.close(descriptor)
