"""Forged rewards against ``verify``: which score 0, which do not.

    python perf/forgeries.py DIRECTORY PAYLOAD --backend docker --image IMAGE [--fetched] [--only 01,L1]

DIRECTORY has ``forge/*.sh`` (an agent that cheats), ``legit/*.sh`` (one that does the work) and
``tasks/NAME/tests``; PAYLOAD is a directory that is put at /opt/evil first. Prints a line for each, and
how many forgeries got nothing and how many honest solutions the full reward.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from environments.config import HermesAgentEnvConfig
from environments.errors import HermesError, SandboxBroken, VerifierError
from environments.sandboxes.base import Backend, Resources, SandboxSpec
from environments.sandboxes.registry import create_backend
from environments.sandboxes.transfer import upload_dir
from environments.tasks.directory import load_task
from environments.tasks.model import Task
from environments.verification import verify

TASK_OF = {"40": "prog", "41": "prog", "42": "prog", "43": "prog", "45": "repo", "47": "prog", "50": "prog"}
TASK_OF |= {"51": "direct", "L11": "gitweb", "L1": "svc", "L2": "pkg", "L3": "tool", "L4": "etc", "L5": "upg"}
TASK_OF |= {"L7": "repo", "L8": "prog"}
AGENT_TIMEOUT = 60.0
SETTINGS = '[verifier]\ntimeout_sec = 60\n[environment]\nnetwork_mode = "no-network"\n'


async def main() -> None:
    """Run every case in a sandbox of its own, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("payload", type=Path)
    parser.add_argument("--backend", default="docker")
    parser.add_argument("--image")
    parser.add_argument("--only", default="")
    parser.add_argument("--fetched", action="store_true", help="let all tests fetch pytest by uvx")
    options = parser.parse_args()
    config = HermesAgentEnvConfig(docker_image=options.image, singularity_image=options.image)
    backend = create_backend(options.backend, config, "forgeries")
    await backend.check()
    rewards: dict[str, list[float | None]] = {"forge": [], "legit": []}
    try:
        for script in [
            *sorted(options.directory.glob("forge/*.sh")),
            *sorted(options.directory.glob("legit/*.sh")),
        ]:
            number = script.name.partition("_")[0]
            if options.only and number not in options.only.split(","):
                continue
            tests = options.directory / "tasks" / TASK_OF.get(number, "answer") / "tests"
            task = make_task(tests, fetched=options.fetched)
            started = time.time()
            reward, words = await one(backend, script, task, options.payload)
            rewards[script.parent.name].append(reward)
            shown = "-" if reward is None else f"{reward:g}"
            print(f"{script.stem:<32} {time.time() - started:6.1f} s  {shown}  {words}", flush=True)
    finally:
        await backend.close()
    forged, honest = rewards["forge"], rewards["legit"]
    print(f"{forged.count(0.0)} of {len(forged)} forgeries score 0, ", end="")
    print(f"{honest.count(1.0)} of {len(honest)} honest solutions 1; - is no grade")


def make_task(tests: Path, *, fetched: bool) -> Task:
    """A task with these tests; ``fetched`` has them fetch pytest, as most of the field's do."""
    directory = Path(tempfile.mkdtemp(prefix="forgery-"))
    (directory / "task.toml").write_text(SETTINGS)
    shutil.copytree(tests, directory / "tests")
    script = directory / "tests" / "test.sh"
    if fetched:
        script.write_text(script.read_text().replace("python3 -m pytest", "uvx -w pytest==8.4.1 pytest"))
    return load_task(directory)


async def one(backend: Backend, script: Path, task: Task, payload: Path) -> tuple[float | None, str]:
    """The reward for what one agent did (None: no grade, and nobody blamed), and words on it."""

    async def untouched() -> bool:
        return True  # whoever does nothing gets a verdict from each of these tests

    sandbox = await backend.create(SandboxSpec(resources=Resources(processes=300)))
    try:
        await sandbox.exec("mkdir -p /app /opt/evil", timeout=60)
        await upload_dir(sandbox, payload, "/opt/evil")
        try:
            await sandbox.exec(script.read_text(), cwd="/app", timeout=AGENT_TIMEOUT)
            verdict = await verify(task, sandbox, untouched=untouched)
        except VerifierError as error:
            return None, f"verifier_error: {error}"
        except SandboxBroken as error:
            return 0.0, f"as it broke the sandbox: {error}"
        except HermesError as error:
            return None, f"{type(error).__name__}: {error}"
        flags = [name for name in ("tampered", "contested") if getattr(verdict, name)]
        kept = [f"kept {len(verdict.kept)}"] if verdict.kept else []
        lines = str(verdict.error or verdict.evidence.get("output", "")).strip().splitlines()
        return verdict.reward, " ".join([*kept, *flags, lines[-1][:100] if lines else ""])
    finally:
        await sandbox.close()


if __name__ == "__main__":
    asyncio.run(main())
