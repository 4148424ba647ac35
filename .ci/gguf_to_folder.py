"""Write a GGUF file as a model folder (weights, tokenizer, chat template): gguf_to_folder.py FILE FOLDER."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
config = model.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
config.architectures = [type(model).__name__]
folder.mkdir(parents=True)
config.save_pretrained(folder)
model.generation_config.save_pretrained(folder)
# save_pretrained of the model refuses what was read from GGUF, because it counts as quantized.
tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
weights = {name: value.contiguous() for name, value in model.state_dict().items() if name not in tied}
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
