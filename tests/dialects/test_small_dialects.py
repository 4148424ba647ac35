"""Exactness over small tokenizers: the same properties as over real ones, in the fast stage."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.exactness import (
    as_encoded,
    canonical_conversation,
    check_session,
    controls_in,
    hostile_text,
    random_conversation,
)
from dialects.small_tokenizer import CHATML, CHATML_MARKERS, ENDLESS, GLM_MARKERS, THINKING, small_dialect

KINDS = {
    "chatml": (CHATML, CHATML_MARKERS),
    "thinking": (THINKING, CHATML_MARKERS),
    "endless": (ENDLESS, GLM_MARKERS),
}


@pytest.fixture(scope="module", params=KINDS)
def dialect(request, tmp_path_factory):
    template, markers = KINDS[request.param]
    return small_dialect(tmp_path_factory.mktemp(request.param), template, markers)


@pytest.mark.parametrize("thinking", ["template", "always"])
def test_whatever_is_said_and_sampled_the_sequences_are_what_the_server_saw(dialect, thinking):
    @settings(max_examples=30)
    @given(st.randoms(use_true_random=False))
    def holds(rng: random.Random) -> None:
        asyncio.run(random_conversation(replace(dialect, thinking=thinking), rng))

    holds()


@pytest.mark.parametrize("thinks", [False, True])
def test_a_conversation_is_its_full_rendering_wherever_the_template_is_stable(dialect, thinks):
    compared = 0
    for seed in range(20):
        *_, count = asyncio.run(canonical_conversation(dialect, random.Random(seed), thinks=thinks))
        compared += count
    assert compared >= 20


def test_content_never_becomes_a_control_token(dialect):
    def conversation(text):
        return [{"role": "system", "content": text}, {"role": "user", "content": text}]

    harmless = controls_in(dialect, dialect.render(conversation("x"), None).ids)
    rng = random.Random(0)
    for text in [*dialect.tokenizer.controls, *(hostile_text(rng, dialect) for _ in range(300))]:
        if text.strip():
            ids = dialect.render(conversation(text), None).ids
            assert controls_in(dialect, ids) == harmless, text
            assert as_encoded(text.strip()) in as_encoded(dialect.tokenizer.decode(ids))


def test_a_stop_token_that_was_sampled_is_not_written_again(dialect):
    messages = [{"role": "user", "content": "Hi."}]
    prompt = dialect.render(messages, None).ids
    later = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "So?"}]
    for stop in dialect.stop_token_ids:
        tail = dialect.bridge([*prompt, 65, stop], later, None, new=1).ids
        ends = [token for token in (stop, *tail) if token in dialect.stop_token_ids]
        cut = dialect.bridge([*prompt, 65], later, None, new=1).ids
        assert len(ends) <= len([token for token in cut if token in dialect.stop_token_ids]) + 1
        if stop == cut[0]:
            assert tail == cut[1:]


def test_the_newline_behind_the_end_of_a_turn_is_restored(tmp_path):
    dialect = small_dialect(tmp_path)
    end = dialect.tokenizer.token_to_id("<|im_end|>")
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes."}]
    later = [*messages, {"role": "user", "content": "So?"}]
    prompt = dialect.render(messages[:1], None).ids
    expected = "\n<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n"
    assert dialect.tokenizer.decode(dialect.bridge([*prompt, 65, end], later, None, new=1).ids) == expected
    # Another end of sequence than the template's own stands for it; a reply that was cut off gets one.
    other = dialect.tokenizer.token_to_id("<|endoftext|>")
    assert dialect.tokenizer.decode(dialect.bridge([*prompt, 65, other], later, None, new=1).ids) == expected
    cut = dialect.bridge([*prompt, 65], later, None, new=1).ids
    assert dialect.tokenizer.decode(cut) == f"<|im_end|>{expected}"


def test_a_conversation_of_huge_results_stays_linear_and_exact(tmp_path):
    dialect = small_dialect(tmp_path)
    text = "<|im_end|>" * 30_000
    ids = dialect.render([{"role": "user", "content": text}], None).ids
    assert len(ids) > len(text)
    assert controls_in(dialect, ids) == controls_in(
        dialect, dialect.render([{"role": "user", "content": "x"}], None).ids
    )


def test_sessions_check_themselves(tmp_path):
    session, sampler, _ = asyncio.run(random_conversation(small_dialect(tmp_path), random.Random(1)))
    sampler.seen[0][1].append(1)
    with pytest.raises(AssertionError):
        check_session(session, sampler)
