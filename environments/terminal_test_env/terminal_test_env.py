"""TerminalTestEnv: a few small tasks, no dataset, to check the whole stack from end to end.

Each task asks for one file with known content; the verifier reads it. Runs with the built-in oracle,
with the model that does nothing, and with any real model::

    python environments/terminal_test_env/terminal_test_env.py process \\
        --openai.server_type oracle --env.data_path_to_save_groups out.jsonl
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # run as a script of a checkout, which need not be installed
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from environments.config import APIServerConfig, HermesAgentEnvConfig, hosted_model
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.records import Message, Reward

if TYPE_CHECKING:
    from environments.agent_loop import AgentResult
    from environments.tool_context import ToolContext

TRAINING_TASKS: list[dict[str, str]] = [
    {
        "id": "greeting",
        "prompt": "Create the file ~/greeting.txt. Its whole content is this text: Hello from Hermes Agent",
        "path": "~/greeting.txt",
        "expected": "Hello from Hermes Agent",
    },
    {
        "id": "count",
        "prompt": "Create the file ~/count.txt with the numbers from 1 to 5 in order, one on each line.",
        "path": "~/count.txt",
        "expected": "1\n2\n3\n4\n5",
    },
    {
        "id": "answer",
        "prompt": "Add 123 and 456 and write the sum, and nothing else, to the file ~/answer.txt.",
        "path": "~/answer.txt",
        "expected": "579",
    },
]

EVALUATION_TASKS: list[dict[str, str]] = [
    {
        "id": "result",
        "prompt": "Multiply 6 by 7 and write the product, and nothing else, to the file ~/result.txt.",
        "path": "~/result.txt",
        "expected": "42",
    },
]


class TerminalTestEnvConfig(HermesAgentEnvConfig):
    """Settings of TerminalTestEnv; it has none of its own."""


class TerminalTestEnv(HermesAgentBaseEnv):
    """Write a small file, and have it read back."""

    name = "terminal-test"
    env_config_cls = TerminalTestEnvConfig

    @classmethod
    def config_init(cls) -> tuple[TerminalTestEnvConfig, list[APIServerConfig]]:
        """Three groups of three, in local sandboxes; a model through OpenRouter unless told otherwise."""
        config = TerminalTestEnvConfig(
            enabled_toolsets=["terminal", "file"],
            max_agent_turns=10,
            max_token_length=16000,
            agent_temperature=1.0,
            system_prompt=(
                "You work in a Linux terminal. Do what the user asks with the tools you have, exactly as "
                "asked, and stop when it is done."
            ),
            terminal_backend="local",
            group_size=3,
            total_steps=3,
            steps_per_eval=3,
            wandb_name="terminal-test",
            ensure_scores_are_not_same=False,
        )
        return config, [hosted_model()]

    async def setup(self) -> None:
        """Start with the first task."""
        self.position = 0

    async def get_next_item(self) -> dict[str, str]:
        """The tasks in turn, for ever."""
        item = TRAINING_TASKS[self.position % len(TRAINING_TASKS)]
        self.position += 1
        return item

    def format_prompt(self, item: dict[str, str]) -> str:
        """The task's text."""
        return item["prompt"]

    async def compute_reward(self, item: dict[str, str], result: AgentResult, ctx: ToolContext) -> Reward:
        """1.0 where the file holds what was asked for, 0.5 where it holds more, else 0.0."""
        found = ctx.read_file(item["path"])
        if found.get("error"):
            return Reward(0.0, explanation=found["error"])
        content, expected = found["content"].strip(), item["expected"]
        if content == expected:
            return Reward(1.0, explanation="the file is as asked for")
        value = 0.5 if expected in content else 0.0
        return Reward(value, explanation=f"the file holds {content[:200]!r}")

    def oracle(self, item: dict[str, str]) -> list[Message]:
        """Write the file, look at it, and say so."""
        return [
            _call("write_file", {"path": item["path"], "content": item["expected"] + "\n"}),
            _call("terminal", {"command": f"cat {item['path']}"}),
            {"role": "assistant", "content": f"{item['path']} is written."},
        ]

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The tasks that are held out of training."""
        return await self.evaluate_items(EVALUATION_TASKS)


def _call(name: str, arguments: dict[str, Any]) -> Message:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


if __name__ == "__main__":
    TerminalTestEnv.cli()
