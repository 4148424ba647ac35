"""The Atropos layer: model servers, scheduling, logging, and the command line with three workflows.

Names and signatures are those of Atropos' ``BaseEnv``. A subclass defines where items come from
(``get_next_item``) and what a rollout is (``collect_trajectory``); ``HermesAgentBaseEnv`` does the
latter for agents with tools.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from environments.config import APIServerConfig, BaseEnvConfig, EvalHandlingEnum, ServerBaseline
from environments.errors import UserCodeError
from environments.records import Item, ScoredDataGroup, ScoredDataItem
from environments.run_logging import ExampleRollouts

if TYPE_CHECKING:
    from environments.attempt_scope import AttemptScope, GroupScope
    from environments.inference.server_manager import ServerManager
    from environments.rescoring import Rescoring
    from environments.run import Run, RunReport

__all__ = [
    "APIServerConfig",
    "BaseEnv",
    "BaseEnvConfig",
    "EvalHandlingEnum",
    "Item",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ServerBaseline",
]

_ID_FIELDS = ("id", "item_id", "task_id", "task_name", "instance_id", "uid", "name")
"""Fields of a dataset's row that commonly name it, in the order they are looked for."""


class BaseEnv(ABC):
    """One environment, one run at a time. See the module for what a subclass writes."""

    name: ClassVar[str | None] = None
    env_config_cls: ClassVar[type[BaseEnvConfig]] = BaseEnvConfig

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: Sequence[APIServerConfig] | APIServerConfig | ServerBaseline,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        self.config: Any = config
        self.server_configs = (
            list(server_configs) if isinstance(server_configs, Sequence) else [server_configs]
        )
        self.server: ServerManager = self._make_server()
        self.active_run: Run | None = None
        self.rescoring: Rescoring | None = None
        """Set where finished attempts are judged again instead of new ones rolled out."""
        self.planned_attempts = 0
        self.curr_step = 0
        """Training step, as the trajectory API last said; 0 outside ``serve``."""
        self.checkpoint_directory: Path | None = None
        """Where ``serve`` keeps the environment's checkpoints."""
        self._set_up = False
        self._example_rollouts = ExampleRollouts()
        self._tokenizer: Any = None

    def _make_server(self) -> ServerManager:
        from environments.inference.server_manager import ServerManager

        return ServerManager(
            self.server_configs,
            sampling_defaults={},
            tool_call_parser=getattr(self.config, "tool_call_parser", "hermes"),
            seed=self.config.seed,
            tokenizer=self._named_tokenizer(),
        )

    def _named_tokenizer(self) -> str | None:
        """The tokenizer of the trained model where somebody named it; the default is a guess."""
        config = self.config
        default = type(config).model_fields["tokenizer_name"].default
        return config.tokenizer_name if config.tokenizer_name != default else None

    # What a subclass writes.

    async def setup(self) -> None:  # noqa: B027 - nothing to do is a valid set-up
        """Load the dataset, initialise state."""

    @abstractmethod
    async def get_next_item(self) -> Item | None:
        """The next item to roll out; None ends ``process``."""

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """Roll one item out and score it: the scored row, and items to roll out later."""
        raise UserCodeError(
            f"{type(self).__name__} defines neither collect_trajectory nor collect_trajectories"
        )

    @abstractmethod
    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the model, once; also called periodically while training."""

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, list[APIServerConfig]]:
        """Configuration of the environment, below YAML and the command line."""
        return cls.env_config_cls(), [APIServerConfig()]

    async def postprocess_histories(self, trajectories: ScoredDataGroup) -> ScoredDataGroup | None:
        """Change a group before it is written or sent; None leaves it out."""
        return trajectories

    def item_id(self, item: Item) -> str | None:
        """Name of an item, the same in every run; None to go by its content."""
        if isinstance(item, dict):
            for field in _ID_FIELDS:
                value = item.get(field)
                if isinstance(value, str | int) and str(value).strip():
                    return str(value)
        return None

    def item_info(self, item: Item) -> dict[str, Any]:
        """What result files say of an item: its short fields."""
        if not isinstance(item, dict):
            return {"item": str(item)[:500]}
        return {
            key: value
            for key, value in item.items()
            if isinstance(value, bool | int | float | None) or (isinstance(value, str) and len(value) <= 2000)
        }

    def dataset_items(self) -> Iterable[Item] | None:
        """All items that evaluations choose from, where settings of the environment's own leave some out.

        None where ``evaluate_items`` is given all of them. Results of an item that is in none are left out.
        """
        return None

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log metrics; a subclass adds its own and calls this."""
        from environments.run_logging import log_metrics

        await log_metrics(self.active_run, {**(wandb_metrics or {}), **self.server.stats()})
        if self.active_run is not None and self.active_run.tracker is not None:
            await self._example_rollouts.log(self.active_run.tracker)

    async def evaluate_log(
        self,
        metrics: dict[str, Any],
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: dict[str, Any] | None = None,
        samples: list[dict[str, Any]] | None = None,
        verbose: bool = True,
        **extra: Any,
    ) -> None:
        """Save the results of an evaluation: ``metrics.json`` and ``samples.jsonl``."""
        from environments.run_logging import log_evaluation

        if self.rescoring is not None and not self.rescoring.after:
            return  # nothing was judged: the results stand
        await log_evaluation(
            self,
            metrics,
            samples or [],
            name=task_name or f"{self.environment_name}_eval",
            model_name=model_name or self.model_name,
            times=(start_time, end_time),
            generation_parameters=generation_parameters or {},
            verbose=verbose,
        )

    async def add_rollouts_for_wandb(self, scored_data: ScoredDataGroup, item: Item = None) -> None:
        """Keep example rollouts of a group for the W&B table."""
        self._example_rollouts.add(
            scored_data,
            per_group=self.config.num_rollouts_per_group_for_logging,
            most=self.config.num_rollouts_to_keep,
        )

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Save what the environment wants back after a restart: a subclass passes its ``data`` up to here."""
        if data is not None and self.checkpoint_directory is not None:
            from environments.results.checkpoints import save_checkpoint

            save_checkpoint(self.checkpoint_directory, step, data)

    def load_checkpoint(self) -> None:
        """Set the attributes that were saved last, at the current step or before."""
        if self.checkpoint_directory is not None:
            from environments.results.checkpoints import load_checkpoint

            for name, value in load_checkpoint(self.checkpoint_directory, self.curr_step).items():
                setattr(self, name, value)

    async def cleanup(self) -> None:  # noqa: B027 - optional
        """Called after every group."""

    # What a subclass calls.

    @property
    def environment_name(self) -> str:
        """The environment's name, or its class's."""
        return self.name or type(self).__name__

    @property
    def model_name(self) -> str:
        """Name of the model, or of the built-in policy that acts in its place."""
        return self.server.model

    @property
    def model_calls(self) -> int:
        """Model calls made so far."""
        return int(self.server.stats().get("server/requests", 0))

    @property
    def tokenizer(self) -> Any:
        """The trained model's tokenizer, loaded at first use (needs ``transformers``)."""
        if self._tokenizer is None:
            try:
                from transformers import AutoTokenizer  # type: ignore[import-not-found,unused-ignore]
            except ImportError:
                from environments.errors import MissingExtra

                raise MissingExtra(f"the tokenizer {self.config.tokenizer_name}", "tokens") from None
            self._tokenizer = AutoTokenizer.from_pretrained(self.config.tokenizer_name)
        return self._tokenizer

    async def evaluate_items(
        self, items: Iterable[Item], *, name: str | None = None, log: bool = True
    ) -> dict[str, float]:
        """Roll items out and judge them, side by side, with resume, progress and aggregation."""
        from environments.workflows.evaluate import evaluate_items

        return await evaluate_items(self, items, name=name, log=log)

    def sampling_parameters(self) -> dict[str, Any]:
        """Sampling parameters as they are sent, for the record."""
        return {"top_p": self.config.top_p} if self.config.top_p is not None else {}

    # Groups.

    async def collect_trajectories(
        self, item: Item
    ) -> tuple[ScoredDataGroup | list[ScoredDataGroup | None] | None, list[Item]]:
        """Roll a group out: ``group_size`` attempts at one item, side by side."""
        from environments.grouping import roll_out_group

        return await roll_out_group(self, item), []

    async def next_item(self) -> Item | None:
        """The next item: one that was put back, else the environment's next."""
        run = self.active_run
        if run is not None and run.backlog:
            return run.backlog.popleft()
        from environments.plain_calls import run_user_code

        return await run_user_code(self.get_next_item)

    def prepare_scope(self, scope: AttemptScope) -> None:  # noqa: B027 - optional
        """Called for every try before it runs; layers above put into the scope what they need."""

    def group_concurrency(self) -> int:
        """Groups in flight."""
        workers: int = self.config.max_num_workers
        return (
            workers
            if workers > 0
            else max(1, self.config.max_num_workers_per_node * len(self.server_configs))
        )

    def evaluation_concurrency(self) -> int:
        """Rollouts in flight during an evaluation."""
        return int(self.config.max_eval_workers)

    # Life of a run.

    async def start(self) -> None:
        """Start what the run needs: model servers first."""
        if self.rescoring is not None:  # no model acts
            return
        from environments.reachable import check_local_servers

        await check_local_servers(server.config.base_url or "" for server in self.server.servers)
        await self.server.start()
        self.server.check_sampling(self.sampling_parameters())
        await check_local_servers(server.config.base_url or "" for server in self.server.servers)

    async def run_setup(self) -> None:
        """Run the environment's ``setup()``."""
        if not self._set_up:
            from environments.plain_calls import run_user_code

            await run_user_code(self.setup)
            self._set_up = True

    async def close(self) -> None:
        """Release what ``start`` started."""
        await self.server.close()

    async def after_group(self, group: GroupScope) -> None:
        """Logging and clean-up after a group."""
        from environments.grouping import group_metrics

        await self.cleanup()
        await self.wandb_log(group_metrics(group))

    async def log_totals(self, groups: int) -> None:
        """Log what the whole run made."""
        from environments.run_logging import log_metrics

        run = self.active_run
        if run is not None:
            totals = {"run/groups": groups, "run/scored": run.scored, "run/tokens": run.tokens}
            await log_metrics(run, totals)

    # The workflows, by their names in Atropos.

    async def process_manager(self) -> RunReport:
        """``process``: scored groups in a JSONL file."""
        from environments.workflows.process import process

        return await process(self)

    async def evaluate_manager(self) -> RunReport:
        """``evaluate``: metrics and one record per sample."""
        from environments.workflows.evaluate import evaluate

        return await evaluate(self)

    async def env_manager(self) -> RunReport:
        """``serve``: scored groups sent to a trajectory API."""
        from environments.workflows.serve import serve

        return await serve(self)

    @classmethod
    async def run(
        cls,
        workflow: str,
        *,
        env: dict[str, Any] | None = None,
        openai: dict[str, Any] | list[dict[str, Any]] | None = None,
        config: str | Path | None = None,
    ) -> RunReport:
        """Run a workflow from Python or a notebook: ``await MyEnv.run("evaluate", env={"limit": 3})``."""
        from environments.configuration import resolve
        from environments.foreground import as_workflow, manager_of

        effective = resolve(cast("Any", cls), as_workflow(workflow), env=env, openai=openai, config=config)
        return await manager_of(cls(effective.env, effective.servers), workflow)()

    @classmethod
    def run_command(cls, subcommand: str, effective: Any) -> int:
        """Run a workflow in the foreground with signal handling; returns the exit code."""
        from environments.foreground import run_in_foreground

        return run_in_foreground(cls, subcommand, effective)

    @classmethod
    def cli(cls) -> None:
        """The command line: ``serve``, ``process`` and ``evaluate``. Exits the process."""
        from environments.cli import main

        sys.exit(main(cast("Any", cls)))


def is_overridden(environment: BaseEnv, method: str, base: type) -> bool:
    """Whether an environment brings its own version of a method of ``base``."""
    return inspect.getattr_static(type(environment), method) is not inspect.getattr_static(base, method)
