"""Places of turns in the text of a conversation, from what a template writes in their place."""

from typing import NamedTuple

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.spans import Span
from dynapipe_hpc.data.text.chat_template import ChatText, RefusalError
from dynapipe_hpc.data.text.messages import ASSISTANT

_PROBE = "\ue000"
"""A character of private use, which stands for any answer."""


class TurnStart(NamedTuple):
    """Start of a turn in the text up to it.

    Attributes:
        position: Position of its first character.
        unasked: End of the generation prompt that the turn does not begin with; empty if it does.
    """

    position: int
    unasked: str


def n_shared(one: str, other: str) -> int:
    """Number of characters that two texts begin with in common."""
    if other.startswith(one):
        return len(one)
    n = min(len(one), len(other))
    return next((i for i in range(n) if one[i] != other[i]), n)


def stays(text: str, longer: str) -> bool:
    """Whether a text stays as it is in a longer one, but for blank space at its end."""
    return not text[n_shared(text, longer) :].strip()


def start_of_turn(chat: ChatText, k: int) -> TurnStart:
    """The start of turn `k` in the text of the messages up to it.

    It is after the generation prompt. A template may ask with more than it writes before an answer,
    such as the begin of reasoning that the answer lacks: then after what it writes before any.

    Raises:
        RefusalError: The template refuses the messages up to the turn.
        InputError: The template changes the messages before it.
    """
    text = chat.until(k + 1).text
    try:
        prompt = chat.until(k, asks=True).text
    except RefusalError:  # as for a turn that is the first message
        return TurnStart(n_shared(text, chat.answering(k, _PROBE).until(k + 1).text), "")
    if text.startswith(prompt):
        return TurnStart(len(prompt), "")
    start = min(n_shared(prompt, text), n_shared(text, chat.answering(k, _PROBE).until(k + 1).text))
    before = chat.until(k).text if k else ""
    if start >= len(before.rstrip()):
        return TurnStart(start, prompt[start:])
    if chat.has_marks:  # which say themselves what is trained
        return TurnStart(start, "")
    raise unlocated_error(chat, k)


def locate_in_whole(chat: ChatText, k: int) -> Span:
    """The place of turn `k` in the text of all messages.

    A turn that is written otherwise there begins and ends where the text differs from one with
    another answer; the end of a turn belongs to it, if the template writes it as after the last.

    Raises:
        InputError: The turn cannot be located.
    """
    whole = chat.whole().text
    try:
        text = chat.until(k + 1).text
        if stays(text, whole):
            return start_of_turn(chat, k).position, n_shared(text, whole)
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
        f"{chat.name} renders messages before and after messages[{k}] otherwise when it follows, "
        "so that what the assistant wrote cannot be located; mark it with {% generation %} in a "
        "copy of the template: --template FILE"
    )
