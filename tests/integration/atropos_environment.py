"""Runs in an environment with the real atroposlib: an environment of theirs whose tokens are known."""

import sys
from pathlib import Path

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

TOKENIZER = Path(sys.argv[0]).stem + "_tokenizer"


class Theirs(BaseEnv):
    name = "theirs"
    env_config_cls = BaseEnvConfig

    @classmethod
    def config_init(cls):
        config = BaseEnvConfig(
            tokenizer_name=TOKENIZER,
            group_size=2,
            use_wandb=False,
            wandb_name="theirs",
            max_token_length=64,
            total_steps=1000,
            include_messages=True,
            ensure_scores_are_not_same=False,
        )
        server = APIServerConfig(base_url="http://127.0.0.1:9/v1", api_key="x", health_check=False)
        return config, [server]

    async def setup(self):
        self.number = 0

    async def get_next_item(self):
        self.number += 1
        return self.number - 1

    async def collect_trajectories(self, item):
        tokens = [[1, 2 + item % 50, 60 + row] for row in range(2)]
        return {
            "tokens": tokens,
            "masks": [[-100, *row[1:]] for row in tokens],
            "scores": [0.0, 1.0],
            "inference_logprobs": [[1.0, -0.25, -0.125 * (row + 1)] for row in range(2)],
            "messages": [[{"role": "assistant", "content": f"{item}"}] for _ in range(2)],
            "generation_params": {"temperature": 0.5},
            "overrides": None,
            "group_overrides": {},
        }, []

    async def evaluate(self, *args, **kwargs):
        pass


if __name__ == "__main__":
    vocabulary = {f"t{number}": number for number in range(100)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(TOKENIZER)
    Theirs.cli()
