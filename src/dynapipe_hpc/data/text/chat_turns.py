"""Turns of a conversation: the samples that they make, and what is trained in each."""

from enum import StrEnum

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.chat_template import ChatText, RefusalError, Rendered
from dynapipe_hpc.data.text.conversation import Conversation, n_shared
from dynapipe_hpc.data.text.messages import ASSISTANT
from dynapipe_hpc.data.trained_tokens import Span

_PROBE = "\ue000"
"""A character of private use, which stands for any answer."""


def stays(text: str, longer: str) -> bool:
    """Whether `longer` begins with `text`, apart from blank space at the end of `text`."""
    return not text[n_shared(text, longer) :].strip()


def start_of_turn(chat: ChatText, k: int) -> int:
    """The position at which turn `k` starts in the text of the messages up to it.

    The turn follows the generation prompt. If that prompt holds more than the template writes
    before this answer, such as an opening of reasoning, the turn follows what the template writes
    before any answer.

    Raises `RefusalError`: The template refuses the messages up to the turn. Raises `InputError`:
    The template changes the messages before it.
    """
    text = chat.until(k + 1).text
    try:
        prompt = chat.until(k, asks=True).text
    except RefusalError:  # as for a turn that is the first message
        return n_shared(text, chat.answering(k, _PROBE).until(k + 1).text)
    if text.startswith(prompt):
        return len(prompt)
    start = min(n_shared(prompt, text), n_shared(text, chat.answering(k, _PROBE).until(k + 1).text))
    before = chat.until(k).text if k else ""
    if start >= len(before.rstrip()) or chat.has_marks:  # marks say themselves what is trained
        return start
    raise unlocated_error(chat, k)


def locate_in_whole(chat: ChatText, k: int) -> Span:
    """The place of turn `k` in the text of all messages.

    If it is rendered differently there, its place is all text that another answer would change,
    with its end marker if the template writes the same marker after the last turn.
    """
    whole = chat.whole().text
    try:
        text = chat.until(k + 1).text
        if stays(text, whole):
            return start_of_turn(chat, k), n_shared(text, whole)
    except RefusalError:
        pass
    before, probe, after = chat.answering(k, _PROBE).whole().text.partition(_PROBE)
    start, end = n_shared(before, whole), len(whole) - len(after)
    if not probe or _PROBE in after or not whole.endswith(after) or end < start:
        raise unlocated_error(chat, k)
    last = max(i for i, message in enumerate(chat.messages) if message["role"] == ASSISTANT)
    end_of_turn = chat.answering(last, _PROBE).until(last + 1).text.partition(_PROBE)[2]
    return start, end + len(end_of_turn) * whole.startswith(end_of_turn, end)


def unlocated_error(chat: ChatText, k: int) -> InputError:
    """The error that a turn cannot be located."""
    return InputError(
        f"{chat.name} renders messages before and after messages[{k}] differently without it, "
        "so that what the assistant wrote cannot be located; mark it with {% generation %} in a "
        "copy of the template: preprocess --template FILE"
    )


class Turns(StrEnum):
    """Samples of a conversation if the template changes a turn as soon as more turns follow it."""

    EACH = "each"  # one for each such turn: the text up to it, as the model sees it when it answers
    LAST = "last"  # one of the complete text, in which only the last turn is trained
    WHOLE = "whole"  # one of the complete text, in which all turns are trained as they stand there


def turn_samples(conversation: Conversation, chat: ChatText, turns: Turns) -> list[Rendered]:
    """Samples of a conversation.

    What the assistant wrote is in the `{% generation %}` blocks of the template. Without such
    blocks, it is the text that a turn adds to the text of the messages before it, rendered with the
    generation prompt.
    """
    is_each = turns is Turns.EACH
    made = _each(conversation, chat) if is_each else [_one(conversation, chat, turns)]
    samples = [sample for sample in made if sample.spans]
    if not samples:
        raise InputError(f"{chat.name} shows no text of the assistant that is trained")
    return samples


def _each(conversation: Conversation, chat: ChatText) -> list[Rendered]:
    """A sample for each turn that changes; turns that stay as they are share a sample."""
    samples = [Rendered("", [])]
    refusal: RefusalError | None = None
    for k in conversation.turns:
        try:
            answer, start = chat.until(k + 1), start_of_turn(chat, k)
        except RefusalError as error:  # no model is ever asked for this turn
            refusal = refusal if k in conversation.untrained else error
            continue
        spans: list[Span] = []
        if k not in conversation.untrained:
            rest = [(start, len(answer.text))] if start < len(answer.text) else []
            marked = [span for span in answer.spans if span[1] > start]
            spans = marked if chat.has_marks else rest
        _add(samples, Rendered(answer.text, spans, (len(answer.text),)))
    whole = chat.whole()
    _add(samples, Rendered(whole.text, []))  # with what follows the last turn, if that stays
    if refusal:
        if not any(sample.spans for sample in samples):
            raise refusal
    elif chat.has_marks and len(samples) == 1 and not conversation.untrained:
        # the marks of other messages, too
        return [whole._replace(turn_ends=samples[0].turn_ends)]
    return samples


def _add(samples: list[Rendered], longer: Rendered) -> None:
    last = samples[-1]
    if not stays(last.text, longer.text):
        samples.append(longer)
        return
    end = n_shared(last.text, longer.text)
    kept = [(start, min(until, end)) for start, until in last.spans if start < end]
    turn_ends = *(min(until, end) for until in last.turn_ends), *longer.turn_ends
    samples[-1] = Rendered(longer.text, [*kept, *longer.spans], turn_ends)


def _one(conversation: Conversation, chat: ChatText, turns: Turns) -> Rendered:
    trained = [k for k in conversation.turns if k not in conversation.untrained]
    whole = chat.whole()
    if chat.has_marks and turns is Turns.WHOLE and not conversation.untrained:
        return whole._replace(turn_ends=(len(whole.text),))
    places = [locate_in_whole(chat, k) for k in (trained[-1:] if turns is Turns.LAST else trained)]
    turn_ends = tuple(end for _, end in places)
    if chat.has_marks:
        places = [
            (start, end)
            for start, end in whole.spans
            if any(start < until and first < end for first, until in places)
        ]
    spans = [place for place in places if place[0] < place[1]]
    return Rendered(whole.text, spans, turn_ends)
