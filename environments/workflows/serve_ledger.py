"""What ``serve`` keeps on disk: which draws are done with, and the groups that wait to be sent.

::

    serve.json           the training run at hand, and the step it has reached
    groups-N.jsonl       one line per draw that is done with in training run N: sent, or why not; before
                         it, where only some of a group's sequences are sent as they are, how many are not
    spool-N/KEY.json     groups of training run N that the API has not confirmed

A group is in the spool before it is sent and leaves it when the API has confirmed it, so neither a
crash of ours nor one of the API loses it.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from environments.results.durable import DurableFile, encode, read_lines, write_atomically

logger = logging.getLogger(__name__)

SENT = "sent"


@dataclass(slots=True)
class Session:
    """One training run as this environment has seen it. ``api_run`` names it on the server."""

    number: int
    api_run: str
    step: int = 0
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names this environment to the server, also after a restart."""


@dataclass(slots=True)
class Spooled:
    """A group that waits to be sent."""

    key: str
    draw: int
    members: int
    path: Path


class Ledger:
    """Open with the run's directory; ``begin`` names the training run; ``close`` at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.done: set[int] = set()
        """Draws that are done with."""
        self.outcomes: Counter[str] = Counter()
        """How many groups of this training run were sent, or not sent for which reason."""
        self._rows: dict[tuple[int, int], dict[str, int]] = {}
        """By draw and part, the sequences that are not sent as they are."""
        self.session: Session | None = None
        self._file: DurableFile | None = None

    def begin(self, api_run: str, step: int) -> list[Spooled]:
        """Go on with the training run of last time, or begin another; returns what waits to be sent.

        It is another one where the server says so, or where its step went back.
        """
        self.close()
        last = self._last()
        if last is not None and last.api_run == api_run and step >= last.step:
            self.session = replace(last, step=step)
        else:
            instance = {"instance": last.instance} if last else {}
            self.session = Session(last.number + 1 if last else 1, api_run, step, **instance)
            self._report_left_over(last)
        self._save()
        self.done, self.outcomes, self._rows = set(), Counter(), {}
        path = self.directory / f"groups-{self.session.number}.jsonl"
        if path.exists():
            for _, line in read_lines(path):
                entry = orjson.loads(line)
                if "outcome" not in entry:
                    self._rows[entry["draw"], entry["part"]] = entry["rows"]
                    continue
                self.done.add(entry["draw"])
                self.outcomes[entry["outcome"]] += 1
        self._file = DurableFile(path)
        self._spool.mkdir(parents=True, exist_ok=True)
        return self._spooled()

    @property
    def _spool(self) -> Path:
        assert self.session is not None
        return self.directory / f"spool-{self.session.number}"

    def reached(self, step: int) -> None:
        """The trainer has come to a step."""
        if self.session is not None and step != self.session.step:
            self.session.step = step
            self._save()

    def spool(self, key: str, draw: int, members: int, body: bytes) -> Spooled:
        """Keep a group until it is confirmed. Blocks; for a worker thread."""
        name = f"{draw:08d}-{key.rpartition('/')[2]}-{members}.json"
        path = self._spool / name
        write_atomically(path, body)
        return Spooled(key, draw, members, path)

    def settle(self, draw: int, outcome: str, **details: Any) -> None:
        """A group of a draw is done with: ``sent``, or the reason why it was not."""
        assert self._file is not None
        entry = {"draw": draw, "outcome": outcome, **details}
        self.done.add(draw)
        self.outcomes[outcome] += 1
        self._file.append(encode(entry))

    def note_rows(self, draw: int, part: int, rows: dict[str, int]) -> None:
        """Part of a group that is to be sent has sequences that are left out or cut: how many, by reason."""
        assert self._file is not None
        self._rows[draw, part] = rows
        self._file.append(encode({"draw": draw, "part": part, "rows": rows}))

    @property
    def rows(self) -> Counter[str]:
        """How many sequences of this training run were left out of their groups, or cut, for which reason."""
        total: Counter[str] = Counter()
        for rows in self._rows.values():
            total.update(rows)
        return total

    def key(self, draw: int, part: int) -> str:
        """The name under which the API takes a group only once."""
        assert self.session is not None
        return f"{self.session.instance}/{self.session.number}/{draw}/{part}"

    def close(self) -> None:
        """Write everything to the disk. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def instance(self) -> str:
        """The name of this environment's directory on the server; made when first asked for."""
        last = self.session or self._last()
        if last is None:
            last = self.session = Session(0, "")
            self._save()
        return last.instance

    def _last(self) -> Session | None:
        path = self.directory / "serve.json"
        try:
            return Session(**orjson.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (orjson.JSONDecodeError, TypeError):
            logger.warning("%s is broken; a new training run begins", path)
            return None

    def _save(self) -> None:
        assert self.session is not None
        write_atomically(self.directory / "serve.json", orjson.dumps(asdict(self.session)))

    def _spooled(self) -> list[Spooled]:
        found = []
        for path in sorted(self._spool.glob("*.json")):
            draw, part, members = path.stem.split("-")
            found.append(Spooled(self.key(int(draw), int(part)), int(draw), int(members), path))
        return found

    def _report_left_over(self, last: Session | None) -> None:
        if last is None:
            return
        left = len(list((self.directory / f"spool-{last.number}").glob("*.json")))
        if left:
            logger.warning(
                "%d groups of an earlier training run were never sent; they stay in %s",
                left,
                self.directory / f"spool-{last.number}",
            )
