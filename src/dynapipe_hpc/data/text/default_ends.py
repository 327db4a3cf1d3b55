"""Tokens around text that a tokenizer's own files ask for."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tokenizers

PAD_TOKEN = "<pad>"  # noqa: S105 (not a password)


class Ends(NamedTuple):
    """Tokens before every sample and after every input; None for no such token."""

    start_id: int | None
    input_end_id: int | None


def default_ends(
    model: tokenizers.Tokenizer,
    eos_id: int,
    config: Mapping[str, Any] | None = None,
    *,
    is_decoder_only: bool = False,
) -> Ends:
    """The tokens that a model was trained to read around text.

    A tokenizer that ends text, as T5's does, belongs to an encoder-decoder model, unless it is
    known otherwise: its inputs end like that, and its decoder begins with the token of padding. One
    that puts a token before text, as Llama's does, gives the start token, which may be that of the
    end. Where it adds nothing, the end-of-sequence token is also the start token, as in a GPT-2,
    unless its configuration has another one or none (Qwen).

    Args:
        model: The tokenizer.
        eos_id: Id of the end-of-sequence token.
        config: Content of `tokenizer_config.json`, if there is one.
        is_decoder_only: Whether the model is known to have no encoder.
    """
    config = config or {}
    before, after = _around_text(model, eos_id)
    if not before and after == [eos_id] and not is_decoder_only:
        pad = model.token_to_id(token_text(config.get("pad_token")) or PAD_TOKEN)
        return Ends(eos_id if pad is None else pad, eos_id)
    eos = model.id_to_token(eos_id)
    bos = token_text(config.get("bos_token", eos))
    adds_start = config.get("add_bos_token")
    if adds_start is None:
        adds_start = bool(before)
    if adds_start:
        start_id = before[0] if before else model.token_to_id(bos or "")
        return Ends(start_id, None)
    return Ends(eos_id if bos == eos else None, None)


def _around_text(model: tokenizers.Tokenizer, eos_id: int) -> tuple[list[int], list[int]]:
    """Tokens that a tokenizer puts before text and after it."""
    text = model.encode(model.id_to_token(eos_id))  # which every tokenizer makes a token of
    is_text = [sequence is not None for sequence in text.sequence_ids]
    start, end = is_text.index(True), len(is_text) - is_text[::-1].index(True)
    return text.ids[:start], text.ids[end:]


def token_text(token: object) -> str | None:
    """Text of a token in `tokenizer_config.json`: a string, or a table with its `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
