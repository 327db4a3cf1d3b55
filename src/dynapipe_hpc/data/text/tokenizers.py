"""Tokenizers: from text to token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tokenizers

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.tokenizer_files import BYTES, TokenizerFiles, explained
from dynapipe_hpc.data.trained_tokens import Span

END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
"""Well-known names of the end-of-sequence token, most likely first."""
PAD_TOKEN = "<pad>"  # noqa: S105
NO_TOKEN = "none"  # noqa: S105 (not a password)
"""Value of an option that names no token."""

Marked = tuple[Sequence[int], list[Span]]
"""Token ids of a text, and spans of them that are marked."""


def utf8_of(text: str) -> bytes:
    """Bytes of a text, wherever in a record or a template it comes from."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InputError(f"a text holds half of a surrogate pair, \\u{code:x}") from None


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer, which can be sent to another process.

    Without files every UTF-8 byte is a token, and one more ends the sequence.

    `start_id`: The token that models read before every sample; None if samples begin with a start
    token of their own. `added_ids`: Ids of the added tokens, which are names rather than pieces of
    text, by name.
    """

    files: TokenizerFiles = BYTES
    vocab_size: int = 257  # largest token id + 1, added tokens included
    eos_id: int = 256
    start_id: int | None = 256
    input_end_id: int | None = None  # the token that ends every input, as in a T5
    special_tokens: bool = False  # whether text that spells the name of one becomes that token
    special_texts: tuple[str, ...] = ()
    added_ids: Mapping[str, int] = field(default_factory=dict)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens; what is not UTF-8 is replaced."""
        if (model := self.files.model) is None:
            return bytes(i for i in ids if i < self.eos_id).decode(errors="replace")
        text: str = model.decode(ids, skip_special_tokens=True)
        return text

    def encode(
        self, text: str, spans: Sequence[Span] = (), *, special_tokens: bool = True
    ) -> Marked:
        """Token ids of a text, and for each of its spans the tokens that hold its characters.

        `special_tokens`: Whether text that spells the name of a special token becomes that token.
        """
        content = utf8_of(text)
        if (model := self.files.model) is not None:
            with explained(f"{self.files.name}: cannot make tokens of the text"):
                # Set each time, because it is not kept when sent to another process.
                model.encode_special_tokens = not special_tokens
                encoded = model.encode(text, add_special_tokens=False)
            return encoded.ids, [_tokens_of(encoded, span) for span in spans]
        if len(content) == len(text):  # ASCII: every character is a token
            return content, list(spans)
        return content, [(len(text[:a].encode()), len(text[:b].encode())) for a, b in spans]


def load_tokenizer(
    files: TokenizerFiles,
    end_token: str | None = None,
    *,
    start_token: str | None = None,
    input_end_token: str | None = None,
    special_tokens: bool = False,
) -> Tokenizer:
    """Loads a tokenizer.

    `end_token`: Text of the token that ends a sequence; by default a well-known one. `start_token`,
    `input_end_token`: Text of the token before every sample, or after every input, or "none"; by
    default the one that a model was trained to read, see `_default_ends`.
    """
    named = {"--start": start_token, "--inputs-end": input_end_token}
    if (model := files.model) is None:
        _check_tokens({"--eos": end_token, **named}, {}, "the byte tokenizer")
        if special_tokens:
            raise InputError("--special-tokens: the byte tokenizer has none; leave it out")
        return Tokenizer(start_id=None) if start_token == NO_TOKEN else Tokenizer()
    name, ids = files.name, model.get_vocab()
    end = files.names.get("eos_token") if end_token is None else end_token
    if end is None and (end := next(filter(ids.__contains__, END_TOKENS), None)) is None:
        raise InputError(
            f"{name}: none of its tokens is known to end a sequence ({', '.join(END_TOKENS)}); "
            "name the one that does: --eos TOKEN"
        )
    _check_tokens({"--eos": end, **named}, ids, name)
    # Files differ in whether they call it special.
    added = {token.content: token for token in model.get_added_tokens_decoder().values()}
    token = added.get(end, tokenizers.AddedToken(end, normalized=False))
    token.special = True
    model.add_tokens([token])
    with explained(f"{name}: cannot make tokens of {end}"):
        ends = _default_ends(files, model, ids[end])
    start_id, input_end_id = (
        default if token is None else None if token == NO_TOKEN else ids[token]
        for token, default in zip(named.values(), ends, strict=True)
    )
    n_ids = max(ids.values()) + 1
    by_id = model.get_added_tokens_decoder()
    return Tokenizer(
        files,
        n_ids,
        ids[end],
        start_id,
        input_end_id,
        special_tokens,
        tuple(token.content for token in by_id.values() if token.special),
        {token.content: number for number, token in by_id.items()},
    )


def _default_ends(
    files: TokenizerFiles, model: tokenizers.Tokenizer, eos_id: int
) -> tuple[int | None, int | None]:
    """The tokens that a model was trained to read before every sample and after every input.

    A tokenizer that appends an end token, as T5's does, belongs to an encoder-decoder model, unless
    its files say otherwise: inputs end with that token, and the decoder begins with the padding
    token. If it puts a token before text, as Llama's does, that is the start token, even if it is
    the end token. If it adds nothing, the end-of-sequence token is also the start token, as in a
    GPT-2, unless its files name another one, or none (Qwen).
    """
    text = model.encode(model.id_to_token(eos_id))  # which every tokenizer makes a token of
    is_text = [sequence is not None for sequence in text.sequence_ids]
    before = text.ids[: is_text.index(True)]
    after = text.ids[len(is_text) - is_text[::-1].index(True) :]
    if not before and after == [eos_id] and not files.is_decoder_only:
        pad = model.token_to_id(files.names.get("pad_token", PAD_TOKEN))
        return eos_id if pad is None else pad, eos_id
    bos = files.names.get("bos_token")
    if before if files.adds_start is None else files.adds_start:
        return (before[0] if before else model.token_to_id(bos or "")), None
    starts_with_end = not files.has_no_start if bos is None else bos == model.id_to_token(eos_id)
    return (eos_id if starts_with_end else None), None


def encode_answer(prompt: str, answer: str, tokenizer: Tokenizer) -> tuple[Sequence[int], int]:
    """Token ids of a prompt, its answer and the end token, and the index of the answer's first.

    Both are tokenized as one text, and a token that spans both counts as answer. For an
    encoder-decoder model they are tokenized as two texts.
    """
    special_tokens = tokenizer.special_tokens
    ids: Sequence[int]
    if (input_end := tokenizer.input_end_id) is not None:
        inputs, targets = (
            tokenizer.encode(text, special_tokens=special_tokens)[0] for text in (prompt, answer)
        )
        ids, start = [*inputs, input_end, *targets], len(inputs) + 1
    else:
        text = prompt + answer
        ids, [(start, _)] = tokenizer.encode(
            text, [(len(prompt), len(text))], special_tokens=special_tokens
        )
        start = start if prompt else 0
    is_ended = start < len(ids) and ids[-1] == tokenizer.eos_id
    return ids if is_ended else [*ids, tokenizer.eos_id], start


def _tokens_of(encoded: tokenizers.Encoding, span: Span) -> Span:
    """The tokens that hold the characters of a span; empty, after all tokens, if none does."""
    tokens = (encoded.char_to_token(at) for at in range(*span))
    first = next((token for token in tokens if token is not None), None)
    if first is None:
        return len(encoded), len(encoded)
    back = (encoded.char_to_token(at) for at in reversed(range(*span)))
    last = next(token for token in back if token is not None)
    # If a character is several tokens, the library finds only the first.
    while (held := encoded.token_to_chars(last + 1)) and held[0] < span[1]:
        last += 1
    return first, last + 1


def _check_tokens(named: Mapping[str, str | None], ids: Mapping[str, int], name: str) -> None:
    """Refuses options that name tokens which a tokenizer does not have; None names no token."""
    for option, token in named.items():
        may_be_none = option != "--eos"
        if token is not None and token not in ids and not (may_be_none and token == NO_TOKEN):
            advice = f"; for none write {NO_TOKEN}" if may_be_none else ""
            raise InputError(f"{option} {token}: {name} has no such token{advice}")
