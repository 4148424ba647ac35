"""Decoding sampled tokens so that control tokens and text that looks like them stay apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol


class TokenDecoder(Protocol):
    """The part of a tokenizer that is needed; ``tokenizers`` and ``transformers`` both have it.

    Beside ``decode`` it has ``token_to_id`` or ``convert_tokens_to_ids``.
    """

    def decode(self, ids: Any, skip_special_tokens: bool = ..., /) -> Any:
        """The text of ``ids``."""
        ...


def decode_with_markers(
    ids: Sequence[int], tokenizer: TokenDecoder, markers: Collection[str]
) -> tuple[str, dict[str, frozenset[int]]]:
    """The text of ``ids`` with all special tokens, and where each marker was sampled as one token.

    Markers that the tokenizer does not have as a token are not in the second part.
    """
    marker_of = {token: marker for marker in markers if (token := _token_id(tokenizer, marker)) is not None}
    places: dict[str, list[int]] = {marker: [] for marker in marker_of.values()}
    pieces: list[str] = []
    length = begin = 0
    for index in range(len(ids) + 1):
        if index < len(ids) and ids[index] not in marker_of:
            continue
        if begin < index:
            # A marker is decoded with what follows it: some decoders drop a blank at the very start.
            piece = str(tokenizer.decode(list(ids[begin:index]), False))
            marker = marker_of.get(ids[begin])
            if marker is not None:
                places[marker].append(length + max(piece.find(marker), 0))
            pieces.append(piece)
            length += len(piece)
        begin = index
    return "".join(pieces), {marker: frozenset(found) for marker, found in places.items()}


def _token_id(tokenizer: Any, marker: str) -> int | None:
    if hasattr(tokenizer, "token_to_id"):
        found = tokenizer.token_to_id(marker)
    else:
        found = tokenizer.convert_tokens_to_ids(marker)
        if found == getattr(tokenizer, "unk_token_id", None):
            found = None
    return found if isinstance(found, int) else None
