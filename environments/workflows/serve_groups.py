"""One group of a training, from the rollout to its account: sent, or the reason why not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.attempt_scope import GroupScope
from environments.errors import ConfigError, HermesError, RunAborted, UserCodeError
from environments.inference.token_endpoint import TOKEN_SERVERS
from environments.outcomes import is_fatal, one_line
from environments.records import ScoredDataGroup
from environments.run import Run
from environments.scheduler import backoff, run_group
from environments.workflows.serve_ledger import SENT, Ledger, Spooled
from environments.workflows.serve_link import Link
from environments.workflows.serve_metrics import ServeMetrics
from environments.workflows.serve_sending import Sender
from environments.workflows.serve_wire import (
    CUT_ROWS,
    Outgoing,
    has_placeholders,
    outgoing,
    without_placeholders,
)

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.results.groups import GroupFile

FAILED_IN_A_ROW = 20
"""Groups without anything to send, one after the other, that end the run."""

INNOCENT = frozenset({"equal_scores", "postprocessed_away", "other_training_run", "training_over"})
"""Reasons that say nothing against the next group."""

Refusal = tuple[str, str]
"""Why a group is not sent: the reason that is counted, and its explanation."""


class Groups:
    """Rolls groups out, spools them and keeps the accounts."""

    def __init__(self, environment: BaseEnv, run: Run, link: Link, ledger: Ledger) -> None:
        self.environment, self.run, self.link, self.ledger = environment, run, link, ledger
        self.sender = Sender(link, self._settled)
        self.metrics = ServeMetrics(environment.config.max_token_length)
        self.rolling: set[int] = set()
        """Draws that are being rolled out."""
        self.spooled: set[int] = set()
        """Draws that wait to be sent."""
        self.pause_until = 0.0
        """Back-off after failures: no group is begun before this time (monotonic)."""
        self._begun_at: dict[str, tuple[int, float]] = {}
        self._failed_in_a_row = 0
        self._rows_told: set[str] = set()
        self._schemas: dict[str, Any] = {}
        self._file: GroupFile | None = None

    def write_to(self, path: Path) -> None:
        """Write each group that is sent to a JSONL file as well."""
        from environments.results.groups import GroupFile

        self._file = GroupFile(path, resume=self.environment.config.resume)

    @property
    def underway(self) -> int:
        """Sequences being rolled out or waiting to be sent."""
        return len(self.rolling) * int(self.environment.config.group_size) + self.sender.waiting

    def begin_session(self, waiting: list[Spooled]) -> None:
        """Another training run has begun: what waited is not for it; ``waiting`` is."""
        self.spooled = {spooled.draw for spooled in waiting}
        for spooled in waiting:
            self.sender.add(spooled)

    def give_up(self) -> None:
        """The training run is over for the groups that wait."""
        for spooled in self.sender.clear():
            self._settled(spooled, "other_training_run", "another training run has begun")

    def training_over(self) -> None:
        """What is still being rolled out comes too late."""
        for draw in sorted(self.rolling):
            self.not_sent(draw, "training_over", "the training had made its steps")

    # One group.

    async def roll_out(self, group: GroupScope) -> None:
        """Everything that happens to one group until it waits to be sent."""
        started, step = time.monotonic(), self.link.demand.step
        draw, session = group.draw, self.ledger.session
        assert draw is not None
        self.rolling.add(draw)
        made = 0
        try:
            parts = await self._data(group)
            if self.ledger.session is not session:
                self.not_sent(draw, "other_training_run", "another training run has begun")
                return
            for number, part in enumerate(parts or [None]):
                made += await self._take(group, number, part, step)
        finally:
            self.rolling.discard(draw)
        self.metrics.group_ended(time.monotonic() - started, succeeded=bool(made))
        self.metrics.attempts_ended(group.attempts.values())
        await self.environment.after_group(group)

    async def _data(self, group: GroupScope) -> list[ScoredDataGroup | None]:
        """The group's data. None after a failure, which is noted in the group's slots."""
        limit = self.environment.config.worker_timeout
        deadline = asyncio.timeout(limit if limit > 0 else None)
        try:
            async with deadline:
                data, backlog = await run_group(self.environment, group)
        except HermesError as error:
            if error.fatal:
                raise
            group.slots["failure"] = ("environment_error", one_line(error))
            return []
        except Exception as error:  # the border to a collect_trajectories of the user's own
            if is_fatal(error):
                raise RunAborted(one_line(error)) from error
            if deadline.expired():
                group.slots["failure"] = ("worker_timeout", f"took longer than worker_timeout, {limit:g} s")
            else:
                group.slots["failure"] = ("environment_error", f"{type(error).__name__}: {one_line(error)}")
            return []
        self.run.backlog.extend(backlog or [])
        return list(data) if isinstance(data, list) else [data]

    async def _take(self, group: GroupScope, number: int, data: ScoredDataGroup | None, step: int) -> bool:
        """Spool one part of a group; False where there is nothing to send."""
        draw = group.draw
        assert draw is not None
        refusal = _failure(group, data)
        if refusal is None and data is not None:
            data = await self.environment.postprocess_histories(data)
            refusal = None if data else ("postprocessed_away", "postprocess_histories returned nothing")
        if refusal is None and data is not None:
            whole, data = len(data["tokens"]), self._real(data)
            left_out = {"row_without_tokens": whole - len(data["tokens"])}
            refusal = self._unfit(data) or await self._spool(draw, number, data, step, left_out)
        if refusal is not None or data is None:
            self.not_sent(draw, *(refusal or ("no_scored_attempt", "no data")))
            return False
        await self.environment.add_rollouts_for_wandb(data, group.item)
        if self._file is not None:
            await asyncio.to_thread(self._file.append, data, draw)
        return True

    def _unfit(self, data: ScoredDataGroup) -> Refusal | None:
        scores = data["scores"]
        config = self.environment.config
        if not data["tokens"]:
            return "no_tokens", "no rollout has a reply of the model"
        if config.ensure_scores_are_not_same and len(scores) > 1 and len(set(scores)) == 1:
            return "equal_scores", f"all scores are {scores[0]:g}"
        return None

    def _real(self, data: ScoredDataGroup) -> ScoredDataGroup:
        """The group without placeholders, which a trainer would take for tokens. Raises ``ConfigError``
        where the servers never give any."""
        if self.environment.config.allow_placeholder_tokens or not has_placeholders(data):
            return data
        kind = self.environment.server_configs[0].server_type
        if kind not in TOKEN_SERVERS:
            raise no_tokens(f"--openai.server_type {kind}")
        return without_placeholders(data)

    async def _spool(
        self, draw: int, number: int, data: ScoredDataGroup, step: int, left_out: dict[str, int]
    ) -> Refusal | None:
        training = self.link.training
        assert training is not None
        truncate = self.environment.config.long_sequences == "truncate"
        try:
            group = outgoing(
                data,
                rollout_ids=training.rollout_ids,
                max_token_length=training.max_token_length,
                generation_params=self._generation_parameters(),
                policy_version=step,
                truncate=truncate,
                tools=await asyncio.to_thread(self._tools, data),
            )
        except UserCodeError as error:
            return "environment_error", one_line(error)
        if group is None:
            return "too_long", _too_long(training.max_token_length, truncate)
        self._note_rows(draw, number, left_out | group.notes)
        self.metrics.group_made(group.trained_tokens)
        key = self.ledger.key(draw, number)
        spooled = await asyncio.to_thread(self._write, key, draw, group)
        self.spooled.add(draw)
        self._begun_at[key] = (step, time.monotonic())
        self._failed_in_a_row = 0
        self.sender.add(spooled)
        return None

    def _note_rows(self, draw: int, number: int, notes: dict[str, int]) -> None:
        """Account for the sequences of a group that are left out or cut; told once for each reason."""
        notes = {reason: count for reason, count in notes.items() if count}
        if not notes:
            return
        self.ledger.note_rows(draw, number, notes)
        for reason, count in notes.items():
            self.metrics.not_sent(reason, count)
            if reason in CUT_ROWS and reason not in self._rows_told:
                self._rows_told.add(reason)
                self.run.note(
                    f"group {draw}: {count} sequences {CUT_ROWS[reason]}; such are counted at the end"
                )

    def _tools(self, data: ScoredDataGroup) -> list[dict[str, Any]] | None:
        """Tool schemas that a group was rolled out with."""
        from environments.results.store import read_tools

        store = self.run.store
        metadata: Any = (data.get("metadata") or [{}])[0]
        key = (metadata.get("provenance") or {}).get("tools_hash") if data.get("messages") else None
        if not key or store is None:
            return None
        if key not in self._schemas:
            self._schemas = read_tools(store.directory)
        return self._schemas.get(key)

    def _write(self, key: str, draw: int, group: Outgoing) -> Spooled:
        from environments.results.durable import encode

        return self.ledger.spool(key, draw, group.members, encode(group.body))

    def _generation_parameters(self) -> dict[str, Any] | None:
        parameters = self.environment.sampling_parameters()
        return {k: v for k, v in parameters.items() if isinstance(v, int | float | str)} or None

    # Accounts.

    def not_sent(self, draw: int, reason: str, text: str) -> None:
        """Account for a group that is not sent, and slow down where the next may fare the same."""
        self.ledger.settle(draw, reason, text=text)
        self.metrics.not_sent(reason)
        self.run.note(f"group {draw} was not sent: {text}")
        if reason in INNOCENT:
            return
        self._failed_in_a_row += 1
        if reason != "too_long":  # waiting would make no sequence shorter
            self.pause_until = time.monotonic() + backoff(
                self.environment.config.retry_backoff, self._failed_in_a_row - 1
            )
        if self._failed_in_a_row >= FAILED_IN_A_ROW:
            raise RunAborted(
                f"{self._failed_in_a_row} groups in a row gave nothing to send; the last one: {text}"
            )

    def _settled(self, spooled: Spooled, outcome: str, text: str) -> None:
        """What became of a group that waited to be sent."""
        self.spooled.discard(spooled.draw)
        step = self.link.demand.step
        begun, ready = self._begun_at.pop(spooled.key, (step, time.monotonic()))
        if outcome == SENT:
            self.ledger.settle(spooled.draw, SENT, key=spooled.key, step=step)
            self.metrics.group_sent(step - begun, time.monotonic() - ready)
            spooled.path.unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            spooled.path.rename(spooled.path.with_suffix(f".{outcome}"))
        self.not_sent(spooled.draw, outcome, text)

    async def close(self) -> None:
        """End sending; what is not confirmed stays on disk."""
        await self.sender.stop()
        if self._file is not None:
            self._file.close()


def _too_long(limit: int, truncate: bool) -> str:
    """Why nothing of a group is left, and what could be done about it."""
    if truncate:
        return f"no reply ends within the {limit} tokens that the trainer takes"
    return (
        f"every sequence is longer than the {limit} tokens that the trainer takes (--env.long_sequences "
        "truncate sends what fits)"
    )


def no_tokens(what: str) -> ConfigError:
    """The error of a training that would learn from placeholders."""
    return ConfigError(
        f"{what} gives no token ids, so a trainer would learn from placeholders; use --openai.server_type "
        "vllm or sglang, or accept it with --env.allow_placeholder_tokens true"
    )


def _failure(group: GroupScope, data: ScoredDataGroup | None) -> Refusal | None:
    if data is not None and data.get("scores"):
        return None
    failed = [attempt for attempt in group.attempts.values() if not attempt.valid]
    kinds = ", ".join(sorted({str(attempt.outcome) for attempt in failed}))
    reason: Refusal = group.slots.get(
        "failure", ("no_scored_attempt", f"no attempt was scored{f' ({kinds})' if kinds else ''}")
    )
    return reason
