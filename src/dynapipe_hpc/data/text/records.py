"""Records: the shapes in which people keep samples, and what training takes of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.conversation import (
    CONVERSATIONS,
    Conversation,
    context_of,
    conversation_from,
    question_and_answer,
)
from dynapipe_hpc.data.text.known_fields import check_known_fields
from dynapipe_hpc.data.text.preferences import (
    ANSWERS,
    COMPLETIONS,
    ChatPreference,
    TextPreference,
    are_messages,
    chat_preference,
    text_preference,
    with_usual_names,
)
from dynapipe_hpc.data.text.record_fields import listed, text_of
from dynapipe_hpc.data.text.record_format import RecordFormat

DEFAULT_TASK = "default"
NO_CONTEXT = Conversation([])


@dataclass(frozen=True, slots=True)
class PairFields:
    """Names of the fields of a pair."""

    inputs: str = "inputs"
    targets: str = "targets"


PAIR_FIELDS = PairFields()
PROMPT_FIELDS = PairFields("prompt", "completion")
"""TRL's, which may be texts or lists of messages."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An input and the target that a model learns to give; the input may be empty.

    Attributes:
        inputs: The input.
        targets: The target.
        context: What is before both if they are messages, and what else their template is given.
    """

    inputs: str
    targets: str
    context: Conversation = NO_CONTEXT

    def as_conversation(self) -> Conversation:
        """The same as messages of the user, unless there is no input, and of the assistant."""
        messages = question_and_answer(self.inputs, self.targets)
        return replace(self.context, messages=[*self.context.messages, *messages])


def formats_of_record(record: object, fields: PairFields) -> list[RecordFormat]:
    """The formats that the fields of a record show, likeliest first."""
    if not isinstance(record, dict):
        return []
    if fields == PAIR_FIELDS:
        record = with_usual_names(record)
    names = {
        RecordFormat.PAIRS: {fields.inputs, fields.targets},
        RecordFormat.MESSAGES: {"messages", CONVERSATIONS},
        RecordFormat.ALPACA: {"instruction"},
        RecordFormat.TEXT: {"text"},
    }
    if any(isinstance(record.get(name), str | list | dict) for name in ANSWERS):
        is_chat = are_messages(record)
        return [RecordFormat.CHAT_PREFERENCES if is_chat else RecordFormat.PREFERENCES]
    if isinstance(record.get(COMPLETIONS), list) and "instruction" in record:
        return [RecordFormat.PREFERENCES]
    if prompt_fields(record, fields) is not None:
        return [RecordFormat.MESSAGES]
    if fields == PAIR_FIELDS and _has_prompt(record):
        return [RecordFormat.PAIRS]
    return [each for each, shown in names.items() if not shown.isdisjoint(record)]


def _has_prompt(record: Mapping[str, Any]) -> bool:
    """Whether a pair has the names of TRL, and not ours."""
    return {PROMPT_FIELDS.inputs, PROMPT_FIELDS.targets} <= record.keys() - {PAIR_FIELDS.inputs}


def prompt_fields(record: Mapping[str, Any], fields: PairFields) -> PairFields | None:
    """The fields of a pair that are both lists of messages (TRL); None if there are none."""
    pairs = (fields, PROMPT_FIELDS)
    are_lists = (
        isinstance(record.get(p.inputs), list) and isinstance(record.get(p.targets), list)
        for p in pairs
    )
    return next((p for p, is_one in zip(pairs, are_lists, strict=True) if is_one), None)


def sample_of(
    record: Mapping[str, Any], record_format: RecordFormat, fields: PairFields
) -> Pair | Conversation | TextPreference | ChatPreference:
    """The pair, conversation or preference pair in a record.

    Raises:
        InputError: A field is missing, wrong, or cannot be honoured; names the field.
    """
    if record_format is RecordFormat.TEXT:
        return _pair("", text_of(record, "text"), "text", NO_CONTEXT)
    if record_format is RecordFormat.PREFERENCES:
        return text_preference(with_usual_names(record))
    if record_format is RecordFormat.CHAT_PREFERENCES:
        return chat_preference(with_usual_names(record))
    check_known_fields(record, "record")
    match record_format:
        case RecordFormat.PAIRS:
            if fields == PAIR_FIELDS and _has_prompt(record):
                fields = PROMPT_FIELDS
            _check_named(record, fields)
            inputs, targets = (text_of(record, name) for name in (fields.inputs, fields.targets))
            return _pair(inputs, targets, fields.targets, context_of(record))
        case RecordFormat.ALPACA:
            instruction, given = text_of(record, "instruction"), text_of(record, "input", "")
            inputs = f"{instruction}\n\n{given}" if given else instruction
            return _pair(inputs, text_of(record, "output"), "output", context_of(record))
        case RecordFormat.MESSAGES:
            prompt = prompt_fields(record, fields) or PAIR_FIELDS
            if fields not in (PAIR_FIELDS, prompt):
                raise InputError(
                    f"fields '{fields.inputs}' and '{fields.targets}' are not two lists of "
                    "messages; leave out --inputs-field and --targets-field"
                )
            return conversation_from(record, prompt.inputs, prompt.targets)
        case _:
            assert_never(record_format)


def task_of(record: Mapping[str, Any]) -> str:
    """Name of a record's task.

    Raises:
        InputError: It is not text, or cannot be stored.
    """
    task = text_of(record, "task", DEFAULT_TASK)
    if "\0" in task:
        raise InputError("field 'task' holds a zero character, which a dataset cannot store")
    return task


def _check_named(record: Mapping[str, Any], fields: PairFields) -> None:
    for name in (fields.inputs, fields.targets):
        if name not in record:
            raise InputError(
                f"field '{name}' is missing (found {listed(record)}); name the fields of the input "
                "and the target: --inputs-field NAME --targets-field NAME; preference pairs have "
                "'chosen' and 'rejected'"
            )


def _pair(inputs: str, targets: str, name: str, context: Conversation) -> Pair:
    if not targets:
        raise InputError(f"field '{name}' is empty, so there is nothing to learn")
    return Pair(inputs, targets, context)
