"""Records: the shapes in which people keep samples, and what training takes of them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

from dynapipe_hpc.data.errors import InputError, quoted

DEFAULT_TASK = "default"
MOST_NAMES = 8


class RecordFormat(StrEnum):
    """Shape of the records of a source.

    Attributes:
        PAIRS: An input and a target, in fields of any name.
        ALPACA: `instruction`, `input` (may be missing or empty) and `output`.
        MESSAGES: A conversation: `messages` of `role` and `content` (OpenAI), or `conversations` of
            `from` and `value` (ShareGPT).
        TEXT: `text`, all of which is the target.
    """

    PAIRS = "pairs"
    ALPACA = "alpaca"
    MESSAGES = "messages"
    TEXT = "text"


CONVERSATIONS = "conversations"
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}
"""ShareGPT's names of roles, where they differ."""


@dataclass(frozen=True, slots=True)
class PairFields:
    """Names of the fields of a pair."""

    inputs: str = "inputs"
    targets: str = "targets"


PAIR_FIELDS = PairFields()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as a chat template takes them, and the tools that they may call."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """An input and the target that a model learns to give; the input may be empty."""

    inputs: str
    targets: str

    def as_conversation(self) -> Conversation:
        """The same as messages of the user, unless there is no input, and of the assistant."""
        asked = [{"role": "user", "content": self.inputs}] if self.inputs else []
        return Conversation([*asked, {"role": "assistant", "content": self.targets}])


def formats_of_record(record: object, fields: PairFields) -> list[RecordFormat]:
    """The formats that the fields of a record show, likeliest first."""
    if not isinstance(record, dict):
        return []
    names = {
        RecordFormat.PAIRS: {fields.inputs, fields.targets},
        RecordFormat.MESSAGES: {"messages", CONVERSATIONS},
        RecordFormat.ALPACA: {"instruction"},
        RecordFormat.TEXT: {"text"},
    }
    return [each for each, shown in names.items() if not shown.isdisjoint(record)]


def sample_of(
    record: Mapping[str, Any], record_format: RecordFormat, fields: PairFields
) -> Pair | Conversation:
    """What training takes of a record.

    Raises:
        InputError: A field is missing or wrong; names the field.
    """
    match record_format:
        case RecordFormat.PAIRS:
            pair = Pair(text_of(record, fields.inputs), text_of(record, fields.targets))
            return _checked(pair, fields.targets)
        case RecordFormat.ALPACA:
            instruction, given = text_of(record, "instruction"), text_of(record, "input", "")
            inputs = f"{instruction}\n\n{given}" if given else instruction
            return _checked(Pair(inputs, text_of(record, "output")), "output")
        case RecordFormat.TEXT:
            return _checked(Pair("", text_of(record, "text")), "text")
        case RecordFormat.MESSAGES:
            return _conversation(record)


def task_of(record: Mapping[str, Any]) -> str:
    """Name of a record's task.

    Raises:
        InputError: It is not text, or cannot be stored.
    """
    task = text_of(record, "task", DEFAULT_TASK)
    if "\0" in task:
        raise InputError("field 'task' holds a zero character, which a dataset cannot store")
    return task


def text_of(record: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """The text in a field.

    Raises:
        InputError: The field is missing, and there is no default, or it is not text.
    """
    if name not in record and default is None:
        raise InputError(f"field '{name}' is missing (found {_listed(record)})")
    value = record.get(name, default)
    if value is None and default is not None:  # as tables write a missing value
        value = default
    if not isinstance(value, str):
        raise InputError(f"field '{name}' is {kind_of(value)}, not a string")
    _check_text(name, value)
    return value


def kind_of(value: object) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _checked(pair: Pair, name: str) -> Pair:
    if not pair.targets:
        raise InputError(f"field '{name}' is empty, so there is nothing to learn")
    return pair


def _conversation(record: Mapping[str, Any]) -> Conversation:
    name = CONVERSATIONS if CONVERSATIONS in record else "messages"
    if name not in record:
        raise InputError(f"field 'messages' is missing (found {_listed(record)})")
    found = record[name]
    if not isinstance(found, list) or not found:
        raise InputError(f"field '{name}' is {kind_of(found)}, not a list of messages")
    messages = [_message(each, f"{name}[{k}]") for k, each in enumerate(found)]
    if all(message["role"] != "assistant" for message in messages):
        raise InputError(f"field '{name}' has no message of the assistant: nothing to learn")
    tools = record.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise InputError(f"field 'tools' is {kind_of(tools)}, not a list")
    for text in texts_in(tools):
        _check_text("tools", text)
    return Conversation(messages, tools)


def _message(message: object, name: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InputError(f"field '{name}' is {kind_of(message)}, not a message")
    if "from" in message:
        role = text_of(message, "from")
        return {"role": ROLES.get(role, role), "content": text_of(message, "value")}
    if not isinstance(message.get("role"), str):
        raise InputError(f"field '{name}' has no 'role' (found {_listed(message)})")
    content = message.get("content")
    if not isinstance(content, str | list | None):  # a template would write it as Python does
        raise InputError(f"field '{name}.content' is {kind_of(content)}, not a string")
    for text in texts_in(message):
        _check_text(name, text)
    return {key: value for key, value in message.items() if value is not None or key == "content"}


def texts_in(value: object) -> Iterator[str]:
    """All texts in a JSON value, however deep; names of fields, too, which a template may write."""
    left = [value]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case list() as values:
                left += reversed(values)
            case dict() as fields:
                left += reversed([each for field in fields.items() for each in field])


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"field '{name}' holds half of a surrogate pair, not text") from None


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(map(quoted, islice(names, MOST_NAMES)))
    more = len(names) - MOST_NAMES
    return f"{shown}, {more} more" if more > 0 else shown or "no fields"
