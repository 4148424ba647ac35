"""What a reward function finds and does in the sandbox that its agent left."""

from __future__ import annotations

from pathlib import Path

from file_environment import process

from environments.agent_loop import AgentResult
from environments.records import Ending
from environments.tool_context import READ_LIMIT, ToolContext


def test_reward_sees_files_processes_and_directory_as_the_agent_left_them(tmp_path: Path) -> None:
    def reward(ctx: ToolContext, result: AgentResult) -> float:
        listed = ctx.terminal("pwd; ls; pgrep -x sleep | wc -l")
        assert listed["exit_code"] == 0, listed
        directory, name, count = listed["output"].split()
        return float(directory.endswith("/work") and name == "a.txt" and int(count) >= 1)

    commands = ["mkdir work && cd work", "echo hi > a.txt", "nohup sleep 300 >/dev/null 2>&1 &"]
    report = process(tmp_path, {"commands": commands, "reward": reward})
    assert [attempt.reward for attempt in report.attempts] == [1.0]
    (attempt,) = report.attempts
    assert attempt.sandbox is not None
    assert attempt.sandbox.backend == "local"
    assert attempt.clock.tools > 0
    assert attempt.ending is Ending.STOPPED


def test_a_shell_function_of_the_agent_does_not_reach_the_reward(tmp_path: Path) -> None:
    commands = ["cat() { echo 42; }; export -f cat; alias cat='echo 42'", "PATH=/tmp/evil:$PATH; export PATH"]

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        return float("42" in ctx.terminal("cat ~/answer.txt")["output"])

    assert process(tmp_path, {"commands": commands, "reward": reward}).attempts[0].reward == 0.0


def test_files_round_trip_through_the_context(tmp_path: Path) -> None:
    source = tmp_path / "tree"
    (source / "deep").mkdir(parents=True)
    blob = bytes(range(256)) * 4096
    (source / "deep" / "blob.bin").write_bytes(blob)

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        assert ctx.upload_dir(source, "~/tree")["success"]
        assert ctx.terminal("sha256sum ~/tree/deep/blob.bin")["exit_code"] == 0
        assert ctx.download_dir("~/tree", tmp_path / "back")["success"]
        assert ctx.download_file("~/tree/deep/blob.bin", tmp_path / "one.bin")["success"]
        assert not ctx.download_file("~/missing", tmp_path / "none")["success"]
        assert ctx.write_file("~/näme.txt", "größe\n")["bytes_written"] == 8
        assert ctx.read_file("~/näme.txt")["content"] == "größe\n"
        assert "error" in ctx.read_file("~/missing.txt")
        assert ctx.search("größe", "~")["total_count"] == 1
        return 1.0

    assert process(tmp_path, {"reward": reward}).attempts[0].reward == 1.0
    found = [path.read_bytes() for path in (tmp_path / "back").rglob("blob.bin")]
    assert found == [blob]
    assert (tmp_path / "one.bin").read_bytes() == blob


def test_small_trees_go_in_and_large_files_do_not_come_out_whole(tmp_path: Path) -> None:
    source = tmp_path / "tree"
    source.mkdir()
    (source / "small").write_text("x")

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        for number in range(10):
            assert ctx.upload_dir(source, f"~/tree{number}")["success"]
        huge = ctx.read_file("~/huge")
        assert huge["content"] == ""
        assert huge["file_size"] == 3 << 30
        assert f"{3 << 30} bytes" in huge["error"]
        assert "download_file" in huge["error"]
        assert str(6 << 30) in ctx.download_file("~/huger", tmp_path / "huger")["error"]
        large = ctx.read_file("~/large")
        assert len(large["content"]) == large["file_size"] == READ_LIMIT
        assert large["total_lines"] == READ_LIMIT // 2
        return 1.0

    commands = [f"truncate -s 3G ~/huge; truncate -s 6G ~/huger; yes | head -c {READ_LIMIT} > ~/large"]
    assert process(tmp_path, {"commands": commands, "reward": reward}).attempts[0].reward == 1.0
    assert not (tmp_path / "huger").exists()
