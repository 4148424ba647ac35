"""``hermes-env export sft|dpo``: rollouts as training data for others."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from environments.cli_output import emit, plural, report, tell
from environments.errors import ConfigError, HermesError
from environments.exports import formats
from environments.exports.candidates import Candidate
from environments.exports.counting import Counter, estimate, with_tokenizer
from environments.exports.files import read_groups, read_schemas
from environments.exports.output import Output
from environments.exports.selection import Selection, Wish

JSON = dict[str, Any]

LONGEST_REPLY = 2 << 30
"""Bytes of a batch or of several groups."""

_DESCRIPTION = """\
Write rollouts as rows for supervised fine-tuning (sft) or preference training (dpo).

SOURCE is a file of groups that 'process' or 'serve' wrote, a run directory, samples of an
evaluation, or the address of a trajectory API (http://localhost:8000), from which nothing is
taken away: beside a trainer groups are read along, without one the export is the trainer.
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="hermes-env export",
        epilog="'hermes-env export harbor RUN JOB' writes an evaluation as a job directory of Harbor.",
        allow_abbrev=False,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("kind", choices=("sft", "dpo"), help="rows for fine-tuning, or pairs")
    options.add_argument("source", metavar="SOURCE", help="file, directory or URL")
    options.add_argument("output", metavar="OUTPUT", type=Path, help="JSONL file to write")
    add = options.add_argument_group("form").add_argument
    add("--format", choices=("chat", "sharegpt"), default="chat", help="form of the rows (default: chat)")
    add("--arguments", choices=("object", "text"), default="object", help="tool arguments of chat rows")
    add("--tools", type=Path, metavar="FILE", help="JSON list of tool schemas, where the source has none")
    add("--max-tokens", type=_positive, metavar="N", help="longest row; turns in the middle are left out")
    add("--tokenizer", metavar="NAME", help="count with its chat template (default: an estimate)")
    add = options.add_argument_group("choice").add_argument
    add("--min-score", type=_bound, metavar="S", help="lowest score (default: sft above 0, dpo any)")
    add("--max-score", type=_bound, metavar="S", help="highest score, for sft")
    add("--top", type=_positive, metavar="N", help="best rollouts of each group, for sft (default: all)")
    add("--pairs", type=_positive, default=1, metavar="N", help="most pairs of a group (default: 1)")
    add("--min-difference", type=_bound, default=0.0, metavar="D", help="smallest difference within a pair")
    add("--endings", metavar="A,B", help="only rollouts that ended so, such as stopped")
    add("--outcomes", default="scored", metavar="A,B", help="outcomes that are taken (default: scored)")
    add(
        "--rows", type=_positive, metavar="N", help="stop after so many rows; an API is waited for until then"
    )
    add("--follow", action="store_true", help="go on for new groups of an API until Ctrl-C")
    add = options.add_argument_group("output").add_argument
    add("--append", action="store_true", help="add to OUTPUT; rows that are in it are not written again")
    add("--overwrite", action="store_true", help="replace OUTPUT")
    add("--batch-size", type=_positive, default=16, metavar="N", help="sequences per fetch, as a trainer")
    return options


def main(argv: Sequence[str]) -> int:
    """Run an export; returns the exit code: 0 where rows were written or known, 1 where there were none."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        return _Export(arguments).run()
    except HermesError as error:
        return report(error)


@dataclass
class _Export:
    arguments: argparse.Namespace

    def run(self) -> int:
        a = self.arguments
        if a.append and a.overwrite:
            raise ConfigError("--append and --overwrite exclude each other")
        live = a.source.startswith(("http://", "https://"))
        if not live and a.output.exists() and Path(a.source).exists() and a.output.samefile(a.source):
            raise ConfigError("SOURCE and OUTPUT are the same file")
        self.schemas = read_schemas(a.tools) if a.tools else None
        self.selection = Selection(self._wish(), self._counter())
        groups = None if live else read_groups(Path(a.source), self.schemas)
        mode = "append" if a.append else "overwrite" if a.overwrite else "new"
        with Output(a.output, mode, self._columns()) as self.output:
            try:
                if groups is None:
                    asyncio.run(self._take_live())
                else:
                    self._take_all(groups)
            except KeyboardInterrupt:
                tell("interrupted; the same command with --append goes on\n")
                emit(self._summary())
                raise
        emit(self._summary())
        return 0 if self.output.rows or self.output.duplicates else 1

    def _wish(self) -> Wish:
        from environments.records import Ending, Outcome

        a = self.arguments
        if a.min_score is not None and a.max_score is not None and a.min_score > a.max_score:
            raise ConfigError(f"nothing lies between --min-score {a.min_score} and --max-score {a.max_score}")
        return Wish(
            min_score=a.min_score,
            max_score=a.max_score,
            endings=_names(a.endings, "--endings", Ending),
            outcomes=_names(a.outcomes, "--outcomes", Outcome),
            top=a.top,
            pairs=a.pairs,
            min_difference=a.min_difference,
            max_tokens=a.max_tokens,
        )

    def _counter(self) -> Counter:
        if self.arguments.tokenizer and self.arguments.max_tokens is None:
            raise ConfigError("--tokenizer counts for --max-tokens, which is not given")
        return with_tokenizer(self.arguments.tokenizer) if self.arguments.tokenizer else estimate

    def _columns(self) -> tuple[str, ...]:
        chat = self.arguments.format == "chat"
        if self.arguments.kind == "sft":
            return ("messages",) if chat else ("conversations", "prompt_index")
        return ("prompt" if chat else "conversations", "chosen", "rejected")

    def _take_all(self, groups: Iterator[list[Candidate]]) -> None:
        for group in groups:
            if self._take(group):
                return

    async def _take_live(self) -> None:
        from environments.exports.live import LiveSource
        from environments.trajectory_api.client import TrajectoryClient

        a = self.arguments
        async with TrajectoryClient(a.source, longest_reply=LONGEST_REPLY) as client:
            source = LiveSource(
                client,
                wait=a.follow or a.rows is not None,
                batch_size=a.batch_size,
                schemas=self.schemas,
                tell=lambda text: tell(f"{text}\n"),
            )
            async with aclosing(source.groups()) as groups:
                async for group in groups:
                    if self._take(group):
                        return

    def _take(self, group: list[Candidate]) -> bool:
        """Write the rows of a group; whether there are enough now."""
        for row in self._rows(group):
            self.output.write(row)
            wanted = self.arguments.rows
            if wanted is not None and self.output.rows + self.output.known >= wanted:
                return True
        return False

    def _rows(self, group: list[Candidate]) -> Iterator[JSON]:
        chat, text = self.arguments.format == "chat", self.arguments.arguments == "text"
        if self.arguments.kind == "sft":
            for candidate in self.selection.for_tuning(group):
                if chat:
                    yield formats.chat_sft(candidate, arguments_as_text=text)
                else:
                    yield formats.sharegpt_sft(candidate, self.output.rows + self.output.known)
            return
        convert = partial(formats.chat_dpo, arguments_as_text=text) if chat else formats.sharegpt_dpo
        for prompt, better, worse in self.selection.pairs(group):
            yield convert(prompt, better, worse)

    def _summary(self) -> str:
        output, selection = self.output, self.selection
        text = f"{plural(output.rows, 'row')} written to {output.path}"
        if output.known:
            text += f", beside {output.known} that were there"
        elif output.kept:
            text += ", which is as it was"
        left = {**selection.left_out, "duplicate": output.duplicates}
        reasons = [f"{count} {reason}" for reason, count in left.items() if count]
        lines = [text, *([f"left out: {'; '.join(reasons)}"] if reasons else [])]
        if selection.compressed:
            lines.append(f"{selection.compressed} had turns in the middle replaced by a note")
        if self.arguments.max_tokens and not self.arguments.tokenizer:
            lines.append("lengths are estimated (3 bytes per token); --tokenizer counts them")
        return "\n".join(lines) + "\n"


def _bound(text: str) -> float:
    number = _number(text)
    if math.isnan(number):
        raise argparse.ArgumentTypeError("a number is needed")
    return number


def _positive(text: str) -> int:
    number = _number(text)
    if number < 1 or not number.is_integer():
        raise argparse.ArgumentTypeError("a whole number is needed, at least 1")
    return int(number)


def _number(text: str) -> float:
    from environments.real_numbers import plain_number

    try:
        return plain_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _names(text: str | None, option: str, kind: Any) -> frozenset[str]:
    from environments.errors import UnknownName

    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    known = [str(member) for member in kind]
    for name in names:
        if name not in known:
            raise UnknownName(option.removeprefix("--").removesuffix("s"), name, known, option)
    return frozenset(names)
