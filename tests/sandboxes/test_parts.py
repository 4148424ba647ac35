"""Small parts on their own: messages, output, control groups, removal, process trees."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.sandboxes.local.inside import cgroups, identity, processes, seccomp, wire
from environments.sandboxes.local.inside.directories import remove_tree
from environments.sandboxes.local.inside.output import CappedOutput


@given(st.lists(st.binary(max_size=200)), st.integers(0, 300))
def test_output_keeps_head_and_tail(pieces: list[bytes], limit: int) -> None:
    output = CappedOutput(limit)
    for piece in pieces:
        output.add(piece)
    whole = b"".join(pieces)
    head = limit * 2 // 5
    expected = whole if len(whole) <= limit else whole[:head] + whole[len(whole) - (limit - head) :]
    assert output.value() == expected
    assert output.total == len(whole)
    assert output.take() == expected
    assert output.value() == b""


@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.text()),
    st.binary(max_size=500) | st.just(b"x" * 200_000),
)
def test_messages_arrive_as_sent(header: dict[str, object], body: bytes) -> None:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two, Path("/dev/null").open() as file:
        wire.send(one, header, body, (file.fileno(),))
        message = wire.receive(two)
        assert message is not None
        assert (message.header, message.body) == (header, body)
        assert len(message.descriptors) == 1
        assert not os.get_inheritable(message.descriptors[0])
        wire.close_all(message.descriptors)
        one.close()
        assert wire.receive(two) is None


@given(st.binary(min_size=1, max_size=100))
def test_nonsense_is_a_protocol_error(data: bytes) -> None:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two:
        one.send(data)
        with contextlib.suppress(wire.ProtocolError):
            assert isinstance(wire.receive(two), wire.Message)


def test_a_long_message_must_be_a_regular_file_of_bounded_size() -> None:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read, write = os.pipe()
    huge = os.memfd_create("huge")
    os.ftruncate(huge, wire.LONGEST + 1)
    with one, two:
        for descriptor in (read, huge):
            socket.send_fds(one, [b"@"], [descriptor])
            with pytest.raises(wire.ProtocolError):
                wire.receive(two)
        one.send(b"@")
        with pytest.raises(wire.ProtocolError):
            wire.receive(two)
    for descriptor in (read, write, huge):
        os.close(descriptor)


def make_group(path: Path, controllers: str = "") -> None:
    path.mkdir(parents=True)
    (path / "cgroup.procs").touch()
    (path / "cgroup.subtree_control").write_text(controllers)


def test_control_groups_of_version_2_are_made_where_controllers_are_handed_down(tmp_path: Path) -> None:
    make_group(tmp_path / "fs", "cpu memory pids")
    make_group(tmp_path / "fs" / "slice", "memory pids")
    make_group(tmp_path / "fs" / "slice" / "scope")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 20 0:26 / {tmp_path}/fs rw,nosuid shared:4 - cgroup2 cgroup2 rw\n")
    own = tmp_path / "own"
    own.write_text("0::/slice/scope\n")
    groups = cgroups.create("hermes-x", cgroups.Limits(1 << 28, 100, 1.5), mounts=str(mounts), own=str(own))
    made = tmp_path / "fs" / "slice" / "hermes-x"
    assert groups.directories == [str(made)]
    assert groups.bounds == {"memory", "pids"}
    assert (made / "memory.max").read_text() == str(1 << 28)
    assert (made / "pids.max").read_text() == "100"
    groups.add(4711)
    assert (made / "cgroup.procs").read_text() == "4711"


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    for name in ("memory", "pids", "cpu,cpuacct"):
        (tmp_path / name / "own").mkdir(parents=True)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "".join(
            f"30 20 0:26 / {tmp_path}/{name} rw - cgroup cgroup rw,{name}\n"
            for name in ("memory", "pids", "cpu,cpuacct")
        )
    )
    own = tmp_path / "own"
    own.write_text("3:memory:/own\n2:pids:/own\n1:cpu,cpuacct:/own\n")
    groups = cgroups.create("x", cgroups.Limits(1 << 28, 100, 0.5), mounts=str(mounts), own=str(own))
    assert groups.bounds == {"memory", "pids", "cpu"}
    assert (tmp_path / "cpu,cpuacct/own/x/cpu.cfs_quota_us").read_text() == "50000"
    assert (tmp_path / "memory/own/x/memory.limit_in_bytes").read_text() == str(1 << 28)


def test_a_tree_is_removed_however_deep_and_locked(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept")
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(".", os.O_RDONLY)
    os.chdir(top)
    for _ in range(2500):
        os.mkdir("d")  # noqa: PTH102 - relative to where we stand, as the path would be too long
        os.chdir("d")
    os.fchdir(here)
    os.close(here)
    (top / "locked").mkdir()
    (top / "locked" / "file").touch()
    (top / "locked").chmod(0)
    (top / "link").symlink_to(tmp_path)
    os.mkfifo(top / "pipe")
    remove_tree(str(top))
    assert [p.name for p in tmp_path.iterdir()] == ["outside"]
    remove_tree(str(top))


def test_a_process_tree_is_found_and_killed() -> None:
    script = "sleep 976 & (sleep 976 & sleep 976 & wait) & wait"
    with subprocess.Popen(["bash", "-c", script]) as parent:
        while len(processes.descendants(parent.pid)) < 4:
            time.sleep(0.01)
        by_scan = processes._children_by_parent(parent.pid)
        assert sorted(by_scan) == sorted(processes.children(parent.pid))
        assert processes.name(parent.pid) == "bash"
        assert processes.private_memory(parent.pid) > 0
        assert processes.proportional_memory(parent.pid) > 0
        assert processes.kill_below(parent.pid) == 0
        parent.send_signal(signal.SIGKILL)
    assert processes.state(parent.pid) == "X"
    assert processes.children(parent.pid) == []
    processes.send_signal(parent.pid, signal.SIGKILL)


def test_user_ids_are_reserved_for_the_living(tmp_path: Path) -> None:
    """Two processes never get the same id, and a dead one's is free again."""
    path = str(tmp_path / "ids")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from inside.identity import reserve;"
        "print(reserve(sys.argv[2], range(7, 9)), flush=True); sys.stdin.read()"
    )
    place = str(Path(identity.__file__).parent.parent)
    held = [
        subprocess.Popen(
            [os.sys.executable, "-c", code, place, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert sorted(int(p.stdout.readline()) for p in held) == [7, 8]
    with pytest.raises(OSError, match="taken"):
        identity.reserve(path, range(7, 9))
    for process in held:
        process.communicate()
    assert identity.reserve(path, range(7, 9)) in (7, 8)


def test_the_filter_is_a_program_whose_jumps_stay_inside() -> None:
    import struct

    for machine in ("x86_64", "aarch64"):
        for families in (None, frozenset(), seccomp.UNIX_SOCKET, seccomp.INTERNET_SOCKET):
            for from_signals in (False, True):
                program = seccomp._program(machine, families, 5, from_signals)
                steps = [struct.unpack("HBBI", step) for step in program]
                for index, (code, if_true, if_false, _) in enumerate(steps):
                    assert index + max(if_true, if_false) + 1 < len(steps) or code == 6
                assert steps[-1][0] == 6


def test_processes_that_some_looks_miss_are_killed_and_awaited() -> None:
    """As while parents die: a look may show only some of them, or none."""
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    pids = [child.pid for child in children]
    looks = iter([pids[:1], [], pids[1:2], [], [], pids[2:3], pids[2:], [], []])
    try:
        assert processes.kill_found(lambda: next(looks, []), patience=20.0) == 0
        assert [processes.state(pid) for pid in pids] == ["Z"] * 4, "each was found once at least"
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_backend_is_closed_where_asking_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from environments.config import HermesAgentEnvConfig
    from environments.sandboxes import reach

    class Slow:
        closed = False

        async def survey(self) -> None:
            await asyncio.sleep(1000)

        async def close(self) -> None:
            self.closed = True

    slow = Slow()
    monkeypatch.setattr(reach, "create_backend", lambda *_: slow)

    async def main() -> None:
        asking = asyncio.ensure_future(reach.reach(["local"], HermesAgentEnvConfig()))
        await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(main())
    assert slow.closed
