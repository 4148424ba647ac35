"""Encoding of rendered conversations: the template's control tokens count, those of content do not.

A rendered text is cut at its control tokens. What stands between two of them is encoded as one piece,
by a copy of the tokenizer that knows no control token at all; so the ids are those that the tokenizer
itself gives, as long as no content looks like a control token, and where it does it stays text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from environments.dialects.marks import INNER, Guard, trie_pattern, without_guards
from environments.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TEXTUAL = re.compile(r"[\s▁]+")
_UNREACHABLE = "\N{NULL}control token {}\N{NULL}"


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that the tokenizer finds by its literal text. ``lstrip`` and ``rstrip`` say on which
    side it swallows white space."""

    id: int
    text: str
    special: bool
    lstrip: bool
    rstrip: bool


class ChatTokenizer:
    """A ``tokenizers`` tokenizer that tells a template's control tokens from look-alikes in content."""

    def __init__(self, backend: Tokenizer, state: dict[str, Any]) -> None:
        """``state`` is what the tokenizer's ``tokenizer.json`` holds."""
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        # Runs of white space are added tokens in some vocabularies, and text all the same.
        self.controls = {
            token.content: ControlToken(number, token.content, token.special, token.lstrip, token.rstrip)
            for number, token in added.items()
            if token.content and not _TEXTUAL.fullmatch(token.content)
        }
        self._control_ids = {control.id: control for control in self.controls.values()}
        pattern = trie_pattern(self.controls)
        self._control = re.compile(f"(?:{pattern})(?!{INNER})") if pattern else None
        self.guard = Guard(self.controls)
        self._anchor = f"\ue000{secrets.token_hex(16)}\ue001"
        self._plain = _without_controls(state, self.controls)
        self._plain.add_special_tokens([_anchor_token(self._anchor)])

    def encode(self, text: str, *, follows: bool = False) -> list[int]:
        """Ids of a rendered text. Nothing is put before or after it.

        ``follows`` says that it comes after a control token, and not at the beginning.
        """
        ids: list[int] = []
        position, strips = 0, False
        for match in self._control.finditer(text) if self._control else ():
            control = self.controls[match.group()]
            run = text[position : match.start()]
            ids += self._encode_run(run, follows or bool(ids), strips, control.lstrip)
            ids.append(control.id)
            position, strips = match.end(), control.rstrip
        return ids + self._encode_run(text[position:], follows or bool(ids), strips, False)

    def decode(self, ids: Any, skip_special_tokens: bool = False, /) -> str:
        """Text of ``ids``, control tokens included unless they are to be skipped."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_to_id(self, token: str) -> int | None:
        """The id of one token by its text, None where there is no such token."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def control(self, number: int) -> ControlToken | None:
        """The control token of that id, None for any other token."""
        return self._control_ids.get(number)

    def find_controls(self, text: str) -> list[tuple[int, int, ControlToken]]:
        """Start, end and token of every control token in a rendered text."""
        matches = self._control.finditer(text) if self._control else ()
        return [(match.start(), match.end(), self.controls[match.group()]) for match in matches]

    def encode_like_everybody(self, text: str) -> list[int]:
        """What the tokenizer itself makes of ``text``, look-alikes taken for control tokens."""
        ids: list[int] = self._backend.encode(without_guards(text), add_special_tokens=False).ids
        return ids

    def _encode_run(self, run: str, follows: bool, strip_start: bool, strip_end: bool) -> list[int]:
        run = without_guards(run)
        if strip_start:
            run = run.lstrip()
        if strip_end:
            run = run.rstrip()
        if not run:
            return []
        if not follows:
            ids: list[int] = self._plain.encode(run, add_special_tokens=False).ids
            return ids
        # Some tokenizers treat the very beginning of a text otherwise than what follows a control
        # token; the anchor stands for that token.
        ids = self._plain.encode(self._anchor + run, add_special_tokens=False).ids
        return ids[1:]


def _anchor_token(text: str) -> Any:
    from tokenizers import AddedToken

    return AddedToken(text, special=True, normalized=False)


def _without_controls(state: dict[str, Any], controls: dict[str, ControlToken]) -> Tokenizer:
    """A copy that gives no control token whatever it reads. Raises ``ConfigError`` if there is none."""
    from tokenizers import Tokenizer

    added = [token for token in state.get("added_tokens") or [] if token["content"] not in controls]
    state = {**state, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
    plain = Tokenizer.from_buffer(orjson.dumps(state))
    reachable = _reachable(plain, controls)
    if reachable:
        state["model"] = _hidden(state["model"], [controls[text] for text in reachable])
        plain = Tokenizer.from_buffer(orjson.dumps(state))
        if left := _reachable(plain, controls):
            shown = ", ".join(sorted(left)[:3])
            raise ConfigError(
                f"the tokenizer makes control tokens of plain text ({shown}): content is not safe"
            )
    return plain


def _reachable(plain: Tokenizer, controls: dict[str, ControlToken]) -> list[str]:
    # One by one: encoding in a batch starts threads, which the library warns of at every fork.
    return [
        text
        for text, control in controls.items()
        if control.id in plain.encode(text, add_special_tokens=False).ids
    ]


def _hidden(model: dict[str, Any], controls: Sequence[ControlToken]) -> dict[str, Any]:
    """The model with the entries of some control tokens renamed, so that no text leads to them."""
    model, texts = dict(model), {control.text for control in controls}
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = vocabulary = dict(vocabulary)
        for control in controls:
            if vocabulary.pop(control.text, None) is not None:
                vocabulary[_UNREACHABLE.format(control.id)] = control.id
    elif isinstance(vocabulary, list):
        model["vocab"] = vocabulary = [list(entry) for entry in vocabulary]
        for control in controls:
            if control.id < len(vocabulary) and control.id != model.get("unk_id"):
                vocabulary[control.id][0] = _UNREACHABLE.format(control.id)
    if isinstance(model.get("merges"), list):
        model["merges"] = [merge for merge in model["merges"] if _merged(merge) not in texts]
    return model


def _merged(merge: str | Sequence[str]) -> str:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    return "".join(parts)
