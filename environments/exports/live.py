"""Groups of candidates from a trajectory API, without taking anything from a trainer.

Where a trainer is there, its groups are read along, out of our server's ``GET /groups``, which changes
nothing. Where none is, the export is the trainer: it registers, fetches batches and acknowledges each
once its rows are written. Nothing is ever reset.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from environments.errors import ConfigError, HermesError
from environments.exports.candidates import Candidate, candidates_of
from environments.results.rows import rows_of_record
from environments.trajectory_api.client import Rejected, Reply, TrajectoryClient, Unreachable

JSON = dict[str, Any]

PROJECT = "hermes-env-export"
"""W&B project and group under which an export registers as a trainer."""

POLL = 1.0
PATIENCE = 60.0
"""Seconds without an answer after which an export gives up; it goes on where it is started again."""


class LiveSource:
    """An async iterator of groups. ``wait`` goes on for new groups where all that are there were read.

    ``tell`` gets what the user should know. Raises ``ConfigError`` and ``HermesError``.
    """

    def __init__(
        self,
        client: TrajectoryClient,
        *,
        wait: bool,
        batch_size: int,
        schemas: list[JSON] | None,
        tell: Callable[[str], None],
    ) -> None:
        self.client, self.wait, self.batch_size, self.schemas = client, wait, batch_size, schemas
        self.tell = tell
        self._groups = itertools.count(1)

    async def groups(self) -> AsyncGenerator[list[Candidate], None]:
        """The groups, as long as there are any or ``wait`` is set."""
        info = await self._ask("GET", "/wandb_info")
        project = info.value.get("project")
        if project is None and not self.wait:
            raise ConfigError(
                f"no trainer has registered at {self.client.url}, so nothing is there to read; with "
                "--rows N or --follow the export is the trainer itself"
            )
        if project not in (None, PROJECT) and not info.ours:
            raise ConfigError(
                f"{self.client.url} is an original run-api that serves a trainer ({project}): it can "
                "only give groups by taking them from it. Export from the environment's own files"
            )
        beside = project is not None and (project != PROJECT or not self.wait)
        read = self._read_along() if beside and info.ours else self._train(ours=info.ours)
        async for group in read:
            yield group

    async def _read_along(self) -> AsyncGenerator[list[Candidate], None]:
        last = 0
        while True:
            reply = await self._ask("GET", f"/groups?after={last}&limit=8")
            groups = reply.objects("groups")
            for group in groups:
                yield self._candidates(group)
            last = int(reply.number("last"))
            if groups:
                continue
            if not self.wait:
                return
            await asyncio.sleep(POLL)

    async def _train(self, *, ours: bool) -> AsyncGenerator[list[Candidate], None]:
        known = int((await self._ask("GET", "/info")).number("batch_size"))
        registration = {
            "wandb_group": PROJECT,
            "wandb_project": PROJECT,
            "batch_size": known if known > 0 else self.batch_size,  # another size would begin anew
            "max_token_len": 1 << 30,
            "checkpoint_dir": "",
            "save_checkpoint_interval": 0,
            "starting_step": 0,
            "num_steps": 0,
        }
        await self._ask("POST", "/register", registration)
        if self.wait:
            self.tell(f"registered as the trainer at {self.client.url}; environments can begin to serve")
        query = "?consumer=export" if ours else ""
        acknowledge = ""
        while True:
            reply = await self._ask("GET", f"/batch{query}{acknowledge}")
            acknowledge = ""
            batch = reply.objects("batch")
            if batch:
                for group in batch:
                    yield self._candidates(group)
                if ours:  # the rows are written
                    acknowledge = f"&acknowledge={int(reply.number('batch_id'))}"
            elif not self.wait:
                return
            else:
                await asyncio.sleep(POLL)

    async def _ask(self, method: str, path: str, body: Any = None) -> Reply:
        loop = asyncio.get_running_loop()
        deadline, told = loop.time() + PATIENCE, False
        while True:
            try:
                if method == "POST":
                    return await self.client.post(path, body)
                return await self.client.get(path)
            except Unreachable as error:
                if loop.time() > deadline:
                    raise HermesError(f"{error}; the same command with --append goes on") from error
                if not told:
                    told = True
                    self.tell(f"{error}; trying for {PATIENCE:g} s")
            except Rejected as rejected:
                if rejected.status in (401, 403):
                    raise ConfigError(
                        f"{self.client.url} wants a token; set TRAJECTORY_API_TOKEN"
                    ) from rejected
                if rejected.status == 404:
                    raise ConfigError(
                        f"{self.client.url}{path} does not exist: is this a trajectory API?"
                    ) from rejected
                if not rejected.temporary or loop.time() > deadline:
                    raise HermesError(f"{self.client.url}: {rejected}") from rejected
            await asyncio.sleep(POLL)

    def _candidates(self, group: JSON) -> list[Candidate]:
        """The candidates of a group as it was sent; its tool schemas ride along as ``tools``."""
        given = group.get("tools")
        tools = [tool for tool in given if isinstance(tool, dict)] if isinstance(given, list) else None
        number = next(self._groups)
        found = []
        for row in rows_of_record(group, itertools.count(1), itertools.repeat(number)):
            for candidate in candidates_of(row, {}, by_item=False):
                found.append(_named(candidate, group, tools or self.schemas))
        return found


def _named(candidate: Candidate, group: JSON, tools: list[JSON] | None) -> Candidate:
    return replace(candidate, tools=tools, item=candidate.item or str(group.get("item_id") or ""))
