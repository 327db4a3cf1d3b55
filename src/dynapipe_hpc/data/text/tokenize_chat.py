"""Samples of conversations: tokens of the text, cut where the last trained turn begins."""

from collections.abc import Sequence
from typing import NamedTuple

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.spans import Span
from dynapipe_hpc.data.text.chat_template import ChatTemplate, Rendered
from dynapipe_hpc.data.text.chat_turns import Turns, TurnSamples, turn_samples
from dynapipe_hpc.data.text.conversation import Conversation
from dynapipe_hpc.data.text.record_fields import texts_in
from dynapipe_hpc.data.text.tokenizers import Tokenizer


class ChatSample(NamedTuple):
    """Tokens of a conversation; the target begins with the last trained turn."""

    inputs: Sequence[int]
    targets: Sequence[int]
    spans: list[Span]


def render(
    conversation: Conversation, template: ChatTemplate, turns: Turns, tokenizer: Tokenizer
) -> TurnSamples:
    """Texts of the samples of a conversation.

    Raises:
        InputError: The template refuses it, or a message spells a special token, which would be
            that token, but `--special-tokens` is not set.
    """
    check_special_tokens(conversation, tokenizer)
    return turn_samples(conversation, template.apply(conversation), turns)


def check_special_tokens(conversation: Conversation, tokenizer: Tokenizer) -> None:
    """Refuses messages that spell a special token, unless they may.

    Raises:
        InputError: A message does; names the token.
    """
    if tokenizer.special_tokens:
        return
    for text in texts_in(conversation.all_values):
        if (token := tokenizer.special_in(text)) is not None:
            raise InputError(
                f"a message spells the special token {token}; --special-tokens accepts it"
            )


def turn_end_ids(sample: Rendered, tokenizer: Tokenizer) -> set[int]:
    """Ids of the added tokens that end trained turns; blank space may follow them."""
    ids: set[int] = set()
    for end in sample.turn_ends:
        turn = sample.text[:end].rstrip()
        token_id = tokenizer.last_added_id(turn)
        if token_id is not None and any(first < len(turn) <= last for first, last in sample.spans):
            ids.add(token_id)
    return ids


def chat_sample(ids: Sequence[int], spans: Sequence[Span], tokenizer: Tokenizer) -> ChatSample:
    """Cuts the tokens of a conversation into input and target.

    Raises:
        InputError: The assistant's text has no token, or only the first, which is not predicted.
    """
    merged: list[Span] = []
    for start, end in spans:
        if start == end:  # text of which the tokenizer makes no token
            continue
        if merged and start < merged[-1][1]:  # a token of both
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    if not merged:
        raise InputError("no token of the assistant, so there is nothing to learn")
    cut, end = merged[-1]
    if tokenizer.start_id is None and cut == 0 and end == 1:
        raise InputError("only the first token is of the assistant, and nothing predicts it")
    inputs, targets = list(ids[:cut]), ids[cut:]
    if tokenizer.input_end_id is not None:
        inputs.append(tokenizer.input_end_id)
        merged[-1] = (cut + 1, end + 1)
    return ChatSample(inputs, targets, merged)
