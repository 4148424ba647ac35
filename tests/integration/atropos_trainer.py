"""Runs in an environment with the real atroposlib: its example trainer's own code reads batches.

Arguments: URL, steps, batch size. Prints one JSON line per batch: what came and what was made of it.
"""

import json
import sys

from example_trainer import data as example_data
from example_trainer.api import check_atropos_api, get_batch, register_trainer
from example_trainer.config import TrainingConfig

url, steps, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = TrainingConfig(
    model_name="none",
    training_steps=steps,
    batch_size=batch_size,
    gradient_accumulation_steps=1,
    seq_len=64,
    atropos_url=url,
    save_path="checkpoints",
    wandb_project="interop",
    wandb_group="group",
)
raw = []


def keeping(url):
    answer = get_batch(url=url)
    if answer["batch"] is not None:
        raw.append(json.dumps(answer["batch"]))
    return answer


example_data.get_batch = keeping
assert check_atropos_api(url, timeout=60)
register_trainer(config)
done = 0
while done < steps:
    batches, _ = example_data.get_data(batch_size, 64, url)
    for text, (tokens, labels, advantages, temperatures, logprobs) in zip(raw[done:], batches, strict=True):
        done += 1
        line = {
            "batch": json.loads(text),
            "tokens": [one.tolist() for one in tokens],
            "labels": [one.tolist() for one in labels],
            "advantages": [one.tolist() for one in advantages],
            "temperatures": [one.flatten().tolist() for one in temperatures],
            "logprobs": None if logprobs is None else [one.tolist() for one in logprobs],
        }
        print("BATCH " + json.dumps(line), flush=True)
