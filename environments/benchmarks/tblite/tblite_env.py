"""TBLiteEvalEnv: 100 terminal tasks of calibrated difficulty, a quick proxy for Terminal-Bench 2.

::

    python environments/benchmarks/tblite/tblite_env.py evaluate \\
        --config environments/benchmarks/tblite/default.yaml --openai.model_name anthropic/claude-sonnet-4.6
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # run as a script of a checkout, which need not be installed
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from pydantic import Field

from environments.benchmarks.terminalbench_2.terminalbench2_env import (
    TerminalBench2EvalConfig,
    TerminalBench2EvalEnv,
)
from environments.harbor_task_env.config import MOST_SECONDS


class TBLiteEvalConfig(TerminalBench2EvalConfig):
    """Settings of TBLite."""

    dataset_name: str | None = Field(
        default="NousResearch/openthoughts-tblite",
        description="Dataset of the Hub, or a directory, table or repository of tasks.",
    )
    task_timeout: float = Field(
        default=1200, gt=0, le=MOST_SECONDS, description="Seconds for the agent where the task does not say."
    )


class TBLiteEvalEnv(TerminalBench2EvalEnv):
    """The benchmark; another dataset and other times than Terminal-Bench 2."""

    name = "openthoughts-tblite"
    env_config_cls = TBLiteEvalConfig


if __name__ == "__main__":
    TBLiteEvalEnv.cli()
