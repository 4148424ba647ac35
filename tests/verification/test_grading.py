"""``verify`` on real local sandboxes: honest work scores, forgeries do not, and nobody's zero is made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks.making import make_task

from environments.errors import VerifierError
from environments.records import Trust, Verdict
from environments.sandboxes.base import Sandbox
from environments.tasks.directory import load_task
from environments.tasks.model import Task
from environments.verification import verify
from verification.machines import fresh, in_sandbox

QUIET = '[environment]\nnetwork_mode = "no-network"\n'
REWARD = "/logs/verifier/reward.txt"
CHECK = f"""#!/bin/bash
if [ "$(cat /app/answer 2>/dev/null)" = 42 ]; then echo 1 > {REWARD}; else echo 0 > {REWARD}; fi
"""
CANONICAL = f"""#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx -p 3.13 -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 \\
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_it.py -rA
if [ $? -eq 0 ]; then echo 1 > {REWARD}; else echo 0 > {REWARD}; fi
"""
PYTEST = """from pathlib import Path

def test_answer():
    assert Path('/app/answer').read_text().strip() == '42'
"""


def a_task(directory: Path, test: str = CHECK, settings: str = QUIET, **files: str) -> Task:
    made = make_task(directory / "task", settings, test=test)
    for name, text in files.items():
        (made / "tests" / f"{name}.py").write_text(text)
    return load_task(made)


def graded(task: Task, agent: str, **options: object) -> Verdict:
    """The verdict after a command of the agent's."""
    found: list[Verdict] = []

    async def body(sandbox: Sandbox) -> None:
        await sandbox.exec(f"mkdir -p /app; {agent}")
        found.append(await verify(task, sandbox, **options))  # type: ignore[arg-type]

    in_sandbox(body)
    return found[0]


SOLVED = "echo 42 > /app/answer"


def test_honest_work_and_idleness(tmp_path: Path) -> None:
    task = a_task(tmp_path)
    verdict = graded(task, SOLVED)
    assert (verdict.reward, verdict.passed, verdict.trust) == (1.0, True, Trust.WEAK)
    assert verdict.evidence["exit_code"] == 0 and verdict.evidence["reward_key"] == "reward"
    assert graded(task, "true").reward == 0.0


JSON = '{"reward": 1}'
LOOP = "(setsid sh /tmp/loop >/dev/null 2>&1 &) ; sleep 0.2"
FORGERIES = {
    "planted reward": "mkdir -p /logs/verifier; cd /logs/verifier; "
    f"echo 1 > reward.txt; echo '{JSON}' > reward.json",
    "reward is a link": f"mkdir -p /logs/verifier; echo 1 > /tmp/one; ln -s /tmp/one {REWARD}",
    "logs is a link": "mkdir /tmp/logs; rm -rf /logs; ln -s /tmp/logs /logs",
    "tests is a link": "mkdir /tmp/tests; rm -rf /tests; ln -s /tmp/tests /tests",
    "background writer": f"echo 'while :; do echo 1 > {REWARD}; done' > /tmp/loop; {LOOP}",
    "background writer of json": f"""cat > /tmp/loop <<'L'
while :; do echo '{JSON}' > /logs/verifier/reward.json; done
L
{LOOP}""",
    "start files": "for f in ~/.bashrc ~/.profile ~/.bash_profile; do "
    "echo 'cat() { echo 42; }; export -f cat' > $f; done",
    "path": "mkdir -p ~/.local/bin ~/bin; printf '#!/bin/sh\\necho 42\\n' | tee ~/bin/cat > ~/.local/bin/cat;"
    " "
    "chmod +x ~/bin/cat ~/.local/bin/cat; export PATH=~/bin:$PATH",
    "working directory": "printf '#!/bin/sh\\necho 42\\n' > cat; chmod +x cat",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_scores_nothing_and_does_no_harm_to_who_solved(tmp_path: Path, name: str) -> None:
    task = a_task(tmp_path)
    assert graded(task, FORGERIES[name]).reward == 0.0
    assert graded(task, f"{FORGERIES[name]}; {SOLVED}").reward == 1.0


PYTEST_FORGERIES = {
    "conftest": "mkdir -p /tests; for d in / /tests /app ~; do cp ~/evil.py $d/conftest.py; done",
    "settings": "for d in / /app ~; do printf '[pytest]\\naddopts = -p evil\\n' > $d/pytest.ini; done",
    "modules": "for m in pytest _pytest pluggy; do cp ~/evil.py /app/$m.py; cp ~/evil.py $m.py; done",
    "user site": 'd=$(python3 -m site --user-site); mkdir -p "$d"; cp ~/evil.py "$d/usercustomize.py"; '
    'echo "import os; os._exit(0)" > "$d/x.pth"; '
    'mkdir -p "$d/pytest"; cp ~/evil.py "$d/pytest/__init__.py"',
    "sourced file": "mkdir -p ~/.local/bin; echo 'uvx() { true; }; exit() { true; }' > ~/.local/bin/env",
    "stand-ins": "mkdir -p ~/.local/bin; cd ~/.local/bin; printf '#!/bin/sh\\nexit 0\\n' > uvx; chmod +x uvx",
    "variables": "export PYTEST_ADDOPTS='-p evil' PYTHONPATH=~; echo 'export PYTHONPATH=~' > ~/.bashrc",
}
EVIL = "printf 'import os\\nos._exit(0)\\n' > ~/evil.py; "


@pytest.mark.parametrize("name", PYTEST_FORGERIES)
def test_pytest_without_network_cannot_be_forged_from_outside(tmp_path: Path, name: str) -> None:
    task = a_task(tmp_path, CANONICAL, test_it=PYTEST)
    verdict = graded(task, EVIL + PYTEST_FORGERIES[name])
    assert verdict.reward == 0.0 and verdict.bundle_version
    assert verdict.overridden == (["/home/user/.local/bin/env"] if name == "sourced file" else [])
    assert "1 failed" in verdict.evidence["output"]


def test_pytest_without_network_judges_who_solved(tmp_path: Path) -> None:
    verdict = graded(a_task(tmp_path, CANONICAL, test_it=PYTEST), SOLVED)
    assert verdict.reward == 1.0 and "1 passed" in verdict.evidence["output"]
    assert verdict.overridden == []


SERVICE = """#!/bin/bash
python3 - <<'P' && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
import urllib.request
assert urllib.request.urlopen("http://127.0.0.1:8123/answer", timeout=5).read() == b"42\\n"
P
"""
SERVE = "cd /app; echo 42 > answer; (setsid python3 -m http.server 8123 >/dev/null 2>&1 &) ; sleep 1"


def test_a_service_is_kept_and_its_neighbours_are_not(tmp_path: Path) -> None:
    verdict = graded(a_task(tmp_path, SERVICE), f"(setsid sleep 86411 >/dev/null 2>&1 &) ; {SERVE}")
    assert verdict.reward == 1.0
    assert any("python3" in name for name in verdict.kept)
    assert any("sleep" in name for name in verdict.killed)


def test_a_task_may_ask_that_nothing_is_kept(tmp_path: Path) -> None:
    task = a_task(tmp_path, SERVICE, f'[verifier]\nkeep = "none"\n{QUIET}')
    assert graded(task, SERVE).reward == 0.0


async def works() -> bool:
    return True


async def fails() -> bool:
    return False


async def unknown() -> None:
    return None


@pytest.mark.parametrize(
    "test", ["#!/bin/bash\nexit 0\n", "#!/bin/bash\necho nan > /logs/verifier/reward.txt\n"]
)
def test_no_verdict_is_an_error_unless_the_agent_broke_the_tests(tmp_path: Path, test: str) -> None:
    task = a_task(tmp_path, test)
    for untouched in (None, fails):
        with pytest.raises(VerifierError, match="reward") as caught:
            graded(task, "true", untouched=untouched)
        assert caught.value.evidence.evidence["earlier"], "both tries are kept as evidence"
        assert caught.value.evidence.reward is None
    for solved in (None, works, unknown):
        verdict = graded(task, "true", untouched=works, solved=solved)
        assert (verdict.reward, verdict.passed, verdict.contested) == (0.0, False, True)
        assert "no agent has touched" in verdict.explanation
        assert ("own solution" in verdict.explanation) == (solved is works)
    with pytest.raises(VerifierError, match="so it is with the task's own solution"):
        graded(task, "true", untouched=works, solved=fails)


def test_a_zero_after_tests_that_spoilt_the_evidence_is_contested(tmp_path: Path) -> None:
    """The first try came to no verdict, and the second finds nothing any more."""
    test = f"#!/bin/bash\nif [ -e /app/x ]; then rm /app/x; exit 1; fi; echo 0 > {REWARD}\n"
    task = a_task(tmp_path, test)
    verdict = graded(task, "touch /app/x")
    assert (verdict.reward, verdict.contested) == (0.0, True) and "then 0" in verdict.explanation
    with pytest.raises(VerifierError, match="so it is with the task's own solution"):
        graded(task, "touch /app/x", solved=fails)
    assert not graded(task, "true").contested
    passing = a_task(tmp_path, test.replace("echo 0", "echo 1"))
    assert graded(passing, "touch /app/x", solved=fails).reward == 1.0


def test_what_listens_and_stands_in_the_way_of_a_verdict_is_contested(tmp_path: Path) -> None:
    """It is gone at the second try, but had time to read the tests at the first."""
    survivor = (
        "import os, socket, time\ns = socket.socket(); s.bind(('127.0.0.1', 8124)); s.listen()\n"
        "while True:\n    try: os.unlink('/logs/verifier/reward.txt')\n    except OSError: pass\n"
    )
    start = "(setsid python3 /tmp/s.py >/dev/null 2>&1 &)"
    script = f"cat > /tmp/s.py <<'P'\n{survivor}P\n{start} ; sleep 1; {SOLVED}"
    slow = CHECK + "sleep 0.5\n"
    verdict = graded(a_task(tmp_path, slow), script)
    assert (verdict.reward, verdict.contested, verdict.evidence["keep"]) == (0.0, True, "none")


def test_tests_have_a_time_of_their_own(tmp_path: Path) -> None:
    task = a_task(tmp_path, f"#!/bin/bash\necho 1 > {REWARD}\nsleep 86412\n")
    with pytest.raises(VerifierError, match="took longer than 1 s"):
        graded(task, "true", timeout=1.0)


def test_what_the_tests_would_fetch_is_named(tmp_path: Path) -> None:
    for command, needed in (
        ("curl -O https://example.org/data", "https://example.org/data"),
        ("pip install some-rare-package==2", "the Python package some-rare-package"),
        ("apt-get install -y some-rare-program", "the package some-rare-program"),
    ):
        with pytest.raises(VerifierError, match=f"the tests need {needed}"):
            graded(a_task(tmp_path, f"#!/bin/bash\n{command}\necho 0 > {REWARD}\n"), "true")


def test_a_missing_test_script_is_the_tasks_fault(tmp_path: Path) -> None:
    task = a_task(tmp_path)
    task.steps[0].test_script.unlink()
    with pytest.raises(VerifierError, match=r"no /tests/test\.sh"):
        graded(task, SOLVED)


def test_sub_scores_are_metrics(tmp_path: Path) -> None:
    scores = '{"speed": 0.5, "reward": 0.75}'
    test = f"#!/bin/sh\necho '{scores}' > /logs/verifier/reward.json\necho 1 > {REWARD}\n"
    verdict = graded(a_task(tmp_path, test), "true")
    assert (verdict.reward, verdict.metrics, verdict.passed) == (0.75, {"speed": 0.5}, False)


def test_variables_of_the_verifier_are_filled_in_and_kept_out_of_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = QUIET + '[verifier]\nenv = { KEY = "${SOME_KEY}", LEVEL = "${LEVEL:-3}" }\n'
    task = a_task(tmp_path, f'#!/bin/bash\necho "key $KEY level $LEVEL"\necho 1 > {REWARD}\n', settings)
    with pytest.raises(VerifierError, match="SOME_KEY"):
        graded(task, "true")
    monkeypatch.setenv("SOME_KEY", "secret-value")
    assert graded(task, "true").evidence["output"] == "key *** level 3\n"


SEPARATE = f'[verifier]\nenvironment_mode = "separate"\n{QUIET}'


def test_a_separate_verifier_sees_declared_artifacts_alone(tmp_path: Path) -> None:
    task = a_task(tmp_path, CHECK, f'artifacts = ["/app/answer"]\n{SEPARATE}')
    verdict = graded(task, SOLVED, fresh=fresh)
    assert (verdict.reward, verdict.trust) == (1.0, Trust.SEPARATE)
    undeclared = a_task(tmp_path, CHECK, SEPARATE)
    assert graded(undeclared, SOLVED, fresh=fresh).reward == 0.0
    forged = f"ln -s /etc/passwd /app/answer; {FORGERIES['planted reward']}"
    assert graded(task, forged, fresh=fresh).reward == 0.0
    with pytest.raises(VerifierError, match="separate verifier"):
        graded(task, SOLVED)


DEEP = "import os; os.chdir('/app/answer'); [(os.mkdir('d' * 200), os.chdir('d' * 200)) for _ in range(40)]"
UNDELIVERABLE = {
    "a large file": "truncate -s 3G /app/answer",
    "a large tree": "mkdir /app/answer; truncate -s 3G /app/answer/big",
    "unreadable file": "echo 42 > /app/answer; chmod 0 /app/answer",
    "unreadable tree": "mkdir -p /app/answer/in; chmod 0 /app/answer/in",
    "pipe": "mkfifo /app/answer",
    "a large file by convention": "mkdir -p /logs/artifacts; truncate -s 3G /logs/artifacts/big",
    "deep": f'mkdir -p /app/answer; python3 -c "{DEEP}"',
}


@pytest.mark.parametrize("name", UNDELIVERABLE)
def test_no_agent_voids_its_grade_by_what_it_leaves(name: str, tmp_path: Path) -> None:
    task = a_task(tmp_path, CHECK, f'artifacts = ["/app/answer"]\n{SEPARATE}')
    assert graded(task, UNDELIVERABLE[name], fresh=fresh).reward == 0.0


def test_artifacts_by_convention_and_what_is_left_out(tmp_path: Path) -> None:
    condition = "[ -e /logs/artifacts/a ] && [ -e /app/out/sub/y ] && [ ! -e /app/out/x.tmp ]"
    test = f"#!/bin/bash\n{condition} && echo 1 > {REWARD}\n"
    task = a_task(tmp_path, test, f'artifacts = [{{ source = "/app/out", exclude = ["*.tmp"] }}]\n{SEPARATE}')
    agent = "mkdir -p /logs/artifacts /app/out/sub; touch /logs/artifacts/a /app/out/x.tmp /app/out/sub/y"
    assert graded(task, agent, fresh=fresh).reward == 1.0


def test_a_verifier_between_two_steps_leaves_no_trace(tmp_path: Path) -> None:
    task = a_task(tmp_path)

    async def body(sandbox: Sandbox) -> None:
        await sandbox.exec(f"mkdir -p /app; {SERVE}")
        assert (await verify(task, sandbox, last=False)).reward == 1.0
        found = await sandbox.exec(
            "ls /tests /logs/verifier; python3 -c 'import urllib.request as u; "
            'print(u.urlopen("http://127.0.0.1:8123/answer").read())\''
        )
        assert found.stdout == b"b'42\\n'\n" and b"No such file" in found.stderr

    in_sandbox(body)


IMPORTS = """import sys

sys.path.insert(0, '/app')

def test_it():
    import solution
    assert solution.x == 42
"""
IN_PROCESS = {
    "exits": "import os\nos._exit(0)\n",
    "empties pytest's books": """import gc
for o in gc.get_objects():
    if type(o).__name__ == 'Session':
        type(o).testsfailed = property(lambda s: 0, lambda s, v: None)
""",
    "writes the reward later": "import subprocess\nsubprocess.Popen(['sh', '-c', "
    "'sleep 0.1; while :; do echo 1 > /logs/verifier/reward.txt; done'], start_new_session=True)\n",
}


@pytest.mark.parametrize("name", IN_PROCESS)
def test_where_pytest_decides_a_reward_without_its_word_is_tampered(tmp_path: Path, name: str) -> None:
    task = a_task(tmp_path, CANONICAL, test_it=IMPORTS)
    agent = f"cat > /app/solution.py <<'P'\n{IN_PROCESS[name]}x = 41\nP\n"
    assert graded(task, agent, untouched=works).reward == 0.0
    honest = graded(task, "echo 'x = 42' > /app/solution.py")
    assert (honest.reward, honest.tampered) == (1.0, False)


def test_a_forged_reward_is_told_from_a_failure(tmp_path: Path) -> None:
    task = a_task(tmp_path, CANONICAL, test_it=IMPORTS)
    assert graded(task, f"printf '{IN_PROCESS['exits']!s}' > /app/solution.py".replace("\n", "\\n")).tampered
    assert not graded(task, "echo 'x = 41' > /app/solution.py").tampered
