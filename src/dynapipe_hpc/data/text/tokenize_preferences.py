"""Samples of preference pairs: tokens of the prompt, once, and of both answers."""

from collections.abc import Sequence
from typing import NamedTuple

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.chat_template import ChatTemplate, Rendered
from dynapipe_hpc.data.text.locate_turn import start_of_turn
from dynapipe_hpc.data.text.preferences import ChatPreference, TextPreference
from dynapipe_hpc.data.text.tokenize_chat import check_special_tokens
from dynapipe_hpc.data.text.tokenizers import Tokenizer, encode_answers


class PairSample(NamedTuple):
    """Tokens of a preference pair; both answers follow the prompt."""

    prompt: Sequence[int]
    chosen: Sequence[int]
    rejected: Sequence[int]


class RenderedPair(NamedTuple):
    """Texts of a preference pair, each with the span of its answer."""

    chosen: Rendered
    rejected: Rendered


def render_pair(pair: ChatPreference, template: ChatTemplate, tokenizer: Tokenizer) -> RenderedPair:
    """Texts of both conversations, whose answers begin after the generation prompt.

    An answer is all that follows the prompt, messages of others than the assistant included.

    Raises:
        InputError: The template refuses them or writes the prompt otherwise before more messages
            or the other answer, or a message spells a special token, but `--special-tokens` is not
            set.
    """
    texts = []
    for conversation in (pair.chosen, pair.rejected):
        check_special_tokens(conversation, tokenizer)
        chat = template.apply(conversation)
        text, start = chat.whole().text, start_of_turn(chat, pair.n_shared).position
        if text[:start] != chat.until(pair.n_shared + 1).text[:start]:
            raise InputError(
                f"{template.name} writes messages otherwise when others follow, so that an answer "
                "of several messages does not go on from its prompt; keep one message of each "
                "answer, or name another template: --template FILE"
            )
        if start >= len(text):
            raise InputError(f"{template.name} shows no text of an answer")
        texts.append(Rendered(text, [(start, len(text))], (len(text),)))
    chosen, rejected = texts
    prompts = [text.text[: text.spans[0][0]] for text in texts]
    if prompts[0] != prompts[1]:
        raise InputError(f"{template.name} writes the prompt otherwise before the other answer")
    return RenderedPair(chosen, rejected)


def tokens_of_texts(
    pairs: Sequence[TextPreference], tokenizer: Tokenizer
) -> list[PairSample | InputError]:
    """Tokens of pairs of texts, whose answers end with the end-of-sequence token."""
    texts = [(pair.prompt, answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    found = encode_answers(texts, tokenizer)
    return [
        _checked(_pair_sample(*both), tokenizer)
        for both in zip(found[::2], found[1::2], strict=True)
    ]


def tokens_of_rendered(
    pairs: Sequence[RenderedPair], tokenizer: Tokenizer
) -> list[PairSample | InputError]:
    """Tokens of rendered pairs, each text split as a whole.

    The prompt is what both begin with, up to the first token of an answer.
    """
    every = [text for pair in pairs for text in pair]
    marked = tokenizer.encode_marked([text.text for text in every], [text.spans for text in every])
    starts = [(ids, start) for ids, [(start, _)] in marked]
    return [
        _checked(_pair_sample(*both), tokenizer)
        for both in zip(starts[::2], starts[1::2], strict=True)
    ]


def _pair_sample(
    chosen: tuple[Sequence[int], int], rejected: tuple[Sequence[int], int]
) -> PairSample:
    (one, cut), (other, other_cut) = chosen, rejected
    most = min(cut, other_cut)
    n = next((i for i in range(most) if one[i] != other[i]), most)
    return PairSample(one[:n], one[n:], other[n:])


def _checked(sample: PairSample, tokenizer: Tokenizer) -> PairSample | InputError:
    if not sample.chosen or not sample.rejected or list(sample.chosen) == list(sample.rejected):
        return InputError("the tokens of both answers are the same, or there are none")
    if tokenizer.start_id is None and not sample.prompt:
        return InputError(
            "the prompt has no token, and there is no start token before the answers; give the "
            "record a prompt, or name a token: --start TOKEN"
        )
    return sample
