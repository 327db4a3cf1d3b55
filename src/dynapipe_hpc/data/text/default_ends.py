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
    model: tokenizers.Tokenizer, eos_id: int, config: Mapping[str, Any] | None = None
) -> Ends:
    """The tokens that a model was trained to read around text.

    A tokenizer that ends text, as T5's does, belongs to an encoder-decoder model: its inputs end
    like that, and its decoder begins with the token of padding. One that puts a token before text,
    as Llama's does, gives the start token. Where it adds nothing, the end-of-sequence token is also
    the start token, as in a GPT-2, unless its configuration has another one or none (Qwen).

    Args:
        model: The tokenizer.
        eos_id: Id of the end-of-sequence token.
        config: Content of `tokenizer_config.json`, if there is one.
    """
    config = config or {}
    added = model.encode("").ids
    if added == [eos_id]:
        pad = model.token_to_id(token_text(config.get("pad_token")) or PAD_TOKEN)
        return Ends(eos_id if pad is None else pad, eos_id)
    eos = model.id_to_token(eos_id)
    bos = token_text(config.get("bos_token", eos))
    adds_start = config.get("add_bos_token")
    if adds_start is None:
        adds_start = bool(added) and added[0] != eos_id
    if adds_start:
        start_id = added[0] if added else model.token_to_id(bos or "")
        return Ends(start_id, None)
    return Ends(eos_id if bos == eos else None, None)


def token_text(token: object) -> str | None:
    """Text of a token in `tokenizer_config.json`: a string, or a table with its `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
