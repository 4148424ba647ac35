"""The parts that hosted backends share, without any SDK."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import NotSupported, SandboxError
from environments.sandboxes import owner
from environments.sandboxes.daytona.driver import start
from environments.sandboxes.daytona.frames import Frames
from environments.sandboxes.hosted import ownership
from environments.sandboxes.hosted.creation import Creation, TryAgain
from environments.sandboxes.hosted.end_mark import WRAPPER, MarkedStream
from environments.sandboxes.hosted.exits import exit_of
from environments.sandboxes.hosted.images import dockerfile_of
from environments.sandboxes.hosted.input import InputPipe
from environments.sandboxes.hosted.network import sort_hosts
from environments.sandboxes.hosted.survey import place_of, survey

TOKEN = "0123abcd"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


# Output that is likely to look like the beginning of a mark.
output = st.lists(
    st.one_of(st.binary(max_size=6), st.sampled_from([b"\x1e", b"\x1d", b"\x1e0123", b"\x1d0123abc", b"\n"]))
).map(b"".join)
cuts = st.lists(st.integers(0, 10_000), max_size=6)


@given(output, st.integers(0, 255), output, cuts)
def test_a_mark_ends_output_however_it_is_cut(
    before: bytes, code: int, after: bytes, places: list[int]
) -> None:
    seen: list[bytes] = []
    rest = b""
    stream = MarkedStream(TOKEN, seen.append)
    for piece in pieces(before + f"\x1e{TOKEN} {code}\n".encode() + after, places):
        rest += stream.feed(piece)
    assert b"".join(seen) == before
    assert stream.code == code
    assert rest == after


@given(output, cuts)
def test_output_without_a_mark_is_whole(data: bytes, places: list[int]) -> None:
    seen: list[bytes] = []
    stream = MarkedStream(TOKEN, seen.append)
    for piece in pieces(data, places):
        stream.feed(piece)
    stream.flush()
    assert b"".join(seen) == data
    assert stream.code is None


def test_a_program_that_prints_the_token_only_prints_it() -> None:
    seen: list[bytes] = []
    stream = MarkedStream(TOKEN, seen.append)
    data = f"\x1e{TOKEN} no code, but text\n".encode()
    stream.feed(data)
    assert b"".join(seen) == data
    stream.feed(f"\x1e{TOKEN} 3\n".encode())
    assert stream.code == 3


frame_lists = st.lists(st.tuples(output, st.integers(0, 9), output), max_size=5)


@given(frame_lists, output, cuts)
def test_frames_are_found_however_they_are_cut(
    parts: list[tuple[bytes, int, bytes]], end: bytes, places: list[int]
) -> None:
    plain: list[bytes] = []
    frames: dict[int, bytes] = {}
    empty: list[int] = []

    def frame(number: int, data: bytes) -> None:
        frames[number] = frames.get(number, b"") + data
        if not data:
            empty.append(number)

    taker = Frames(TOKEN, plain.append, frame)
    stream = b"".join(
        before + f"\x1d{TOKEN} {number} {len(data)}\n".encode() + data for before, number, data in parts
    )
    for piece in pieces(stream + end + b".", places):
        taker.feed(piece)
    assert b"".join(plain) == b"".join(before for before, _, _ in parts) + end + b"."
    for wanted in {number for _, number, _ in parts}:
        assert frames[wanted] == b"".join(data for _, number, data in parts if number == wanted)
    assert empty == [number for _, number, data in parts if not data]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_wrapper_tells_codes_and_says_nothing_itself(shell: str) -> None:
    def run(program: str) -> tuple[int, bytes, bytes]:
        done = subprocess.run([shell, "-c", WRAPPER, "sh", program, TOKEN, ""], capture_output=True)
        return done.returncode, done.stdout, done.stderr

    assert run("echo out; echo err >&2; exit 3") == (
        3,
        f"out\n\x1e{TOKEN} 3\n".encode(),
        f"err\n\x1e{TOKEN} 3\n".encode(),
    )
    mark = f"\x1e{TOKEN} 139\n".encode()
    assert run("kill -SEGV $$") == (139, mark, mark)


def test_the_survey_on_this_machine() -> None:
    found = subprocess.run(["sh", "-c", survey("7123", "~/some where")], capture_output=True, text=True)
    place = place_of("7123", f"a greeting\n{found.stdout}", {"A": "1"})
    try:
        assert place.working_directory == f"{place.home.rstrip('/')}/some where"
        assert Path(place.scratch).stat().st_mode & 0o777 == 0o700
        assert place.environment == {"HOME": place.home, "A": "1"}
        assert place.revoked.startswith(place.scratch)
    finally:
        Path(place.scratch).rmdir()
        Path(place.working_directory).rmdir()
    with pytest.raises(SandboxError, match="no shell here"):
        place_of("7123", "no shell here", {})


def test_what_is_typed_is_one_short_line_that_is_not_remembered() -> None:
    variables, line = start("a\nlong 'script'", "it's", "/a b")
    assert line.startswith(b" unset HISTFILE; exec ")
    assert line.count(b"\n") == 1
    done = subprocess.run(
        ["sh", "-c", line.decode()], env={**os.environ, **variables, "HERMES_TERMINAL": 'echo "$1|$2"'},
        capture_output=True,
    )  # fmt: skip
    assert done.stdout == b"it's|/a b\n"


def test_exits() -> None:
    assert exit_of(3).code == 3
    assert (exit_of(139).signal, exit_of(139).code) == (11, 139)
    assert (exit_of(255).signal, exit_of(255).code) == (None, 255)


def test_labels_tell_the_dead_from_the_living() -> None:
    mine = ownership.labels_for("a run / with: signs", "sandbox-1", 100)
    assert not ownership.is_abandoned(mine)
    assert all(
        len(value) <= 63 and value.replace("-", "").replace(".", "").isalnum() for value in mine.values()
    )
    child = subprocess.Popen(["sleep", "100"])
    started = owner.started(child.pid)
    other = {**mine, ownership.PROCESS: f"{child.pid}-{started}"}
    assert not ownership.is_abandoned(other)
    child.kill()
    deadline = time.monotonic() + 10
    while not ownership.is_abandoned(other) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ownership.is_abandoned(other)  # a zombie already is
    child.wait()
    assert ownership.is_abandoned(other)
    assert not ownership.is_abandoned({**other, ownership.WORLD: "another machine"})
    assert ownership.is_abandoned({**other, ownership.WORLD: "another machine", ownership.DEADLINE: "1"})
    assert not ownership.is_abandoned({})


def test_images(tmp_path: Path) -> None:
    with pytest.raises(NotSupported):
        dockerfile_of(str(tmp_path))
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    assert dockerfile_of(str(tmp_path)) == tmp_path / "Dockerfile"
    assert dockerfile_of(str(tmp_path / "Dockerfile")) == tmp_path / "Dockerfile"
    assert dockerfile_of("debian:12") is None


def test_hosts_are_sorted() -> None:
    assert sort_hosts(["a.b", "10.1.2.3/8", "[::1]"]) == (["10.0.0.0/8", "::1/128"], ["a.b"])


class Provider:
    """Refuses so often, and counts."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.discarded = 0
        self.at_a_time = self.most = 0

    async def make(self) -> str:
        self.at_a_time += 1
        self.most = max(self.most, self.at_a_time)
        try:
            await asyncio.sleep(0.01)
            answer = self.answers.pop(0) if self.answers else None
            if answer is not None:
                raise answer
            return "made"
        finally:
            self.at_a_time -= 1

    async def discard(self) -> None:
        self.discarded += 1


def test_refusals_are_waited_out_and_lost_answers_discarded() -> None:
    async def main() -> None:
        provider = Provider(TryAgain("full"), TryAgain("lost", lost=True), TryAgain("full", pause=0.01))
        creation = Creation(2, first_pause=0.001)
        assert await creation.run(provider.make, provider.discard) == "made"
        assert provider.discarded == 1
        await asyncio.gather(*(creation.run(provider.make, provider.discard) for _ in range(9)))
        assert provider.most == 2

    asyncio.run(main())


def test_other_failures_are_final_and_discarded() -> None:
    async def main() -> None:
        provider = Provider(NotSupported("no such image"))
        with pytest.raises(NotSupported):
            await Creation(1).run(provider.make, provider.discard)
        assert provider.discarded == 1
        refusing = Provider(*(TryAgain("full") for _ in range(1000)))
        with pytest.raises(SandboxError, match="full \\(tried"):
            await Creation(1, patience=0.05, first_pause=0.01).run(refusing.make, refusing.discard)
        assert refusing.discarded == 0

    asyncio.run(main())


def test_a_cancelled_creation_is_discarded_although_cancelled_again() -> None:
    async def main() -> None:
        provider = Provider()
        running = asyncio.ensure_future(Creation(1).run(provider.make, provider.discard))
        await asyncio.sleep(0.002)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert provider.discarded == 1

    asyncio.run(main())


def test_input_is_joined_while_a_part_is_under_way() -> None:
    async def main() -> None:
        sent: list[bytes] = []
        gate = asyncio.Event()

        async def send(data: bytes) -> None:
            await gate.wait()
            sent.append(data)

        async def end() -> None:
            sent.append(b"end")

        pipe = InputPipe(send, end)
        for number in range(100):
            await pipe.write(b"%03d" % number)
        pipe.close()
        with pytest.raises(BrokenPipeError):
            await pipe.write(b"late")
        gate.set()
        while sent[-1:] != [b"end"]:
            await asyncio.sleep(0.001)
        assert b"".join(sent) == b"".join(b"%03d" % number for number in range(100)) + b"end"
        assert len(sent) < 10

    asyncio.run(main())


def test_input_waits_for_room_and_ends_with_its_program() -> None:
    async def main() -> None:
        async def send(data: bytes) -> None:
            await asyncio.sleep(0.01)
            raise BrokenPipeError(32, "it reads no more")

        async def end() -> None:
            raise AssertionError("nobody is there to be told")

        pipe = InputPipe(send, end)
        with pytest.raises(BrokenPipeError, match="no more"):
            await pipe.write(bytes(20 << 20))
        await pipe.finish()

    asyncio.run(main())
