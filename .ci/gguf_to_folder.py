"""Write a GGUF file as a model folder (weights, tokenizer, chat template): gguf_to_folder.py FILE FOLDER."""

import copy
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

source, folder = Path(sys.argv[1]), sys.argv[2]
where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
weights = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).state_dict()
config = copy.deepcopy(AutoConfig.from_pretrained(**where))
if hasattr(config, "quantization_config"):
    del config.quantization_config
config.dtype = torch.bfloat16
# A fresh model takes the weights, since one that was read from GGUF counts as quantized and is not saved.
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.load_state_dict(weights)
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
