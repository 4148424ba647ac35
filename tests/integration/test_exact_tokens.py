"""Exact tokens over the real tokenizers and chat templates of many model families."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from dialects.exactness import (
    as_encoded,
    canonical_conversation,
    controls_in,
    hostile_text,
    random_conversation,
)
from dialects.small_tokenizer import write_tokenizer

from environments.dialects import load_dialect
from environments.dialects.template_dialect import TemplateDialect
from environments.errors import BadRequest, ConfigError

TOKENIZERS = os.environ.get("HERMES_TEST_TOKENIZERS", "")
FAMILIES = (
    sorted(path.parent.name for path in Path(TOKENIZERS).glob("*/tokenizer.json")) if TOKENIZERS else []
)
PARSERS = {
    "deepseek_v3": "deepseek_v3",
    "deepseek_v4": "deepseek_v4",
    "glm4_7": "glm47",
    "glm5": "glm5",
    "gpt_oss": "gpt_oss",
    "kimi_k2": "kimi_k2",
    "llama3_1": "llama3_json",
    "mistral_nemo": "mistral",
    "mistral_small_3_2": "mistral",
    "qwen3_5": "qwen3_5",
    "qwen3_coder": "qwen3_coder",
}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not FAMILIES, reason="HERMES_TEST_TOKENIZERS names no directory of tokenizers"),
]


TEMPLATES = sorted(Path(TOKENIZERS).glob("templates/*.jinja"))[::6] if TOKENIZERS else []
LITERALS = re.compile(
    r"<\|[^|<>\s'\"]+\|>|<｜[^｜<>]+｜>|\[/?[A-Z_]+\]|<\|[a-z_]+>|<[a-z_]+\|>|<(?:start|end)_of_[a-z_]+>"
    r"|</?(?:s|think|tool_call|tool_response|arg_key|arg_value)>"
)
"""What the control tokens of most vocabularies look like."""

ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|return|>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
)


@functools.cache
def dialect_of(family: str) -> TemplateDialect:
    parser = PARSERS.get(family, "hermes")
    return load_dialect(Path(TOKENIZERS) / family, tool_parser=parser)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thinking", ["template", "always"])
def test_whatever_is_said_and_sampled_the_sequences_are_what_the_server_saw(family, thinking):
    dialect = replace(dialect_of(family), thinking=thinking)
    for seed in range(15):
        asyncio.run(random_conversation(dialect, random.Random(f"{family} {thinking} {seed}")))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_is_its_full_rendering_wherever_the_template_is_stable(family):
    compared = 0
    for seed in range(24):
        rng = random.Random(f"{family} {seed}")
        conversation = canonical_conversation(dialect_of(family), rng, thinks=seed % 2 == 1)
        *_, count = asyncio.run(conversation)
        compared += count
    assert compared >= 24


@pytest.mark.parametrize("family", FAMILIES)
def test_content_never_becomes_a_control_token(family):
    dialect = dialect_of(family)
    rng = random.Random(family)

    def conversation(text):
        return [{"role": "system", "content": text}, {"role": "user", "content": text}]

    harmless = controls_in(dialect, dialect.render(conversation("x"), None).ids)
    controls = list(dialect.tokenizer.controls)
    literals = rng.sample(controls, min(150, len(controls)))
    for text in [*literals, *(hostile_text(rng, dialect) for _ in range(150))]:
        if text.strip():
            ids = dialect.render(conversation(text), None).ids
            assert controls_in(dialect, ids) == harmless, text
            assert as_encoded(text.strip()) in as_encoded(dialect.tokenizer.decode(ids))


def test_any_published_template_is_exact_or_refused_with_a_reason(tmp_path):
    exact = 0
    for file in TEMPLATES:
        source = file.read_text(encoding="utf-8")
        found = list(dict.fromkeys(LITERALS.findall(source)))
        end = next((literal for literal in ENDS if literal in found), "</s>")
        markers = [end, *(m for m in dict.fromkeys(["<s>", "</s>", *found]) if m != end)]
        folder = write_tokenizer(tmp_path, source, markers)
        try:
            dialect = load_dialect(folder, tool_parser="hermes")
            asyncio.run(random_conversation(dialect, random.Random(file.name), turns=4))
        except (ConfigError, BadRequest) as refusal:
            assert str(refusal), file.name
        else:
            exact += 1
    assert exact > len(TEMPLATES) * 3 // 4
