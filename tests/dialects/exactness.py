"""Conversations with a model that samples what it is told, and what must hold of their tokens."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from environments.dialects.base import Rendered
from environments.dialects.marks import Guard, without_guards
from environments.dialects.messages import to_template
from environments.dialects.template import TemplateRefusal
from environments.dialects.template_dialect import TemplateDialect
from environments.inference.managed_session import ManagedSession
from environments.inference.token_sampling import TokenReply
from environments.records import MASKED, MASKED_LOGPROB, Message, PolicySpan

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does something.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "Some text."}},
                "required": ["text"],
            },
        },
    }
    for name in ("look_up", "write_down")
]
NOW = datetime(2026, 1, 2, 3, 4)
PIECES = [
    *(
        "a",
        "Plain words. ",
        "\n",
        "\n\n",
        "  ",
        "\t",
        "é",
        "日本語",
        "e\u0301",
        "\u200b",
        "🙂👩‍👩‍👧",
        "\x00",
        "\ufeff",
    ),
    *(
        '"',
        "\\",
        "{",
        "}",
        '{"a": [1, "b"]}',
        "<",
        ">",
        "<|",
        "|>",
        "</",
        "1e5",
        "\uff1c\uff5c",
        "\ud800",
        "[/",
    ),
    *("\ufb01", "\ufdfa"),
]


@dataclass
class Sampler:
    """Gives the replies it is told to, and remembers what it was asked."""

    next_tokens: list[int] = field(default_factory=list)
    finish_reason: str = "stop"
    seen: list[tuple[list[int], list[int]]] = field(default_factory=list)
    arguments: list[dict[str, Any]] = field(default_factory=list)

    async def sample(
        self, prompt: Sequence[int], *, stop_token_ids: Sequence[int], max_tokens: int | None, **sampling: Any
    ) -> TokenReply:
        tokens = list(self.next_tokens)
        self.seen.append((list(prompt), tokens))
        self.arguments.append({"stop_token_ids": tuple(stop_token_ids), "max_tokens": max_tokens, **sampling})
        return TokenReply(
            tokens=tokens,
            logprobs=[-0.25 * (1 + index % 3) for index in range(len(tokens))],
            finish_reason=self.finish_reason,
            prompt_tokens=list(prompt),
            policy_versions=[PolicySpan(0, len(tokens), str(len(self.seen)))] if tokens else [],
        )


def hostile_text(rng: random.Random, dialect: TemplateDialect, longest: int = 12) -> str:
    """Text with everything in it that could be taken for something else."""
    controls = list(dialect.tokenizer.controls)
    pieces = []
    for _ in range(rng.randint(0, longest)):
        look_alike = rng.choice(controls)
        cut = rng.randint(1, len(look_alike))
        pieces.append(rng.choice([rng.choice(PIECES), look_alike, look_alike[:cut], look_alike[cut:]]))
    return "".join(pieces) * rng.choice([1, 1, 1, 1, 40])


def plain_text(rng: random.Random) -> str:
    """Text that the tokenizer cuts the same way wherever it stands."""
    words = ("alpha", "Beta", "gamma-3", "naïve", "日本", "done.", "x = 1;", '{"k": 2}')
    return " ".join(rng.choice(words) for _ in range(rng.randint(1, 8)))


def template_text(
    dialect: TemplateDialect, messages: Sequence[Message], *, generation: bool, tools: Any = TOOLS
) -> str:
    """The conversation as a server would render it."""
    prepared = dialect.family.prepare(to_template(messages, Guard([]), dialect.style))
    text = dialect.template.render(
        prepared, tools, generation=generation, options=dialect.options, now=datetime.now()
    )
    return without_guards(text)


def canonical_reply(
    dialect: TemplateDialect, messages: Sequence[Message], reply: Message, tools: Any = TOOLS
) -> str | None:
    """The text that a model would sample for ``reply`` if it wrote as its template does."""
    try:
        prompt = template_text(dialect, messages, generation=True, tools=tools)
        # What follows the reply shows what its turn ends with, where that is what comes next.
        whole = template_text(dialect, [*messages, reply], generation=False, tools=tools)
        if reply.get("tool_calls"):
            results = [
                {"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"], "content": "R"}
                for c in reply["tool_calls"]
            ]
            whole = template_text(dialect, [*messages, reply, *results], generation=False, tools=tools)
    except TemplateRefusal:
        return None
    if not whole.startswith(prompt):
        return None
    for _, end, control in dialect.tokenizer.find_controls(whole):
        if end > len(prompt) and control.id in dialect.stop_token_ids:
            return whole[len(prompt) : end]
    return None


def call(rng: random.Random, number: int, text: str) -> dict[str, Any]:
    """A call in OpenAI's form."""
    name = rng.choice(TOOLS)["function"]["name"]
    arguments = json.dumps({"text": text}, ensure_ascii=False)
    return {
        "id": f"functions.{name}:{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def encode_oddly(rng: random.Random, dialect: TemplateDialect, text: str) -> list[int]:
    """Tokens that decode to ``text`` and that no encoder would give."""
    ids: list[int] = []
    position = 0
    controls = dialect.tokenizer.find_controls(text)
    while position < len(text):
        border = next((c for c in controls if c[0] >= position), None)
        if border is not None and border[0] == position:
            ids.append(border[2].id)
            position = border[1]
            continue
        limit = border[0] if border else len(text)
        end = min(limit, position + rng.randint(1, 6))
        ids += dialect.tokenizer.encode(text[position:end], follows=True)
        position = end
    return ids


def check_session(session: ManagedSession, sampler: Sampler) -> None:
    """What must hold of the tokens of every conversation, whatever was said in it."""
    sequences = session.sequences()
    fork_turns = {turn for turn, _ in session.forks}
    assert all(reason for _, reason in session.forks)
    assert len(sequences) <= 1 + len(session.forks)
    for number, (prompt, sampled) in enumerate(sampler.seen, 1):
        before = [*sampler.seen[number - 2][0], *sampler.seen[number - 2][1]] if number > 1 else []
        extends = prompt[: len(before)] == before
        assert extends or number in fork_turns, f"turn {number} forked silently"
        whole = [*prompt, *sampled]
        assert any(s.tokens[: len(whole)] == whole for s in sequences), "a call is in no sequence"
    trained: list[int] = []
    for sequence in sequences:
        assert len(sequence.tokens) == len(sequence.mask) == len(sequence.logprobs)
        last = sequence.extra["turns"][-1]
        prompt, sampled = sampler.seen[last["turn"] - 1]
        assert sequence.tokens == [*prompt, *sampled], "a sequence is not what the server saw"
        expected = [MASKED] * len(sequence.tokens)
        for span in sequence.extra["turns"]:
            own = sampler.seen[span["turn"] - 1][1]
            assert sequence.tokens[span["start"] : span["end"]] == own
            if span["turn"] not in trained:
                trained.append(span["turn"])
                expected[span["start"] : span["end"]] = own
        assert sequence.mask == expected, "the mask is not exactly what was sampled"
        for mask, logprob in zip(sequence.mask, sequence.logprobs, strict=True):
            assert (logprob == MASKED_LOGPROB) if mask == MASKED else (logprob <= 0.0)
        for version in sequence.policy_versions:
            own = sampler.seen[int(version.version) - 1][1]
            assert sequence.tokens[version.start : version.end] == own
    assert sorted(trained) == list(range(1, len(sampler.seen) + 1)), "a turn is trained not once"


def check_appended(
    dialect: TemplateDialect, sampler: Sampler, messages: Sequence[Message], tools: Any, new: int
) -> None:
    """What was appended has the control tokens that it would have with harmless content, and no more."""
    (prompt, sampled), (after, _) = sampler.seen[-2:]
    before = [*prompt, *sampled]
    harmless = [{**m, "content": "x"} if m["content"].strip() else m for m in messages[len(messages) - new :]]
    tail = dialect.bridge(before, [*messages[: len(messages) - new], *harmless], tools, new=new)
    if isinstance(tail, Rendered):
        appended = after[len(before) :]
        assert controls_in(dialect, appended) == controls_in(dialect, tail.ids), "content became control"


def controls_in(dialect: TemplateDialect, ids: Sequence[int]) -> list[int]:
    """The control tokens among some ids."""
    return [token for token in ids if dialect.tokenizer.control(token) is not None]


def as_encoded(text: str) -> str:
    """Text as it comes back from tokens: lone surrogates replaced, composed."""
    text = "".join("\ufffd" if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)
    return unicodedata.normalize("NFC", text)


async def random_conversation(
    dialect: TemplateDialect, rng: random.Random, *, turns: int = 6
) -> tuple[ManagedSession, Sampler, list[Message]]:
    """Hold a conversation in which everything that can be odd is odd."""
    sampler = Sampler()
    session = ManagedSession(dialect, sampler)
    tools = TOOLS if dialect.tools_problem is None else None
    messages: list[Message] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": hostile_text(rng, dialect)})
    messages.append({"role": "user", "content": hostile_text(rng, dialect) or "Hello."})
    new = 0
    for number in range(turns):
        sampler.next_tokens, sampler.finish_reason = _sampled(rng, dialect, messages, tools, number)
        reply = (await session.chat_completion(messages, tools)).choices[0].message
        if number and number + 1 not in dict(session.forks):
            check_appended(dialect, sampler, messages, tools, new)
        known = len(messages) + 1
        messages.append(_normalised(rng, reply.to_message()))
        if reply.tool_calls:
            order = list(reply.tool_calls)
            for tool_call in order:
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": tool_call.id,
                        "name": tool_call.function.name,
                        "content": hostile_text(rng, dialect),
                    }
                )
        else:
            messages.append({"role": "user", "content": hostile_text(rng, dialect) or "Go on."})
        new = len(messages) - known
        check_session(session, sampler)
    return session, sampler, messages


def _sampled(
    rng: random.Random, dialect: TemplateDialect, messages: list[Message], tools: Any, number: int
) -> tuple[list[int], str]:
    """Tokens of one reply: as the template writes it, oddly cut, truncated, or any tokens at all."""
    stop = rng.choice(dialect.stop_token_ids)
    kind = rng.random()
    if kind < 0.1:
        return [], "stop"
    if kind < 0.2:
        return [stop], "stop"
    if kind < 0.35:
        tokens = [rng.randrange(200) for _ in range(rng.randint(1, 20))]
        tokens += [c.id for c in rng.sample(list(dialect.tokenizer.controls.values()), 2)]
        tokens = [token for token in tokens if token not in dialect.stop_token_ids]
        return ([*tokens, stop], "stop") if rng.random() < 0.5 else (tokens, "length")
    reply: Message = {"role": "assistant", "content": plain_text(rng)}
    if tools and rng.random() < 0.7:
        reply["tool_calls"] = [call(rng, 10 * number + i, plain_text(rng)) for i in range(rng.randint(1, 2))]
        reply["content"] = None
    if rng.random() < 0.5:
        reply["reasoning_content"] = plain_text(rng)
    text = canonical_reply(dialect, messages, reply, tools)
    tokens = encode_oddly(rng, dialect, text if text is not None else plain_text(rng))
    if not tokens or tokens[-1] not in dialect.stop_token_ids:
        tokens.append(stop)
    if rng.random() < 0.2:
        return tokens[: rng.randrange(len(tokens))], "length"
    return tokens, "stop"


def _normalised(rng: random.Random, message: Message) -> Message:
    """The reply as some agent may give it back."""
    message = dict(message)
    if isinstance(message.get("content"), str) and rng.random() < 0.3:
        message["content"] = message["content"].strip()
    if message.get("content") is None and rng.random() < 0.3:
        message["content"] = ""
    if rng.random() < 0.3:
        message.pop("reasoning_content", None)
    if message.get("tool_calls") and rng.random() < 0.3:
        message["tool_calls"] = [
            {**c, "function": {**c["function"], "arguments": json.loads(c["function"]["arguments"])}}
            for c in message["tool_calls"]
        ]
    return message


async def canonical_conversation(
    dialect: TemplateDialect, rng: random.Random, *, turns: int = 5, thinks: bool = False
) -> tuple[ManagedSession, Sampler, list[Message], int]:
    """Hold a conversation with a model that writes as its template does; returns the number of turns
    whose prompt was compared with a full rendering of the conversation."""
    sampler = Sampler()
    session = ManagedSession(dialect, sampler)
    tools = TOOLS if dialect.tools_problem is None else None
    messages: list[Message] = [{"role": "user", "content": plain_text(rng)}]
    compared = 0
    known: str | None = None
    merges = False
    for number in range(turns):
        rendered = template_text(dialect, messages, generation=True, tools=tools)
        stable = known is None or rendered.startswith(known)
        reply: Message = {"role": "assistant", "content": plain_text(rng)}
        if tools and rng.random() < 0.8:
            reply["tool_calls"] = [call(rng, number, plain_text(rng))]
            reply["content"] = None
        if thinks:
            reply["reasoning_content"] = plain_text(rng)
        text = canonical_reply(dialect, messages, reply, tools)
        if text is None:  # the template writes no end after a call, or not what it began
            reply = {"role": "assistant", "content": reply["content"] or plain_text(rng)}
            text = canonical_reply(dialect, messages, reply, tools)
        if text is None:
            return session, sampler, messages, compared
        sampler.next_tokens = dialect.tokenizer.encode(text, follows=True)
        answer = (await session.chat_completion(messages, tools)).choices[0].message
        if stable:
            prompt = sampler.seen[-1][0]
            expected = dialect.tokenizer.encode_like_everybody(rendered)
            if merges:  # text that was cut where the reply began cannot come out in one token
                assert dialect.tokenizer.decode(prompt) == dialect.tokenizer.decode(expected)
            else:
                assert prompt == expected, "not the full rendering"
            compared += 1
        whole = [*sampler.seen[-1][0], *sampler.next_tokens]
        known = dialect.tokenizer.decode(whole)
        merges = dialect.tokenizer.encode_like_everybody(known) != whole
        messages.append(answer.to_message())
        for tool_call in answer.tool_calls or []:
            name = tool_call.function.name
            messages.append(
                {"role": "tool", "tool_call_id": tool_call.id, "name": name, "content": plain_text(rng)}
            )
        if not answer.tool_calls:
            messages.append({"role": "user", "content": plain_text(rng)})
    check_session(session, sampler)
    return session, sampler, messages, compared
