"""``hermes-env``: every environment under one command, without knowing where its file is.

    hermes-env list
    hermes-env terminal_test process --env.total_steps 3
    hermes-env path/to/my_env.py:MyEnv evaluate
    hermes-env show evals/terminal-test/samples.jsonl
    hermes-env api --port 8000

Nothing is imported before it is known which environment is meant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from environments.cli_output import emit, exit_code_of, tell
from environments.errors import ConfigError, suggestion

ENVIRONMENTS: dict[str, tuple[str, str]] = {
    "terminal_test": (
        "environments.terminal_test_env.terminal_test_env:TerminalTestEnv",
        "Built-in file tasks that check the whole stack end to end.",
    ),
    "terminalbench_2": (
        "environments.benchmarks.terminalbench_2.terminalbench2_env:TerminalBench2EvalEnv",
        "Terminal-Bench 2: 89 hard terminal tasks (evaluate only).",
    ),
    "tblite": (
        "environments.benchmarks.tblite.tblite_env:TBLiteEvalEnv",
        "TBLite: 100 terminal tasks of calibrated difficulty (evaluate only).",
    ),
    "harbor_task": (
        "environments.harbor_task_env.harbor_task_env:HarborTaskEnv",
        "Any directory, table or repository of tasks in the Harbor format.",
    ),
}
"""Built-in environments: name to ``module:Class`` and one line about it."""

_USAGE = """\
usage: hermes-env ENVIRONMENT {serve,process,evaluate} [options]
       hermes-env list
       hermes-env show FILE [N]
       hermes-env compare A B
       hermes-env rescore RUN [options]
       hermes-env tasks {check,validate} SOURCE [options]
       hermes-env sandboxes {list,reap,shell} [options]
       hermes-env export {sft,dpo} SOURCE OUTPUT [options]
       hermes-env export harbor RUN JOB
       hermes-env api [options]

Evaluate agents, make training data, or roll out for a trainer.

  ENVIRONMENT  a name from 'hermes-env list', path/to/my_env.py, path/to/my_env.py:MyEnv,
               or package.module:MyEnv
  list         list the built-in environments
  show         show the results in FILE, or its N-th record
  compare      compare two results over the same tasks, task by task
  rescore      judge the finished attempts of a run again, without calling the model
  tasks        say what is wrong with tasks; run their solutions without a model
  sandboxes    list the sandboxes of all runs, remove what is left of dead ones, enter one
  export       write rollouts as rows for fine-tuning (sft) or preference training (dpo), or an
               evaluation as a job directory of Harbor
  api          run the trajectory API that 'serve' and trainers talk to (also: run-api)

'hermes-env ENVIRONMENT evaluate --help' lists the options of a subcommand with their defaults.
"""
_COMMANDS = ("list", "show", "export", "compare", "rescore", "tasks", "sandboxes", "api")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hermes-env`` and return the exit code, as ``environments.cli.main`` gives it."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return exit_code_of(lambda: _dispatch(arguments))


def listing() -> str:
    """The table of built-in environments."""
    width = max(map(len, ENVIRONMENTS))
    return "".join(f"{name:<{width}}  {text}\n" for name, (_, text) in ENVIRONMENTS.items())


def _dispatch(argv: list[str]) -> int:
    if not argv:
        tell(_USAGE)
        return 2
    command, *rest = argv
    if command in ("-h", "--help"):
        return emit(_USAGE)
    if command == "--version":
        from environments import __version__

        return emit(f"hermes-environments {__version__}\n")
    if command == "list":
        if rest and rest != ["--help"]:
            raise ConfigError(f"unexpected argument {rest[0]!r}: 'hermes-env list' takes none")
        return emit(listing())
    if command == "show":
        from environments.results.show import main as show

        return int(show(rest))
    if command == "sandboxes":
        from environments.sandboxes_command import main as sandboxes

        return sandboxes(rest)
    if command == "export" and rest[:1] == ["harbor"]:
        from environments.results.harbor_job import main as harbor_job

        return harbor_job(rest[1:])
    if command == "export":
        from environments.exports.main import main as export

        return export(rest)
    if command == "compare":
        from environments.results.compare import main as compare

        return compare(rest)
    if command == "rescore":
        from environments.rescore_command import main as rescore

        return rescore(rest, find)
    if command == "tasks":
        from environments.tasks_command import main as tasks

        return tasks(rest)
    if command == "api":
        from environments.trajectory_api.main import main as api

        return api(rest)
    if command.startswith("-"):
        raise ConfigError(f"unknown option {command}; an environment or a command comes first")
    return _run_environment(command, rest)


def _run_environment(target: str, argv: list[str]) -> int:
    from environments.environment_loading import load_environment

    spec = find(target)
    if spec is None and not looks_like_code(target):
        raise ConfigError(f"unknown environment {target!r}{_suggested(normalised(target))}")
    environment = load_environment(spec or target)
    from environments import cli

    return cli.main(environment, argv, program=f"hermes-env {target}")


def _suggested(name: str) -> str:
    near = suggestion(name, [*ENVIRONMENTS, *_COMMANDS])
    if "did you mean" in near:
        return near
    return f"; environments: {', '.join(sorted(ENVIRONMENTS))}; commands: {', '.join(_COMMANDS)}"


def find(name: str) -> str | None:
    """``module:Class`` of a built-in environment; dashes, case and a trailing ``_env`` do not matter."""
    entry = ENVIRONMENTS.get(normalised(name))
    return entry[0] if entry else None


def normalised(name: str) -> str:
    """The name as it stands in the table."""
    return name.lower().replace("-", "_").removesuffix("_env")


def looks_like_code(target: str) -> bool:
    """Whether a target names a file or a module rather than a built-in environment."""
    return ":" in target or "/" in target or target.endswith(".py")


if __name__ == "__main__":
    sys.exit(main())
