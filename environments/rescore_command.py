"""``hermes-env rescore RUN``: judge the finished attempts of a run again, without calling the model.

hermes-env rescore evals/my-env
hermes-env rescore out.jsonl --items 'git-*' --env.test_timeout 1200
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from environments.cli_output import INTERRUPTED, emit, plural, tell
from environments.errors import ConfigError, UnknownName, suggestion
from environments.open_files import more_open_files

if TYPE_CHECKING:
    from environments.records import Attempt
    from environments.rescoring import Rescoring
    from environments.results.store import Manifest

USAGE = """\
usage: hermes-env rescore RUN [--items GLOB,...] [--environment ENVIRONMENT] [--env.FIELD VALUE ...]

Judge the finished attempts of a run again and print what changed. No model is called: each attempt is given
to the environment's compute_reward as it is written down, with the sandbox that it left where that was kept
(--env.keep_sandboxes all) and is needed.

  RUN             the directory of an evaluation, or the JSONL file of 'process'
  --items         only items whose id matches one of these globs
  --environment   the environment, where the run does not say where it is: as for 'hermes-env ENVIRONMENT'
  --env.FIELD     a setting that is to differ from the run's, such as --env.test_timeout

New verdicts are appended to the run's records, the old ones stay; metrics, samples and groups are written
anew. An interrupted rescoring goes on with the same command. Attempts at items that the dataset has no more
are left out. The exit code is 0 where every other attempt was judged again, else 1.
"""
MARKER_FILE = "rescore.json"
"""Stands in the run's directory while a rescoring is not finished."""

_OWN = ("--items", "--environment")
_SHOWN = 50


@dataclass(frozen=True, slots=True)
class _Options:
    run: Path
    items: list[str] | None
    environment: str | None
    rest: list[str]


def main(argv: Sequence[str], find: Callable[[str], str | None]) -> int:
    """Run the command and return the exit code. ``find`` gives the class of a built-in environment."""
    if not argv or argv[0] in ("-h", "--help"):
        emit(USAGE)
        return 0 if argv else 2
    options = _read(argv)
    directory, output = _find(options.run)
    from environments.results.store import read_manifest

    manifest = read_manifest(directory)
    environment_class = _environment(options, manifest, directory, find)
    name = environment_class.name or environment_class.__name__
    if name != manifest.environment:
        raise ConfigError(f"{directory} is a run of {manifest.environment!r}, not of {name!r}")
    rescoring, marker = _begin(directory, options)
    total = _run(environment_class, manifest, options, rescoring, directory, output)
    if total is None:
        return INTERRUPTED
    marker.unlink(missing_ok=True)
    failed = emit(report(rescoring, directory))
    return failed or int(bool(rescoring.missing) or not rescoring.after)


def _read(argv: Sequence[str]) -> _Options:
    words = list(argv)
    if words[0].startswith("-"):
        raise ConfigError("'hermes-env rescore' takes a RUN first: the directory of an evaluation, say")
    run = Path(words.pop(0))
    own: dict[str, str] = {}
    rest: list[str] = []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in _OWN:
            if not equals and not words:
                raise ConfigError(f"{name} needs a value")
            own[name] = value if equals else words.pop(0)
        elif word.startswith("--") and not word.startswith(("--env.", "--openai.", "--log-level")):
            raise ConfigError(f"unknown option {name}{suggestion(name, [*_OWN, '--env.FIELD'])}")
        else:
            rest.append(word)
    items = own["--items"].split(",") if "--items" in own else None
    return _Options(run, items, own.get("--environment"), rest)


def _find(path: Path) -> tuple[Path, Path | None]:
    """The directory of a run, and the output of ``process`` that it belongs to."""
    from environments.results.reading import ATTEMPTS_FILE
    from environments.results.store import MANIFEST_FILE, run_directory

    if path.is_dir() and (path / MANIFEST_FILE).is_file():
        directory = path
    elif path.is_file() and path.name in (ATTEMPTS_FILE, MANIFEST_FILE):
        directory = path.parent
    elif not path.is_dir() and (run_directory(path) / MANIFEST_FILE).is_file():
        directory = run_directory(path)
    else:
        found = sorted(str(p.parent) for p in path.glob(f"*/{MANIFEST_FILE}")) if path.is_dir() else []
        hint = f"; {path} holds {', '.join(found[:5])}" if found else ""
        raise ConfigError(f"{path} is no run: there is no {MANIFEST_FILE}{hint}")
    if directory.suffix != ".run":
        return directory, None
    whole = directory.with_suffix("")  # out.txt.run belongs to out.txt
    return directory, whole if whole.suffix else directory.with_suffix(".jsonl")


def _environment(
    options: _Options, manifest: Manifest, directory: Path, find: Callable[[str], str | None]
) -> Any:
    from environments.environment_loading import load_environment

    if options.environment is not None:
        return load_environment(find(options.environment) or options.environment)
    code = manifest.code or find(manifest.environment) or ""
    file = Path(code.rpartition(":")[0])
    if not code or (file.suffix == ".py" and not file.is_file()):
        raise ConfigError(
            f"{directory} is a run of {manifest.environment!r}, whose code is not found"
            f"{f' at {file}' if code else ''}; name it with --environment file.py:Class"
        )
    if file.suffix == ".py" and file.resolve().is_relative_to(directory.resolve()):
        raise ConfigError(f"{directory} names code within itself; name it with --environment if you trust it")
    return load_environment(code)


def _begin(directory: Path, options: _Options) -> tuple[Rescoring, Path]:
    """A rescoring, or the one that was interrupted where the same command is given again."""
    from environments.rescoring import Rescoring
    from environments.results.durable import write_atomically

    marker = directory / MARKER_FILE
    command = {"items": options.items, "environment": options.environment, "options": options.rest}
    try:
        found = orjson.loads(marker.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        found = None
    if isinstance(found, dict) and found.get("command") == command and "since" in found:
        tell("going on with the rescoring that was interrupted\n")
        return Rescoring(float(found["since"]), options.items), marker
    since = time.time()
    write_atomically(marker, orjson.dumps({"since": since, "command": command}))
    return Rescoring(since, options.items), marker


def _run(
    environment_class: Any,
    manifest: Manifest,
    options: _Options,
    rescoring: Rescoring,
    directory: Path,
    output: Path | None,
) -> int | None:
    """Judge; returns how many attempts the run has, None where it was interrupted."""
    from environments.cli import scan_for, set_up_logging
    from environments.configuration import resolve
    from environments.workflows.rescore import rescore

    arguments = scan_for(environment_class, options.rest)
    set_up_logging("WARNING" if arguments.log_level == "INFO" else arguments.log_level)
    workflow: Any = "evaluate" if output is None else "process"
    effective = resolve(
        environment_class,
        workflow,
        env=_settings(environment_class, manifest, directory, output),
        openai=_servers(manifest),
        flags=arguments.flags,
    )
    environment = environment_class(effective.env, effective.servers)
    try:
        with more_open_files():
            return asyncio.run(rescore(environment, rescoring, directory, output))
    except KeyboardInterrupt:
        tell("stopped; new verdicts are on disk, the same command goes on\n")
        return None


def _settings(cls: Any, manifest: Manifest, directory: Path, output: Path | None) -> dict[str, Any]:
    """The run's own settings, with every attempt of it in reach."""
    from environments.results.reading import ATTEMPTS_FILE, read_attempts

    known = cls.env_config_cls.model_fields
    stored = _without_secrets(manifest.config.get("env") or {})
    settings = {name: value for name, value in stored.items() if name in known}
    settings |= {"use_wandb": False, "resume": True}
    if output is not None:
        return settings | {"data_path_to_save_groups": str(output)}
    numbers = [attempt.attempt for attempt in read_attempts(directory / ATTEMPTS_FILE)]
    settings |= {"data_dir_to_save_evals": str(directory), "attempts": max(numbers, default=0) + 1}
    selection = dict.fromkeys(("limit", "item_ids", "task_filter", "skip_tasks"))
    return settings | {name: value for name, value in selection.items() if name in known}


def _servers(manifest: Manifest) -> list[dict[str, Any]]:
    from environments.config import APIServerConfig

    known = APIServerConfig.model_fields
    return [
        {name: value for name, value in _without_secrets(server).items() if name in known}
        for server in manifest.config.get("openai") or []
    ]


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they were written down: what stands there as ``***`` comes from where it came before."""
    from environments.results.fingerprint import REMOVED

    return {name: value for name, value in settings.items() if REMOVED not in str(value)}


def report(rescoring: Rescoring, directory: Path) -> str:
    """What changed, as text."""
    from environments.rescoring import flips
    from environments.results.coverage import left_out

    judged, missing = len(rescoring.after), len(rescoring.missing)
    total = judged + missing
    gone = [left_out(sorted(rescoring.gone))] if rescoring.gone else []
    if not total and not gone:
        raise UnknownName("item", ",".join(rescoring.items or []), [], "--items")
    were = "was" if total == 1 else "were"
    lines = [f"{judged} of {plural(total, 'attempt')} of {directory} {were} judged again"]
    if not total:
        return "\n".join([*lines, *gone]) + "\n"
    found = flips(rescoring)
    titles = {
        "failed": "passed before, failed now",
        "passed": "failed before, passed now",
        "judged": "without a score before, judged now",
        "reward": "another reward",
    }
    for name, title in titles.items():
        lines += _listed(title, [_change(before, after) for before, after in found[name]])
    if not any(found.values()):
        lines.append("no reward changed")
    reasons = [f"{item} attempt {n}: {why}" for (_, item, n), why in sorted(rescoring.missing.items())]
    lines += _listed("not judged again, their verdicts stand", reasons)
    prompts, views = sorted(rescoring.prompts_changed), sorted(rescoring.views_changed)
    lines += _listed("the prompt is no longer what their agents were given", prompts)
    lines += _listed("the machine, files, limits or tools are no longer what their agents had", views)
    if prompts or views:
        lines.append("such attempts stay attempts at the items as they were: 'evaluate' rolls out the new")
    lines += gone
    lines.append(_rates(list(rescoring.before.values()), rescoring))
    return "\n".join(lines) + "\n"


def _listed(title: str, entries: list[str]) -> list[str]:
    if not entries:
        return []
    more = [f"  and {len(entries) - _SHOWN} more"] if len(entries) > _SHOWN else []
    return [f"{title}: {len(entries)}", *(f"  {entry}" for entry in entries[:_SHOWN]), *more]


def _change(before: Attempt, after: Attempt) -> str:
    was = f"{before.reward:g}" if before.valid and before.reward is not None else str(before.outcome)
    verdict = after.verdict
    why = f"  ({verdict.explanation})" if verdict is not None and verdict.explanation else ""
    return f"{after.item_id} attempt {after.attempt}: {was} -> {after.reward:g}{why}"


def _rates(before: Sequence[Attempt], rescoring: Rescoring) -> str:
    from environments.results.metrics import summary

    after = [rescoring.after.get(attempt.key, attempt) for attempt in before]
    old, new = summary(before), summary(after)
    return (
        f"pass rate {old['pass_rate']:.4f} -> {new['pass_rate']:.4f}, mean reward "
        f"{_number(old['mean_reward'])} -> {_number(new['mean_reward'])}, valid "
        f"{old['valid']} -> {new['valid']} of {new['attempts']}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
