"""What a run over task directories costs beside the work itself: ours, and Harbor's in the same run.

    python perf/harbor_runs.py [--harbor PYTHON] [--attempts 89,1780] [--policy nop|oracle] [--concurrency 8]

The tasks are trivial and the policy is instant, so that what is measured is the machinery: sandbox, uploads,
tests, records. Each side runs in this machine's own sandboxes (Harbor's by ``harbor_bubblewrap.py``, which
needs ``bwrap``), then the finished run is started again. PYTHON is a Python 3.12 with Harbor. CPU is that of
the whole process tree.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TASKS = 89
FILES = {
    "task.toml": 'schema_version = "1.0"\n[agent]\ntimeout_sec = 120\n[verifier]\ntimeout_sec = 120\n'
    '[environment]\nnetwork_mode = "no-network"\n',
    "instruction.md": "Nothing is to be done.\n",
    "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/bash\ntrue\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\n",
}
_SUBREAPER = 36
"""``prctl`` option: orphans of the process tree come to us, and with them the time they used."""


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds by the clock, and of CPU."""

    wall: float
    cpu: float


def main() -> None:
    """Measure all, print a table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--harbor", metavar="PYTHON", help="Python in whose environment Harbor is installed")
    parser.add_argument("--attempts", default="89,1780")
    parser.add_argument("--policy", choices=("nop", "oracle"), default="nop")
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    print(
        f"{'attempts':>8}  {'':<7}{'wall s':>9}{'CPU s':>9}{'CPU ms/attempt':>16}{'resume s':>10}{'CPU s':>7}"
    )
    for attempts in map(int, options.attempts.split(",")):
        with tempfile.TemporaryDirectory(prefix="harbor-runs-") as scratch:
            measure(Path(scratch), attempts, options)


def measure(scratch: Path, attempts: int, options: argparse.Namespace) -> None:
    """One size: both sides one after the other."""
    count = min(TASKS, attempts)
    for number in range(count):
        for name, text in FILES.items():
            path = scratch / "tasks" / f"task-{number:03d}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    each, rest = divmod(attempts, count)
    if rest:
        sys.exit(f"{attempts} attempts are no multiple of {count} tasks")
    ours = (
        run(own_command(scratch, each, options), scratch),
        run(own_command(scratch, each, options), scratch),
    )
    found = json.loads((scratch / "ours" / "metrics.json").read_text())["results"]["all"]
    if found.get("eval/pass_rate") != 1.0:
        sys.exit(f"our run failed: {found}")
    row("ours", attempts, *ours)
    if options.harbor is None:
        return
    start, resume = harbor_commands(scratch, each, options)
    theirs = (run(start, scratch), run(resume, scratch))
    check_harbor(scratch / "jobs" / "run", attempts)
    row("Harbor", attempts, *theirs)
    ratios = [theirs[0].wall / ours[0].wall, theirs[0].cpu / ours[0].cpu]
    ratios += [theirs[1].wall / ours[1].wall, theirs[1].cpu / ours[1].cpu]
    print(f"{attempts:>8}  Harbor / ours: wall {ratios[0]:.2f}, CPU {ratios[1]:.2f}, ", end="")
    print(f"resume {ratios[2]:.2f}, CPU of resume {ratios[3]:.2f}", flush=True)


def own_command(scratch: Path, each: int, options: argparse.Namespace) -> list[str]:
    """``hermes-env harbor_task evaluate``; the same again resumes."""
    settings = {
        "dataset_name": str(scratch / "tasks"),
        "data_dir_to_save_evals": str(scratch / "ours"),
        "terminal_backend": "local",
        "task_images": "replay",
        "attempts": str(each),
        "eval_concurrency": str(options.concurrency),
        "max_concurrent_tasks": str(options.concurrency),
        "use_wandb": "false",
    }
    flags = [word for name, value in settings.items() for word in (f"--env.{name}", value)]
    command = [sys.executable, "-m", "environments.command_line", "harbor_task", "evaluate"]
    return [*command, *flags, "--openai.server_type", options.policy]


def harbor_commands(scratch: Path, each: int, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """``harbor run`` and ``harbor job resume``."""
    program = str(Path(options.harbor).absolute().parent / "harbor")
    start = [program, "run", "--path", str(scratch / "tasks"), "--agent", options.policy]
    start += ["--env", "harbor_bubblewrap:BubblewrapEnvironment", "--n-concurrent", str(options.concurrency)]
    start += ["--n-attempts", str(each), "--jobs-dir", str(scratch / "jobs"), "--job-name", "run"]
    return [*start, "--quiet", "--yes"], [
        program,
        "job",
        "resume",
        "--job-path",
        str(scratch / "jobs" / "run"),
    ]


def run(command: list[str], scratch: Path) -> Cost:
    """Run a program to its end; everything it started is waited for."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'perf'}", "HARBOR_TELEMETRY": "0"}
    before, began = used(), time.monotonic()
    with (scratch / "output.txt").open("w+b") as output:
        process = subprocess.run(
            command, cwd=scratch, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
        wall = time.monotonic() - began
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{output.read().decode(errors='replace')[-3000:]}")
    wait_for_orphans()
    return Cost(wall, used() - before)


def wait_for_orphans() -> None:
    """Take the time of processes that outlived their parents into account."""
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def used() -> float:
    """CPU seconds of all ended processes below this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_harbor(job: Path, attempts: int) -> None:
    """See that Harbor did all of it, and with success."""
    results = [path for path in job.glob("*/result.json") if path.parent != job]
    rewards = [json.loads(path.read_text()).get("verifier_result") or {} for path in results]
    passed = sum((found.get("rewards") or {}).get("reward") == 1.0 for found in rewards)
    if passed != attempts:
        sys.exit(f"Harbor passed {passed} of {attempts} trials ({len(results)} results in {job})")


def row(name: str, attempts: int, first: Cost, again: Cost) -> None:
    """One line of the table."""
    each = 1000 * first.cpu / attempts
    numbers = f"{first.wall:>9.1f}{first.cpu:>9.1f}{each:>16.1f}{again.wall:>10.1f}{again.cpu:>7.1f}"
    print(f"{attempts:>8}  {name:<7}{numbers}", flush=True)


if __name__ == "__main__":
    main()
