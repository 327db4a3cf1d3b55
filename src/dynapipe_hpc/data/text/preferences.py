"""Preference pairs: what a record with two answers to one prompt holds, in whatever format."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dynapipe_hpc.data.errors import InputError, listed, quoted
from dynapipe_hpc.data.input_file import json_value
from dynapipe_hpc.data.text.conversation import (
    CONVERSATIONS,
    SYSTEM,
    Conversation,
    Texts,
    context_of,
    conversation_from,
    n_shared,
)
from dynapipe_hpc.data.text.messages import ASSISTANT, KNOWN_ROLES, REASONING, Fields
from dynapipe_hpc.data.text.record_fields import (
    check_fields,
    instruction_of,
    is_empty,
    kind_of,
    text_of,
)

CHOSEN, REJECTED, PROMPT = "chosen", "rejected", "prompt"
ANSWERS = (CHOSEN, REJECTED)
_SAME = "fields 'chosen' and 'rejected' are the same: nothing to prefer"
_SAME_RATED = "the best and the worst of field 'completions' are the same: nothing to prefer"
_DEGREE = "overall_preference"
_PRINTED_MESSAGES = re.compile(r"\s*(array\()?(\{'messages': )?\[\{'(role|from|content|value)': ")
_LIKE_PROMPTS = ("question", "query", "input")
"""Fields that hold the prompt in other data sets; without it, answers mean something else."""


def with_usual_names(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A pair in the format of OpenAI, HelpSteer, NeMo, UltraFeedback or StackExchange, as in TRL.

    If answers are rated or ranked, the best and the worst make the pair.
    """
    if not record.keys().isdisjoint((PROMPT, *ANSWERS)):
        return record
    shared: Mapping[str, Any] = {}
    prompt: Any = None
    match record:
        case {
            "input": {"messages": prompt} as shared,
            "preferred_output": chosen,
            "non_preferred_output": rejected,
        }:
            pass
        case {"question": prompt, "response_j": chosen, "response_k": rejected}:
            pass
        case {
            "context": prompt,
            "response1": one,
            "response2": two,
            "overall_preference": int(degree),  # > 0 if the second is better
        }:
            chosen, rejected = (two, one) if degree > 0 else (one, two)
        case {"context": prompt, "completions": list(answers)} if ends := _least_and_greatest(
            answers, "rank", "completion"
        ):
            chosen, rejected = ends
        case {"instruction": _, "completions": list(answers)} if ends := _least_and_greatest(
            answers, "overall_score", "response"
        ):
            rejected, chosen = ends
        case _:
            return record
    return {**shared, **record, PROMPT: prompt, CHOSEN: chosen, REJECTED: rejected}


def _least_and_greatest(answers: Sequence[Any], number: str, text: str) -> tuple[Any, Any] | None:
    """The answers whose field `number` is least and greatest; None if any has no number there."""
    numbers: list[Any] = [each.get(number) if isinstance(each, dict) else None for each in answers]
    if not numbers or not all(map(_is_number, numbers)):
        return None
    least, greatest = (end(answers, key=lambda each: each[number]) for end in (min, max))
    return least.get(text), greatest.get(text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def are_messages(record: Mapping[str, Any]) -> bool:
    """Whether the answers of a record are messages rather than texts; one may be missing."""
    answers = [record[name] for name in ANSWERS if name in record]
    return not all(isinstance(answer, str) for answer in answers) or any(
        isinstance(record.get(name), list) for name in (PROMPT, CONVERSATIONS, "messages")
    )


def text_preference(record: Mapping[str, Any]) -> Texts:
    """The pair of texts in a record.

    Its prompt is `prompt`, or an instruction as Alpaca has it, or else what both answers begin
    with, up to the last blank before they differ.
    """
    _check_fields(record)
    chosen, rejected = (text_of(record, name) for name in ANSWERS)
    if record.get(PROMPT) is not None:
        prompt = text_of(record, PROMPT)
    elif "instruction" in record:
        prompt = instruction_of(record)
    else:
        _check_no_other_prompt(record)
        prompt = _shared(chosen, rejected)
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    if chosen == rejected:
        raise InputError(_SAME_RATED if "completions" in record else _SAME)
    for name, answer in zip(ANSWERS, (chosen, rejected), strict=True):
        if not answer:
            raise InputError(f"field '{name}' has no text after the prompt")
    return Texts(prompt, (chosen, rejected), context_of(record))


def chat_preference(record: Mapping[str, Any]) -> tuple[Conversation, ...]:
    """The pair of conversations in a record.

    The messages before the answers are the first messages of both answers, or are in `prompt`, or
    else in `conversations` or `messages`.
    """
    _check_fields(record)
    before = _messages_before(record)
    if before in [record[name] for name in ANSWERS]:  # `messages` that repeat an answer
        before = []
    chats = tuple(_chat(record, name, before) for name in ANSWERS)
    chosen, rejected = (chat.messages for chat in chats)
    if chosen == rejected:
        raise InputError(_SAME)
    n_before = n_shared(chosen, rejected)
    if n_before in (len(chosen), len(rejected)):
        raise InputError("one of the fields 'chosen' and 'rejected' is the beginning of the other")
    for name, chat in zip(ANSWERS, chats, strict=True):
        _check_answer(name, chat, n_before)
    if all(message["role"] == SYSTEM for message in chosen[:n_before]):
        raise InputError(
            f"there is no message to answer (found {listed(record)}); put messages, or a text, "
            "into a field 'prompt'"
        )
    if chosen[n_before - 1]["role"] == ASSISTANT:
        raise InputError(
            "the message before the answers is from the assistant, which an answer cannot "
            "continue; leave it out, or put it into both answers"
        )
    return chats


def _check_answer(name: str, chat: Conversation, n_before: int) -> None:
    """Refuses messages after the prompt that are not an answer."""
    answer = chat.messages[n_before:]
    if (role := answer[0]["role"]) != ASSISTANT:
        raise InputError(
            f"fields 'chosen' and 'rejected' differ from messages[{n_before}] on, which '{name}' "
            f"has from {quoted(role)}; both answers begin with a message of the assistant, after "
            "the same messages"
        )
    if answer[-1]["role"] != ASSISTANT:
        raise InputError(f"field '{name}' does not end with a message of the assistant")
    if any(k >= n_before for k in chat.untrained):
        raise InputError(
            f"field '{name}' has a turn after the prompt that is not trained (weight, train or "
            "loss), but answers are compared with all their messages; remove that field"
        )
    if not any(answer[-1].get(key) for key in ("content", "tool_calls", *REASONING)):
        raise InputError(f"field '{name}' ends with a message without text")


def _check_fields(record: Mapping[str, Any]) -> None:
    for name in ANSWERS:
        if name not in record:
            _check_ratings(record)
            raise InputError(
                f"field '{name}' is missing (found {listed(record)}); a preference pair has "
                "both answers, 'chosen' and 'rejected', or completions with a rank or score each"
            )
    check_fields({k: v for k, v in record.items() if k not in ANSWERS}, "record")
    if record.get(_DEGREE) == 0:
        raise InputError(f"field '{_DEGREE}' is 0: nothing to prefer")
    for name in (PROMPT, *ANSWERS):
        if _holds_messages(record.get(name)):
            raise InputError(
                f"field '{name}' is a string that holds messages, not a list of messages; write "
                "a list, such as json.loads makes of JSON"
            )


def _check_ratings(record: Mapping[str, Any]) -> None:
    number = "overall_score" if "instruction" in record else "rank"
    answers = record.get("completions")
    for k, each in enumerate(answers if isinstance(answers, list) else ()):
        value = each.get(number) if isinstance(each, dict) else None
        if not _is_number(value):
            raise InputError(f"completions[{k}].{number} is {quoted(value)}, not a finite number")


def _holds_messages(value: object) -> bool:
    """Whether a value is a string that holds messages, as JSON or as printed by Python."""
    if not isinstance(value, str):
        return False
    if _PRINTED_MESSAGES.match(value):
        return True
    content = json_value(value)
    if isinstance(content, dict):
        content = content.get("messages", [content])
    return isinstance(content, list) and any(
        _role(each) in KNOWN_ROLES and ("content" in each or "value" in each) for each in content
    )


def _check_no_other_prompt(record: Mapping[str, Any]) -> None:
    for name in _LIKE_PROMPTS:
        if not is_empty(record.get(name)):
            raise InputError(
                f"field '{name}' is not read, and there is neither a 'prompt' nor an "
                f"'instruction'; rename '{name}' to 'prompt' if the answers follow it"
            )


def _shared(chosen: str, rejected: str) -> str:
    n = n_shared(chosen, rejected)
    while n and not chosen[n - 1].isspace():
        n -= 1
    return chosen[:n].rstrip()


def _messages_before(record: Mapping[str, Any]) -> list[Any]:
    for name in (PROMPT, CONVERSATIONS, "messages"):
        value = record.get(name)
        if isinstance(value, list):
            return value
        if isinstance(value, str) and not is_empty(value):
            return [{"role": "user", "content": text_of(record, name)}]
    return []


def _chat(record: Mapping[str, Any], name: str, before: Sequence[Any]) -> Conversation:
    answer = record[name]
    if isinstance(answer, str):
        answer = [{"role": ASSISTANT, "content": text_of(record, name)}]
    elif isinstance(answer, dict):
        answer = [answer]
    if not isinstance(answer, list) or not answer:
        raise InputError(f"field '{name}' is {kind_of(answer)}, not a message or list of messages")
    messages = answer if _repeats(answer, before, record, name) else [*before, *answer]
    others = {k: v for k, v in record.items() if k not in (*ANSWERS, PROMPT, CONVERSATIONS)}
    return conversation_from({**others, "messages": messages}, "", "")


def _repeats(
    answer: Sequence[Any], before: Sequence[Any], record: Mapping[str, Any], name: str
) -> bool:
    """Whether the messages of an answer begin with the messages before it.

    A text prompt is often repeated as the first message, perhaps in other words.
    """
    if _role(answer[0]) == ASSISTANT or all(_role(message) == SYSTEM for message in before):
        return False
    if isinstance(record.get(PROMPT), str) or list(answer[: len(before)]) == list(before):
        return True
    raise InputError(
        f"field '{name}' is a conversation that does not begin with the messages that the record "
        "has before the answers; remove those from the record, or all but the last message from "
        "both answers"
    )


def _role(message: Any) -> str | None:
    """Role of a message, or None; the role of an answer is ASSISTANT in either spelling."""
    if not isinstance(message, dict):
        return None
    fields: Fields = message
    role = fields.get("role", fields.get("from"))
    return ASSISTANT if role in (ASSISTANT, "gpt") else role
