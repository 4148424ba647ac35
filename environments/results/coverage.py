"""Which items an evaluation's output is about, so that everything that reads it counts the same ones.

``items.json`` beside the attempts names, for each evaluation, the items of the dataset as it was last seen
and how many attempts each should have. The results are all attempts at these: a later run of fewer items
adds to them and takes none away, and attempts at items that the dataset has no more are left out. They
stay in ``attempts.jsonl``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import orjson

from environments.cli_output import plural
from environments.records import Attempt
from environments.results.durable import write_atomically

logger = logging.getLogger(__name__)

ITEMS_FILE = "items.json"
_MOST_NAMED = 10


class Coverage:
    """The items of an output, by evaluation. ``read`` gives those that were written down."""

    def __init__(self, evaluations: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.evaluations = {name: dict(items) for name, items in (evaluations or {}).items()}
        """For each evaluation (the prefix of its groups) how many attempts each item should have."""

    @classmethod
    def read(cls, directory: Path) -> Coverage:
        """What stands in a run's directory; nothing where there is no such file, or it is damaged."""
        path = directory / ITEMS_FILE
        try:
            found = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except (OSError, orjson.JSONDecodeError) as error:
            logger.warning("%s cannot be read, so attempts at all items count: %s", path, error)
            return cls()
        evaluations = found if isinstance(found, dict) else {}
        return cls(
            {
                name: {item: int(n) for item, n in items.items() if isinstance(n, int)}
                for name, items in evaluations.items()
                if isinstance(items, dict)
            }
        )

    def write(self, directory: Path) -> None:
        """Write it into a run's directory. Raises ``StoreError``."""
        data = orjson.dumps(self.evaluations, option=orjson.OPT_INDENT_2)
        write_atomically(directory / ITEMS_FILE, data + b"\n")

    def has(self, attempt: Attempt) -> bool:
        """Whether an attempt is at an item that the dataset still has; true where nothing is known."""
        evaluation = attempt.group_id.removesuffix(f"/{attempt.item_id}")
        items = self.evaluations.get(evaluation)
        return items is None or evaluation == attempt.group_id or attempt.item_id in items


def split(attempts: Iterable[Attempt], coverage: Coverage) -> tuple[list[Attempt], list[str]]:
    """Attempts that count, and the ids of items whose attempts do not, as the dataset has them no more."""
    kept: list[Attempt] = []
    gone: dict[str, None] = {}
    for attempt in attempts:
        if coverage.has(attempt):
            kept.append(attempt)
        else:
            gone[attempt.item_id] = None
    return kept, list(gone)


def left_out(gone: Collection[str]) -> str:
    """What is said of attempts at items that are gone."""
    return f"left out: attempts at {named(gone)}, which the dataset has no more"


def named(items: Collection[str]) -> str:
    """A number of items with the names of the first.

    >>> named(["a", "b"])
    '2 items (a, b)'
    """
    shown = ", ".join(list(items)[:_MOST_NAMED])
    more = ", ..." if len(items) > _MOST_NAMED else ""
    return f"{plural(len(items), 'item')} ({shown}{more})"
