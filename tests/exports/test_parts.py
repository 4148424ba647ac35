"""The parts of an export: selection, pairs, forms, and lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import ConfigError
from environments.exports.candidates import Candidate
from environments.exports.compression import compress
from environments.exports.counting import estimate, with_tokenizer
from environments.exports.formats import chat_dpo, chat_sft, sharegpt_dpo, sharegpt_sft
from environments.exports.selection import Selection, Wish, common_prompt
from tests.exports.conversations import TOOLS, conversation


def candidate(score: float | None, messages: list[dict[str, Any]] | None = None, **fields: Any) -> Candidate:
    messages = conversation("task", "ls", answer=f"{score}") if messages is None else messages
    defaults = {"outcome": "scored", "ending": "stopped", "tools": TOOLS, "item": "i"}
    return Candidate(messages, score, "g", **{**defaults, **fields})


def chosen(*candidates: Candidate, **wish: Any) -> tuple[list[float | None], dict[str, int]]:
    selection = Selection(Wish(**wish), estimate)
    found = [one.score for one in selection.for_tuning(candidates)]
    return found, {reason: count for reason, count in selection.left_out.items() if count}


def test_scores_above_zero_are_taken_where_nothing_is_said() -> None:
    scores = [candidate(s) for s in (1.0, 0.0, -1.0, 0.2)]
    assert chosen(*scores) == ([1.0, 0.2], {"score too low": 2})
    assert chosen(*scores, min_score=-1.0)[0] == [1.0, 0.0, -1.0, 0.2]
    assert chosen(*scores, max_score=0.5) == ([0.2], {"score too low": 2, "score too high": 1})
    assert chosen(*scores, top=1, min_score=-9) == ([1.0], {"not among the best of the group": 3})


def test_what_is_no_good_example_is_left_out_with_its_reason() -> None:
    found, left = chosen(
        candidate(None, outcome="sandbox_error"),
        candidate(1.0, tampered=True),
        candidate(1.0, []),
        candidate(1.0, [{"role": "user", "content": "x"}]),
        candidate(1.0, ending="max_turns"),
        candidate(0.5),
        endings=frozenset({"stopped"}),
    )
    assert found == [0.5]
    assert left == {
        "outcome sandbox_error": 1,
        "tampered with its verifier": 1,
        "no messages (environment ran without --env.include_messages true)": 1,
        "nothing said by the model": 1,
        "ending max_turns": 1,
    }


def test_nothing_stands_after_the_models_last_word() -> None:
    messages = conversation("task", "ls")[:-1]
    row = next(iter(Selection(Wish(), estimate).for_tuning([candidate(1.0, messages)])))
    assert row.messages[-1]["role"] == "assistant"


def pairs(*candidates: Candidate, **wish: Any) -> list[tuple[int, float | None, float | None]]:
    selection = Selection(Wish(**wish), estimate)
    return [(len(prompt), a.score, b.score) for prompt, a, b in selection.pairs(candidates)]


def test_the_best_and_the_worst_make_a_pair() -> None:
    four = [candidate(s) for s in (0.5, 1.0, 0.0, 0.25)]
    assert pairs(*four) == [(4, 1.0, 0.0)]
    assert pairs(*four, pairs=2) == [(4, 1.0, 0.0), (4, 0.5, 0.25)]
    assert pairs(*four, pairs=2, min_difference=0.5) == [(4, 1.0, 0.0)]
    assert pairs(candidate(1.0), candidate(1.0)) == []


def test_the_prompt_ends_before_the_model_speaks_differently() -> None:
    one, other = conversation("t", "ls", "cat a"), conversation("t", "ls", "cat b", first_id=7)
    prompt = common_prompt(one, other)
    assert prompt == one[:4]  # equal but for the identifiers of calls
    other[3] = {**other[3], "content": "another result"}
    assert common_prompt(one, other) == one[:2]  # a result is nobody's answer
    assert common_prompt(conversation("a"), conversation("b")) is None
    assert common_prompt(one, one[:4]) == one[:2]


def test_chat_rows() -> None:
    row = chat_sft(candidate(1.0, conversation("t", "ls")))
    call = row["messages"][2]["tool_calls"][0]
    assert call["function"] == {"name": "terminal", "arguments": {"command": "ls"}}
    assert row["messages"][2]["reasoning_content"] == "about ls" and row["messages"][2]["content"] == ""
    assert row["messages"][3]["tool_call_id"] == call["id"]
    assert json.loads(row["tools"]) == TOOLS and row["score"] == 1.0
    text = chat_sft(candidate(1.0, conversation("t", "ls")), arguments_as_text=True)
    arguments = text["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"command": "ls"}


def test_arguments_of_any_kind_are_carried() -> None:
    for given_, kept in (("{broken", "{broken"), ("[1]", [1]), (None, None), ({"a": 1}, {"a": 1})):
        calls = [{"id": "1", "function": {"name": "x", "arguments": given_}}]
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        call = chat_sft(candidate(1.0, [message]))["messages"][0]["tool_calls"][0]
        assert call["function"]["arguments"] == (kept if isinstance(kept, dict) else {"arguments": kept})


def test_images_stay_parts() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:x"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {"role": "assistant", "content": "a cat"},
    ]
    row = chat_sft(candidate(1.0, messages))
    assert row["messages"][0]["content"][1] == image
    assert row["messages"][1]["content"] == [{"type": "text", "text": "a cat"}]


def test_sharegpt_rows_as_the_batch_runner_wrote_them() -> None:
    messages = conversation("t", "ls")
    messages[2]["tool_calls"] *= 2
    messages.insert(4, messages[3])
    row = sharegpt_sft(candidate(1.0, messages, tool_errors={"terminal": 1}, turns=2), 4)
    system, human, called, result, answer = row["conversations"]
    assert [e["from"] for e in row["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]
    assert system["value"].startswith("Be brief.") and '<tools>\n[{"name":"terminal"' in system["value"]
    assert human["value"] == "t" and answer["value"] == "<think>\n</think>\ndone"
    call = '<tool_call>\n{"name":"terminal","arguments":{"command":"ls"}}\n</tool_call>'
    assert called["value"] == f"<think>\nabout ls\n</think>\n{call}\n{call}"
    response = '{"tool_call_id":"call_0","name":"terminal","content":{"output":"result of ls"}}'
    assert result["value"] == "\n".join([f"<tool_response>\n{response}\n</tool_response>"] * 2)
    assert row["prompt_index"] == 4 and row["completed"] and not row["partial"] and row["api_calls"] == 2
    assert row["toolsets_used"] == ["terminal"]
    assert row["tool_stats"] == {"terminal": {"count": 2, "success": 1, "failure": 1}}
    assert row["tool_error_counts"] == {"terminal": 1}


def test_preference_rows() -> None:
    one = candidate(1.0, conversation("t", "ls", answer="yes"))
    other = candidate(0.0, conversation("t", "pwd"))
    row = chat_dpo(one.messages[:2], one, other)
    assert [m["role"] for m in row["prompt"]] == ["system", "user"]
    assert row["chosen"][-1]["content"] == "yes" and row["rejected"][0]["role"] == "assistant"
    assert row["chosen_score"] == 1.0 and row["rejected_score"] == 0.0
    row = sharegpt_dpo(one.messages[:2], one, other)
    assert [e["from"] for e in row["conversations"]] == ["system", "human"]
    assert row["chosen"][-1] == {"from": "gpt", "value": "<think>\n</think>\nyes"}


def count(messages: Any) -> int:
    return estimate(messages, TOOLS)


@given(st.lists(st.text("ab\n", max_size=40), max_size=12), st.integers(0, 900))
def test_what_is_compressed_fits_and_keeps_both_ends(commands: list[str], limit: int) -> None:
    messages = conversation("task", *(json.dumps(c)[1:-1].replace('"', "") for c in commands))
    result = compress(messages, limit, count)
    if result is None:
        assert count(messages) > limit
        return
    kept, removed = result
    assert count(kept) <= limit
    assert kept[:2] == messages[:2] and kept[-1] == messages[-1]
    assert (kept == messages) == (removed == 0)
    open_calls: set[str] = set()
    for message in kept:  # no result without its call
        open_calls |= {call["id"] for call in message.get("tool_calls", [])}
        assert message["role"] != "tool" or message["tool_call_id"] in open_calls
    if removed:
        [note] = [m for m in kept if m["role"] == "user" and m is not kept[1]]
        assert note["content"].startswith(f"[{removed} earlier turns")
        fewer = compress(messages, limit + 10_000, count)
        assert fewer is not None and fewer[1] == 0


def test_the_note_says_what_was_done() -> None:
    messages = conversation("task", *(f"step {i}" for i in range(20)))
    result = compress(messages, count(messages) // 2, count)
    assert result is not None
    note = result[0][4]["content"]
    assert '- terminal {"command":"step 1"} -> {"output": "result of step 1"}' in note


def test_tokens_are_counted_with_a_chat_template(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"?": 0, "ls": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")
    fast.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no chat template"):
        with_tokenizer(str(tmp_path))
    fast.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{{ tools | length }}"
    )
    fast.save_pretrained(tmp_path)
    messages = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d"}]
    assert with_tokenizer(str(tmp_path))(messages, TOOLS) == 7
    fast.chat_template = "{{ raise_exception('roles must alternate') }}"
    fast.save_pretrained(tmp_path)
    selection = Selection(Wish(max_tokens=9), with_tokenizer(str(tmp_path)))
    assert selection.for_tuning([candidate(1.0)]) == []
    assert list(selection.left_out) == ["refused by the chat template (roles must alternate)"]


def test_a_tokenizer_that_is_not_there_is_said(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match="--tokenizer"):
        with_tokenizer(str(tmp_path / "nothing"))
