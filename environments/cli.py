"""The command line of an environment: ``my_env.py {serve,process,evaluate} [options]``.

Flags follow from the fields of the models (``--env.<field>``, ``--openai.<field>``). The scanner is our
own because argparse reads ``-1.5e3`` as a flag, cannot have both a bare ``--env.use_wandb`` and one with a
value, and does not say which option was meant; the help page is ours in any case (``cli_help.py``).
"""

from __future__ import annotations

import difflib
import inspect
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, get_args

from environments.cli_output import emit, exit_code_of, tell
from environments.configuration import Effective, EnvironmentClass, Flag, Subcommand, resolve
from environments.configuration.fields import is_boolean
from environments.configuration.initial import initial
from environments.errors import ConfigError, suggestion
from environments.terminal_text import harmless

SUBCOMMANDS: tuple[Subcommand, ...] = get_args(Subcommand)
IGNORED_OPTIONS = ("--slurm", "--testing", "--max_n_completions", "--proxy_url")
"""Options of the original that have no effect here."""

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_log = logging.getLogger(__name__)


class RunnableEnvironment(EnvironmentClass, Protocol):
    """An environment class as the command line needs it."""

    def run_command(self, subcommand: Subcommand, effective: Effective) -> Any:
        """A class method, plain or a coroutine: run the workflow and return the exit code."""
        ...


@dataclass
class Arguments:
    """What was typed after the subcommand."""

    flags: list[Flag] = field(default_factory=list)
    configs: list[str] = field(default_factory=list)
    help: bool = False
    print_config: bool = False
    log_level: str = "INFO"
    ignored: list[str] = field(default_factory=list)


def main(cls: RunnableEnvironment, argv: Sequence[str] | None = None, *, program: str | None = None) -> int:
    """Run the command line of one environment class and return the exit code.

    0 is success, 1 a failed run, 2 what was refused before it began, 130 Ctrl-C. Errors of ours are one line
    each on stderr; anything else is a bug and keeps its traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    program = program or f"python {sys.argv[0]}"
    return exit_code_of(lambda: _dispatch(cls, arguments, program))


def set_up_logging(level: str) -> None:
    """Send the log of this package to stderr; calling it again only changes the level."""
    logger = logging.getLogger("environments")
    logger.setLevel(level)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_HarmlessFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)


class _HarmlessFormatter(logging.Formatter):
    """Names of tasks and what servers say are not ours, and a terminal obeys control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def _dispatch(cls: RunnableEnvironment, argv: list[str], program: str) -> int:
    from environments import cli_help

    if not argv:
        tell(cli_help.usage(cls, program))
        return 2
    if argv[0] in ("-h", "--help"):
        return emit(cli_help.usage(cls, program))
    if argv[0] == "--version":
        from environments import __version__

        return emit(f"hermes-environments {__version__}\n")
    subcommand = _subcommand(argv[0])
    arguments = scan_for(cls, argv[1:])
    if arguments.help:
        return emit(cli_help.page(cls, subcommand, program, arguments.configs, arguments.flags))
    set_up_logging(arguments.log_level)
    note_odd_options(arguments)
    effective = resolve(cls, subcommand, config=arguments.configs, flags=arguments.flags)
    if arguments.print_config:
        from environments.configuration.rendering import render

        return emit(render(effective))
    return _run(cls, subcommand, effective)


def note_odd_options(arguments: Arguments) -> None:
    """Warn of options without an effect, and of those that were given twice."""
    for option in arguments.ignored:
        _log.warning("%s has no effect here", option)
    last: dict[tuple[str, str], str] = {}
    for section, name, text in arguments.flags:
        earlier = last.get((section, name), text)
        if earlier != text:
            _log.warning("--%s.%s is given twice, and the last one counts", section, name)
        last[section, name] = text


def _run(cls: RunnableEnvironment, subcommand: Subcommand, effective: Effective) -> int:
    result = cls.run_command(subcommand, effective)
    if inspect.iscoroutine(result):
        import asyncio

        result = asyncio.run(result)
    return int(result or 0)


def _subcommand(word: str) -> Subcommand:
    if word in SUBCOMMANDS:
        return word
    if word.startswith("-"):
        raise ConfigError(f"the subcommand comes first: one of {', '.join(SUBCOMMANDS)}, then {word}")
    raise ConfigError(f"unknown subcommand {word!r}{suggestion(word, SUBCOMMANDS)}")


# --- scanning ---------------------------------------------------------------------------------------------


def scan_for(cls: RunnableEnvironment, argv: list[str]) -> Arguments:
    """Read the options of an environment class."""
    env, servers = initial(cls)
    booleans: dict[str, bool] = {}
    for section, model in (("env", env.model), ("openai", servers[0].model)):
        booleans |= {f"--{section}.{name}": is_boolean(f) for name, f in model.model_fields.items()}
    return scan(argv, booleans)


def scan(argv: Sequence[str], fields: dict[str, bool]) -> Arguments:
    """Read the options. ``fields`` has every ``--section.field`` and whether it is a boolean.

    Raises ConfigError with one line for each option that cannot be read.
    """
    found, problems = Arguments(), list[str]()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        option, equals, text = word.partition("=")
        if not word.startswith("-") or word == "-":
            problems.append(_stray(word, fields))
            continue
        if option not in fields and option not in _GENERAL:
            problems.append(_unknown(option, fields))
            if not equals and rest and not _is_option(rest[0]):
                rest.pop(0)
            continue
        takes_value = fields.get(option) is not None or _GENERAL[option]
        value: str | None = text if equals else None
        if takes_value and not equals and rest and not _is_option(rest[0]):
            value = rest.pop(0)
        if value is None and fields.get(option):
            value = "true"
        if value is None and takes_value and option not in IGNORED_OPTIONS:
            problems.append(f"{option} needs a value (write {option}=VALUE if it begins with a dash)")
        elif value is not None and not takes_value:
            problems.append(f"{option} takes no value")
        else:
            _store(found, option, value or "", problems)
    if problems and not found.help:
        raise ConfigError("\n".join(problems))
    return found


_GENERAL = {
    "-h": False,
    "--help": False,
    "--print-config": False,
    "--config": True,
    "--log-level": True,
    **dict.fromkeys(IGNORED_OPTIONS, True),
}
"""Options beside the fields, and whether they take a value."""


def _is_option(word: str) -> bool:
    """Whether a word is an option rather than a value; ``-1.5e3`` and ``-`` are values."""
    return word.startswith("--") or word == "-h"


def _store(found: Arguments, option: str, value: str, problems: list[str]) -> None:
    if option in ("-h", "--help"):
        found.help = True
    elif option == "--print-config":
        found.print_config = True
    elif option == "--config":
        found.configs.append(value)
    elif option == "--log-level":
        found.log_level = value.upper()
        if found.log_level not in _LEVELS:
            problems.append(f"--log-level: expected one of {'|'.join(_LEVELS)}, got {value!r}")
    elif option in IGNORED_OPTIONS:
        found.ignored.append(option)
    else:
        section, _, name = option[2:].partition(".")
        found.flags.append(Flag(cast(Any, section), name, value))


def _unknown(option: str, fields: dict[str, bool]) -> str:
    name = option.lstrip("-").replace("-", "_")
    same = [f for f in fields if f.partition(".")[2] == name or f == f"--{name}"]
    if same:
        return f"unknown option {option}; did you mean {', '.join(same)}?"
    section, dot, rest = option.partition(".")
    names = [f.partition(".")[2] for f in fields if f.startswith(f"{section}.")] if dot else []
    known = names or [*fields, *(o for o in _GENERAL if o not in IGNORED_OPTIONS)]
    near = difflib.get_close_matches(rest if names else option, known, n=3)
    if not near:
        return f"unknown option {option}; --help lists them all"
    shown = [f"{section}.{name}" for name in near] if names else near
    return f"unknown option {option}; did you mean {', '.join(shown)}?"


def _stray(word: str, fields: dict[str, bool]) -> str:
    name, equals, value = word.partition("=")
    candidates = [f for f in fields if f.removeprefix("--") == name or f.partition(".")[2] == name]
    if equals and candidates:
        return f"unexpected argument {word!r}; did you mean {candidates[0]} {value}?"
    return f'unexpected argument {word!r}; options begin with --, lists are written a,b or \'["a", "b"]\''
