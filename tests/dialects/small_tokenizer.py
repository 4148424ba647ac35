"""A tokenizer with one token per byte and a marker's token for each marker, and small chat templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.dialects import load_dialect
from environments.dialects.template_dialect import TemplateDialect

CHATML_MARKERS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
GLM_MARKERS = ("<|end|>", "<|user|>", "<|assistant|>", "<|observation|>", "<tool_call>", "</tool_call>")

_CALLS = (
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
)
_CHATML_TOOLS = (
    "{% if tools %}<|im_start|>system\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
)
CHATML = (
    _CHATML_TOOLS
    + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    + _CALLS
    + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Plain ChatML, with calls as Hermes has them."""

THINKING = (
    _CHATML_TOOLS + "{% set last = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > last.user %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ (m.content or '') | trim }}"
    + _CALLS
    + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""ChatML that drops the thinking of the turns before the last user message."""

ENDLESS = (
    "{% for m in messages %}"
    "{% if m.role == 'user' %}<|user|>{{ m.content }}"
    "{% elif m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}[{{ m.content }}]"
    "{% else %}<|assistant|>{{ m.content or '' }}"
    + _CALLS
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Turns have no end of their own: the beginning of the next one ends them."""


def write_tokenizer(
    folder: Path, template: str | None, markers: Sequence[str] = CHATML_MARKERS, *, special: bool = True
) -> Path:
    """A folder with a tokenizer as a model's has it."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    backend = Tokenizer(BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_tokens([AddedToken(m, special=special and "|" in m, normalized=False) for m in markers])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": markers[0]}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def small_dialect(
    folder: Path, template: str = CHATML, markers: Sequence[str] = CHATML_MARKERS, **options: Any
) -> TemplateDialect:
    """The dialect of such a tokenizer."""
    return load_dialect(write_tokenizer(folder, template, markers), **{"tool_parser": "hermes", **options})
