"""``hermes-env tasks check|validate SOURCE``: what is wrong with tasks, without and with running them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.cli_output import emit, plural, report
from environments.errors import ConfigError, HermesError, suggestion
from environments.terminal_text import label

if TYPE_CHECKING:
    from environments.cli import Arguments
    from environments.configuration import Effective
    from environments.harbor_task_env.reporting import TaskReport
    from environments.harbor_task_env.validation import TaskValidation
    from environments.run import RunReport
    from environments.tasks.sources import TaskSet

USAGE = """\
usage: hermes-env tasks check SOURCE [--split NAME] [--revision REVISION]
       hermes-env tasks validate SOURCE [--env.terminal_backend NAME] [options]

  SOURCE    a directory of tasks or one task, a .jsonl or .parquet file, a git URL, a dataset of the Hub
  check     read the tasks and say what is wrong with them
  validate  run each task's solution, which must get the full reward, and nothing, which must get none

validate takes those options of 'hermes-env harbor_task evaluate' that are about tasks, sandboxes and
grading: --env.task_filter, --env.attempts, --env.test_timeout and so on. It runs in local sandboxes, in
which each task's Dockerfile is replayed, unless a backend is named. No model and no key is needed. With
--env.data_dir_to_save_evals DIR the records are kept, and the same command goes on where it was stopped.
The exit code is 0 where all is well, 1 where it is not, 2 where nothing was tried.
"""
_SUBCOMMANDS = ("check", "validate")
_WITH_EFFECT = (
    "agent_timeout_multiplier",
    "allow_unisolated",
    "attempts",
    "cpus_multiplier",
    "data_dir_to_save_evals",
    "dataset_revision",
    "dataset_split",
    "docker_image",
    "eval_concurrency",
    "force_build",
    "keep_sandboxes",
    "kept_sandbox_lifetime",
    "local_isolation",
    "max_concurrent_tasks",
    "memory_multiplier",
    "progress",
    "resume",
    "retry_backoff",
    "reward_timeout",
    "rollout_timeout",
    "rollout_timeout_clock",
    "sandbox_allowed_hosts",
    "sandbox_creation_concurrency",
    "sandbox_error_retries",
    "sandbox_memory_mb",
    "sandbox_network",
    "sandbox_processes",
    "singularity_image",
    "skip_tasks",
    "ssh_host",
    "ssh_jump_host",
    "ssh_key",
    "ssh_known_hosts",
    "ssh_port",
    "ssh_user",
    "task_cache",
    "task_filter",
    "task_images",
    "task_timeout",
    "terminal_backend",
    "terminal_lifetime",
    "test_timeout",
    "tool_pool_size",
    "use_wandb",
    "verifier_error_retries",
    "verifier_timeout_multiplier",
    "wandb_name",
)
"""Settings that change what ``validate`` does; any other one is the model's, or of another workflow."""
_MOST_SHOWN = 20
_INSTEAD = {
    "dataset_name": "SOURCE is what is validated",
    "limit": "--env.task_filter chooses tasks",
    "item_ids": "--env.task_filter chooses tasks",
}
_NOT_KEPT = (
    "nothing of it is kept and the same command begins anew; with --env.data_dir_to_save_evals DIR it goes on"
)


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
    if not rest or not rest[0].strip() or rest[0].startswith("-"):
        raise ConfigError(f"'hermes-env tasks {subcommand}' needs a SOURCE: a directory of tasks, say")
    more = next((word for word in rest[1:2] if not word.startswith("-")), None)
    if more is not None:
        raise ConfigError(f"'hermes-env tasks {subcommand}' takes one SOURCE, and {more!r} is a second")
    return _check(rest[0], rest[1:]) if subcommand == "check" else _validate(rest[0], rest[1:])


# --- check ------------------------------------------------------------------------------------------------


def _check(source: str, options: Sequence[str]) -> int:
    from environments.tasks.lint import check
    from environments.tasks.sources import load_tasks

    given = _options(options, {"--split": "train", "--revision": ""})
    found = load_tasks(source, split=given["--split"], revision=given["--revision"] or None, keep_broken=True)
    lines, errors = list[str](), len(found.broken)
    for name, reason in found.broken.items():
        lines += [f"{label(name)}:", f"  error   {label(reason)}"]
    for task in found.tasks:
        findings = check(task)
        errors += any(finding.level == "error" for finding in findings)
        lines.append(f"{label(task.name)}: {'no findings' if not findings else ''}".rstrip())
        lines += [f"  {finding.level:<8}{label(finding.text)}" for finding in findings]
    lines += beside(found)
    number = len(found.tasks) + len(found.broken)
    lines.append(f"{plural(number, 'task')}, {errors} of them cannot be run ({found.revision[:12]})")
    return emit("\n".join(lines) + "\n") or int(errors > 0)


def beside(found: TaskSet) -> list[str]:
    """Lines about what lies beside tasks and is none."""
    lines = [f"{label(name)}: no task: {label(reason)}" for name, reason in found.resembling.items()]
    if len(lines) > _MOST_SHOWN:
        lines[_MOST_SHOWN:] = [f"and {len(lines) - _MOST_SHOWN} more that look like tasks and are none"]
    if found.without:
        names = ", ".join(map(label, found.without[:_MOST_SHOWN]))
        more = f" and {len(found.without) - _MOST_SHOWN} more" if len(found.without) > _MOST_SHOWN else ""
        lines.append(f"directories without a task: {names}{more}")
    return lines


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


# --- validate ---------------------------------------------------------------------------------------------


def _validate(source: str, options: Sequence[str]) -> int:
    from environments.cli import note_odd_options, scan_for, set_up_logging
    from environments.foreground import RESUMED, run_in_foreground
    from environments.scratch import scratch_directory

    found, reports = _reporting()
    environment: Any = found
    arguments = scan_for(environment, list(options))
    if arguments.help:
        return emit(USAGE)
    _refuse_without_effect(arguments)
    set_up_logging("WARNING" if arguments.log_level == "INFO" else arguments.log_level)
    note_odd_options(arguments)
    with scratch_directory("hermes-validate-") as scratch:
        effective, kept = _settings(environment, source, arguments, scratch)
        if arguments.print_config:
            from environments.configuration.rendering import render

            return emit(render(effective))
        try:
            code = run_in_foreground(
                environment, "evaluate", effective, when_stopped=RESUMED if kept else _NOT_KEPT
            )
        except HermesError as error:
            code = report(error)
    if not reports:
        return code or 1
    failed = emit(table(reports))
    return code if code > 1 else failed or int(any(report.status != "ok" for report in reports))


def _refuse_without_effect(arguments: Arguments) -> None:
    problems = []
    for flag in arguments.flags:
        option = f"--{flag.section}.{flag.name}"
        if flag.section == "openai":
            problems.append(f"{option} has no effect here: no model acts in 'hermes-env tasks validate'")
        elif flag.name not in _WITH_EFFECT:
            instead = f": {_INSTEAD[flag.name]}" if flag.name in _INSTEAD else ""
            problems.append(f"{option} has no effect in 'hermes-env tasks validate'{instead}")
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def _settings(
    environment: type[TaskValidation], source: str, arguments: Arguments, scratch: str
) -> tuple[Effective, bool]:
    """The configuration, and whether the records outlive the run. Of a file, too, only settings with an
    effect count."""
    from environments.configuration import resolve

    cls: Any = environment
    effective = resolve(
        cls, "evaluate", env={"dataset_name": source}, config=arguments.configs, flags=arguments.flags
    )
    base, servers = environment.config_init()
    config: Any = effective.env
    for name in type(config).model_fields:
        if name not in (*_WITH_EFFECT, "dataset_name"):
            setattr(config, name, getattr(base, name))
    effective.servers[:] = servers
    given = {name for name, origin in effective.origins.items() if origin not in ("default", "evaluate")}
    kept = "env.data_dir_to_save_evals" in given and bool(config.data_dir_to_save_evals)
    if not kept:
        config.data_dir_to_save_evals = scratch
    if config.terminal_backend == "local" and "env.task_images" not in given:
        config.task_images = "replay"
    return effective, kept


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
    """The reports as text, one task on a line, what was printed where something is wrong, and a sum."""
    names = [label(report.name) for report in reports]
    width = max(4, *map(len, names))
    lines = [f"{'task':<{width}}  {'status':<7}  oracle  nop   seconds  keep       what is wrong"]
    for name, r in zip(names, reports, strict=True):
        numbers = f"{_number(r.oracle):>6}  {_number(r.nop):>4}  {_number(r.seconds):>7}  {r.keep or '-':<9}"
        lines.append(f"{name:<{width}}  {r.status:<7}  {numbers}  {label(r.problem)}".rstrip())
    for name, r in zip(names, reports, strict=True):
        if r.details:
            lines += ["", f"{name}:", *(f"  {label(line)}" for line in r.details)]
    if any(r.details for r in reports):
        lines.append("")
    counts = {status: sum(r.status == status for r in reports) for status in ("ok", "wrong", "not run")}
    summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    return "\n".join([*lines, f"{plural(len(reports), 'task')}: {summary}", ""])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
