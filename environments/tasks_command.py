"""``hermes-env tasks check|validate SOURCE``: what is wrong with tasks, without and with running them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.cli_output import emit, plural
from environments.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from environments.harbor_task_env.validation import TaskReport, TaskValidation
    from environments.run import RunReport

USAGE = """\
usage: hermes-env tasks check SOURCE [--split NAME] [--revision REVISION]
       hermes-env tasks validate SOURCE [--env.terminal_backend NAME] [options]

  SOURCE    a directory of tasks or one task, a .jsonl or .parquet file, a git URL, a dataset of the Hub
  check     read the tasks and say what is wrong with them
  validate  run each task's solution, which must get the full reward, and nothing, which must get none

validate takes the options of 'hermes-env harbor_task evaluate'. It runs in local sandboxes, in which each
task's Dockerfile is replayed, unless a backend is named. No model and no key is needed. The exit code is 0
where all is well.
"""
_SUBCOMMANDS = ("check", "validate")


def main(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        emit(USAGE)
        return 0 if argv else 2
    subcommand, *rest = argv
    if subcommand not in _SUBCOMMANDS:
        raise ConfigError(f"unknown subcommand {subcommand!r}{suggestion(subcommand, _SUBCOMMANDS)}")
    if rest and rest[0] in ("-h", "--help"):
        return emit(USAGE)
    if not rest or rest[0].startswith("-"):
        raise ConfigError(f"'hermes-env tasks {subcommand}' needs a SOURCE: a directory of tasks, say")
    return _check(rest[0], rest[1:]) if subcommand == "check" else _validate(rest[0], rest[1:])


def _check(source: str, options: Sequence[str]) -> int:
    from environments.tasks.lint import check
    from environments.tasks.sources import load_tasks

    given = _options(options, {"--split": "train", "--revision": ""})
    found = load_tasks(source, split=given["--split"], revision=given["--revision"] or None, keep_broken=True)
    lines, errors = list[str](), len(found.broken)
    for name, reason in found.broken.items():
        lines += [f"{name}:", f"  error   {reason}"]
    for task in found.tasks:
        findings = check(task)
        errors += any(finding.level == "error" for finding in findings)
        lines.append(f"{task.name}: {'no findings' if not findings else ''}".rstrip())
        lines += [f"  {finding.level:<8}{finding.text}" for finding in findings]
    number = len(found.tasks) + len(found.broken)
    lines.append(f"{plural(number, 'task')}, {errors} of them cannot be run ({found.revision[:12]})")
    return emit("\n".join(lines) + "\n") or int(errors > 0)


def _options(words: Sequence[str], defaults: dict[str, str]) -> dict[str, str]:
    found = dict(defaults)
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in found:
            raise ConfigError(f"unknown option {name}{suggestion(name, found)}")
        if not equals and not rest:
            raise ConfigError(f"{name} needs a value")
        found[name] = value if equals else rest.pop(0)
    return found


def _validate(source: str, options: Sequence[str]) -> int:
    import tempfile

    from environments.cli import scan_for, set_up_logging
    from environments.configuration import resolve
    from environments.foreground import run_in_foreground

    found, reports = _reporting()
    environment: Any = found
    arguments = scan_for(environment, list(options))
    set_up_logging("WARNING" if arguments.log_level == "INFO" else arguments.log_level)
    given = {flag.name for flag in arguments.flags}
    with tempfile.TemporaryDirectory(prefix="hermes-validate-") as scratch:
        env: dict[str, Any] = {"dataset_name": source}
        if "data_dir_to_save_evals" not in given:
            env["data_dir_to_save_evals"] = scratch
        effective = resolve(environment, "evaluate", env=env, config=arguments.configs, flags=arguments.flags)
        config: Any = effective.env
        if config.terminal_backend == "local" and "task_images" not in given:
            config.task_images = "replay"
        code = run_in_foreground(environment, "evaluate", effective)
    if not reports:
        return code or 1
    failed = emit(table(reports))
    return code if code > 1 else failed or int(any(report.status != "ok" for report in reports))


def _reporting() -> tuple[type[TaskValidation], list[TaskReport]]:
    """The environment, and the list that its reports come into when a run has ended."""
    from environments.harbor_task_env.validation import TaskValidation

    collected: list[TaskReport] = []

    class Validation(TaskValidation):
        async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            try:
                return await super().evaluate(*args, **kwargs)
            finally:
                run = self.active_run
                collected.extend(self.reports(run.attempts if run is not None else []))

        async def evaluate_manager(self) -> RunReport:
            report = await super().evaluate_manager()
            report.message = ""  # the table says it all
            return report

    return Validation, collected


def table(reports: Sequence[TaskReport]) -> str:
    """The reports as text, one task on a line, and a line that sums up."""
    width = max(4, *(len(report.name) for report in reports))
    lines = [f"{'task':<{width}}  {'status':<7}  oracle  nop   seconds  keep       what is wrong"]
    for r in reports:
        numbers = f"{_number(r.oracle):>6}  {_number(r.nop):>4}  {_number(r.seconds):>7}  {r.keep or '-':<9}"
        lines.append(f"{r.name:<{width}}  {r.status:<7}  {numbers}  {r.problem}".rstrip())
    counts = {status: sum(r.status == status for r in reports) for status in ("ok", "wrong", "not run")}
    summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    return "\n".join([*lines, f"{plural(len(reports), 'task')}: {summary}", ""])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
