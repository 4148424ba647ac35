"""Managed sessions: own replies are known again, forks have reasons, limits are known beforehand."""

from __future__ import annotations

import asyncio
import json

import pytest
from dialects.exactness import TOOLS, Sampler, check_session
from dialects.small_tokenizer import CHATML, THINKING, small_dialect

from environments.errors import BadRequest, ContextOverflow, ModelError, ServerUnavailable
from environments.inference.managed_session import ManagedSession
from environments.inference.token_sampling import TokenReply
from environments.records import MASKED

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"text": "a"}}\n</tool_call><|im_end|>'
USER = {"role": "user", "content": "Hello."}


@pytest.fixture(scope="module")
def dialect(tmp_path_factory):
    return small_dialect(tmp_path_factory.mktemp("chatml"), CHATML)


@pytest.fixture(scope="module")
def thinking_dialect(tmp_path_factory):
    return small_dialect(tmp_path_factory.mktemp("thinking"), THINKING)


class Line:
    """A session with its sampler, and a short way to ask."""

    def __init__(self, dialect, **options):
        self.dialect, self.sampler = dialect, Sampler()
        self.session = ManagedSession(dialect, self.sampler, **options)

    def ask(self, messages, text, tools=None, *, finish="stop", **sampling):
        self.sampler.next_tokens = self.dialect.tokenizer.encode(text, follows=True)
        self.sampler.finish_reason = finish
        return asyncio.run(self.session.chat_completion(messages, tools, **sampling))

    def sequences(self):
        check_session(self.session, self.sampler)
        return self.session.sequences()


def message(reply):
    return reply.choices[0].message.to_message()


def results(reply, text="Fine."):
    return [
        {"role": "tool", "tool_call_id": c.id, "content": text} for c in reply.choices[0].message.tool_calls
    ]


def test_a_tool_conversation_is_one_sequence(dialect):
    line = Line(dialect, model="m")
    messages = [{"role": "system", "content": "Be kind."}, USER]
    for _ in range(4):
        reply = line.ask(messages, CALL, TOOLS)
        assert reply.choices[0].finish_reason == "tool_calls"
        assert reply.calls_parsed_from_text == "hermes"
        messages += [message(reply), *results(reply)]
    reply = line.ask(messages, "Done.<|im_end|>", TOOLS)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("Done.", "stop")
    (sequence,) = line.sequences()
    assert line.session.forks == []
    assert sequence.fork_reason is None
    trained = dialect.tokenizer.decode([token for token in sequence.mask if token != MASKED])
    assert trained == CALL * 4 + "Done.<|im_end|>"


def test_parallel_results_share_one_turn(dialect):
    line = Line(dialect)
    reply = line.ask([USER], CALL.removesuffix("<|im_end|>") + CALL, TOOLS)
    messages = [USER, message(reply), *results(reply)]
    assert len(messages) == 4
    line.ask(messages, "Done.<|im_end|>", TOOLS)
    (sequence,) = line.sequences()
    assert len(sequence.extra["turns"]) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda m: {**m, "content": ""},
        lambda m: {**m, "content": None, "refusal": None},
        lambda m: {k: v for k, v in m.items() if k != "content"},
        lambda m: {k: v for k, v in m.items() if k != "reasoning_content"},
        lambda m: {**m, "content": [{"type": "text", "text": m["content"] or ""}]},
        lambda m: {**m, "content": f" {m['content'] or ''}\n"},
        lambda m: {**m, "tool_calls": [with_arguments(c, json.loads) for c in m["tool_calls"]]},
        lambda m: {**m, "tool_calls": [with_arguments(c, respaced) for c in m["tool_calls"]]},
        lambda m: {**m, "name": "assistant", "annotations": []},
        lambda m: {"role": "assistant", "content": f"<think>Hm.</think> {m['content']}", **calls_of(m)},
    ],
)
def test_a_reply_is_known_again_however_it_was_normalised(thinking_dialect, change):
    line = Line(thinking_dialect)
    reply = line.ask([USER], f"<think>\nHm.\n</think>\n\nI look.\n{CALL}", TOOLS)
    line.ask([USER, change(message(reply)), *results(reply)], "Done.<|im_end|>", TOOLS)
    assert line.session.forks == []
    assert len(line.sequences()) == 1


def test_results_may_name_calls_by_new_ids_and_the_model_sees_its_own(tmp_path):
    line = Line(small_dialect(tmp_path, CHATML.replace("{{ m.role }}", "{{ m.role }} {{ m.tool_call_id }}")))
    first = message(line.ask([USER], CALL, TOOLS))
    renamed = {**first, "tool_calls": [{**first["tool_calls"][0], "id": "call_other"}]}
    result = {"role": "tool", "tool_call_id": "call_other", "content": "Fine."}
    line.ask([USER, renamed, result], "Done.<|im_end|>", TOOLS)
    assert line.session.forks == []
    prompt = line.dialect.tokenizer.decode(line.sampler.seen[-1][0])
    assert f"<|im_start|>tool {first['tool_calls'][0]['id']}\nFine." in prompt


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: [{**m[0], "content": "Bye."}, *m[1:]], "message 0 (user) was changed"),
        (lambda m: [{"role": "system", "content": "S"}, *m], "message 0 (user, now system) was changed"),
        (lambda m: [m[0], {**m[1], "content": "No."}, *m[2:]], "message 1 (assistant) was changed"),
        (lambda m: [*m[:2], {**m[2], "content": "Other."}, *m[3:]], "message 2 (user) was changed"),
        (
            lambda m: [m[0], {**m[1], "reasoning_content": "Oh."}, *m[2:]],
            "the thinking of an earlier reply was changed",
        ),
        (lambda m: m[:1], "an earlier point of the conversation was continued again"),
    ],
)
def test_a_changed_history_forks_with_its_reason(dialect, change, reason):
    line = Line(dialect)
    messages = [USER, message(line.ask([USER], "Yes.<|im_end|>")), {"role": "user", "content": "So?"}]
    messages.append(message(line.ask(messages, "Well.<|im_end|>")))
    messages.append({"role": "user", "content": "And?"})
    line.ask(change(messages), "Fine.<|im_end|>")
    assert line.session.forks == [(3, reason)]
    first, second = line.sequences()
    assert first.fork_reason is None
    assert second.fork_reason == reason
    state = line.session.managed_state()
    assert state["forks"] == [{"turn": 3, "reason": reason}]
    assert [node.masked_tokens for node in state["nodes"]] == [first.mask, second.mask]


def test_branches_train_what_they_share_once(dialect):
    line = Line(dialect)
    messages = [USER, message(line.ask([USER], "Yes.<|im_end|>"))]
    for text in ("So?", "And?"):
        line.ask([*messages, {"role": "user", "content": text}], "Well.<|im_end|>")
    first, second = line.sequences()
    shared = len(line.sampler.seen[0][0]) + len(line.sampler.seen[0][1])
    assert first.tokens[:shared] == second.tokens[:shared]
    assert [turn["turn"] for turn in second.extra["turns"]] == [1, 3]
    trained = [token for token in second.mask if token != MASKED]
    assert dialect.tokenizer.decode(trained) == "Well.<|im_end|>"
    assert [m["content"] for m in first.extra["messages"]] == [USER["content"], "Yes.", "So?", "Well."]
    assert "messages" not in second.extra, "the branch that is the conversation in the end has those"


def test_other_tools_or_template_options_fork(thinking_dialect):
    line = Line(thinking_dialect)
    messages = [USER, message(line.ask([USER], "Yes.<|im_end|>")), {"role": "user", "content": "So?"}]
    line.ask(messages, "Well.<|im_end|>", TOOLS)
    line.ask(messages, "Well.<|im_end|>", extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert [reason for _, reason in line.session.forks] == [
        "the tools or the options of the chat template were changed"
    ] * 2
    prompt = thinking_dialect.tokenizer.decode(line.sampler.seen[-1][0])
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    line.sequences()


def test_thinking_is_dropped_with_a_fork_or_kept_without(tmp_path):
    text = "<think>\nHm.\n</think>\n\nYes.<|im_end|>"
    for thinking, forks in (("template", 1), ("always", 0)):
        line = Line(small_dialect(tmp_path / thinking, THINKING, thinking=thinking))
        reply = line.ask([USER], text)
        assert reply.choices[0].message.reasoning_content.strip() == "Hm."
        line.ask([USER, message(reply), {"role": "user", "content": "So?"}], "Well.<|im_end|>")
        assert len(line.session.forks) == forks
        prompt = line.dialect.tokenizer.decode(line.sampler.seen[-1][0])
        assert ("Hm." in prompt) is (thinking == "always")
        assert len(line.sequences()) == 1 + forks


def test_thinking_stays_while_tools_are_used(thinking_dialect):
    line = Line(thinking_dialect)
    reply = line.ask([USER], f"<think>\nHm.\n</think>\n\n{CALL}", TOOLS)
    line.ask([USER, message(reply), *results(reply)], "Done.<|im_end|>", TOOLS)
    assert len(line.sequences()) == 1


def test_a_malformed_call_is_reported_and_its_tokens_stay(dialect):
    line = Line(dialect)
    broken = '<tool_call>\n{"name": "look_up", "arguments": {"text": \n</tool_call><|im_end|>'
    reply = line.ask([USER], broken, TOOLS)
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].message.malformed_calls
    complaint = {"role": "user", "content": "That could not be read."}
    line.ask([USER, message(reply), complaint], CALL, TOOLS)
    (sequence,) = line.sequences()
    assert broken in dialect.tokenizer.decode(sequence.tokens)


def test_a_reply_that_was_cut_off_is_closed_by_the_template(dialect):
    line = Line(dialect)
    reply = line.ask([USER], CALL[:30], TOOLS, finish="length")
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.tool_calls is None
    line.ask([USER, message(reply), {"role": "user", "content": "Go on."}], "Yes.<|im_end|>", TOOLS)
    (sequence,) = line.sequences()
    text = dialect.tokenizer.decode(sequence.tokens)
    assert f"{CALL[:30]}<|im_end|>\n<|im_start|>user\nGo on." in text
    assert sequence.extra["turns"][0]["finish_reason"] == "length"


def test_several_answers_are_branches_of_one_point(dialect):
    line = Line(dialect)
    reply = line.ask([USER], "Yes.<|im_end|>", n=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len(line.session.sequences()) == 3
    assert reply.usage.completion_tokens == 3 * len(line.sampler.next_tokens)


def test_a_conversation_that_is_too_long_is_known_before_the_call(dialect):
    line = Line(dialect, context_length=64)
    line.ask([{"role": "user", "content": ""}], "Yes.<|im_end|>", max_tokens=1000)
    prompt = line.sampler.seen[0][0]
    assert line.sampler.arguments[0]["max_tokens"] == 64 - len(prompt)
    with pytest.raises(ContextOverflow, match="model's context 64"):
        line.ask([{"role": "user", "content": "x" * 64}], "Yes.<|im_end|>")
    assert len(line.sampler.seen) == 1


def test_sampling_parameters_reach_the_sampler_and_no_others(dialect):
    line = Line(dialect)
    line.ask(
        [USER],
        "Yes.<|im_end|>",
        temperature=0.5,
        top_p=None,
        max_tokens=7,
        tool_choice="auto",
        extra_body={"min_p": 0.1, "chat_template_kwargs": {"a": 1}},
    )
    assert line.sampler.arguments == [
        {"stop_token_ids": dialect.stop_token_ids, "max_tokens": 7, "temperature": 0.5, "min_p": 0.1}
    ]
    with pytest.raises(BadRequest, match="tool_choice"):
        line.ask([USER], "Yes.<|im_end|>", tool_choice="required")


def test_what_has_no_form_as_tokens_is_refused(dialect):
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    with pytest.raises(BadRequest, match="image_url"):
        Line(dialect).ask([picture], "Yes.<|im_end|>")


@pytest.mark.parametrize(
    ("reply", "error", "text"),
    [
        (TokenReply([1, 2], [-0.1], "stop"), ModelError, "1 log-probabilities for 2 tokens"),
        (TokenReply([1], [float("nan")], "stop"), ModelError, "log-probability"),
        (TokenReply([1], [0.5], "stop"), ModelError, "log-probability"),
        (TokenReply([1], [-0.1], "stop", prompt_tokens=[1]), ModelError, "another prompt"),
        (TokenReply([1], [-0.1], "abort"), ServerUnavailable, "broke the reply off"),
    ],
)
def test_a_reply_that_no_trainer_could_rely_on_is_an_error_and_leaves_no_trace(dialect, reply, error, text):
    class Broken:
        async def sample(self, prompt, **_):
            return reply

    session = ManagedSession(dialect, Broken())
    with pytest.raises(error, match=text):
        asyncio.run(session.chat_completion([USER]))
    assert session.sequences() == []


def calls_of(message):
    return {"tool_calls": message["tool_calls"]}


def with_arguments(tool_call, change):
    function = tool_call["function"]
    return {**tool_call, "function": {**function, "arguments": change(function["arguments"])}}


def respaced(arguments):
    return json.dumps(json.loads(arguments), indent=2)


@pytest.mark.parametrize(
    "odd",
    [
        {"chat_template_kwargs": "abc"},
        {"chat_template_kwargs": 5},
        {"chat_template_kwargs": {1: 2}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        {"chat_template_kwargs": {"chat_template": "{{ messages }}"}},
        {"extra_body": "abc"},
        {"chat_template_kwargs": [1]},
        {"n": 0},
        {"n": "x"},
        {"max_tokens": "4"},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"stop_token_ids": 5},
        {"stop_token_ids": ["</s>"]},
        {"response_format": {"type": "json_object"}},
    ],
    ids=str,
)
def test_parameters_that_make_no_sense_are_bad_requests(dialect, odd):
    line = Line(dialect)
    with pytest.raises(BadRequest, match=str(next(iter(odd)).split("_")[0])):
        line.ask([USER], "Yes.<|im_end|>", **odd)
    assert line.sequences() == []


def test_a_conversation_that_is_no_list_of_messages_is_a_bad_request(dialect):
    with pytest.raises(BadRequest, match="mapping"):
        Line(dialect).ask("Hello.", "Yes.<|im_end|>")


def test_stop_tokens_of_the_caller_stand_beside_the_templates(dialect):
    line = Line(dialect)
    stop = dialect.tokenizer.encode("x")[0]
    reply = line.ask([USER], "Yes.<|im_end|>", stop_token_ids=[stop], response_format={"type": "text"})
    assert line.sampler.arguments[0]["stop_token_ids"] == (*dialect.stop_token_ids, stop)
    line.ask([USER, message(reply), USER], "Well x", stop_token_ids=[stop])
    assert len(line.sequences()) == 1


def test_a_prompt_is_counted_as_it_is_sent(dialect):
    line = Line(dialect)
    messages = [USER]
    for text in ("Yes.<|im_end|>", "No.<|im_end|>", "cut"):
        counted = line.session.count_tokens(messages, TOOLS)
        finish = "stop" if text.endswith(">") else "length"
        reply = line.ask(messages, text, TOOLS, finish=finish)
        assert counted == reply.usage.prompt_tokens == len(line.sampler.seen[-1][0])
        messages += [message(reply), {"role": "user", "content": "<|im_end|> more"}]
    messages[1] = {"role": "assistant", "content": "never said"}
    counted = line.session.count_tokens(messages, TOOLS)
    assert counted == line.ask(messages, "x<|im_end|>", TOOLS).usage.prompt_tokens
    assert len(line.session.forks) == 1, "counting is no turn"
