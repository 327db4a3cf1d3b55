"""Formats of records, fields that are refused, checked texts, and names of kinds of values."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from dynapipe_hpc.data.errors import InputError, listed
from dynapipe_hpc.data.input_file import json_value


class RecordFormat(StrEnum):
    """Shape of the records of a source."""

    PAIRS = "pairs"  # an input and a target, in fields of any name
    ALPACA = "alpaca"  # instruction, input and output; Dolly: instruction, context and response
    MESSAGES = "messages"  # messages (OpenAI), conversations (ShareGPT) or prompt and completion
    TEXT = "text"  # a text, all of which is the target
    PREFERENCES = "preferences"  # two answers to one prompt, as texts: `text_preference`
    CHAT_PREFERENCES = "chat_preferences"  # as messages: `chat_preference`

    @property
    def has_pairs(self) -> bool:
        """Whether the records are preference pairs."""
        return self in (RecordFormat.PREFERENCES, RecordFormat.CHAT_PREFERENCES)

    @property
    def needs_template(self) -> bool:
        """Whether the records are messages, which a chat template renders."""
        return self in (RecordFormat.MESSAGES, RecordFormat.CHAT_PREFERENCES)


_PAIR = "answers of preference pairs; --format preferences or chat_preferences takes both"
_OTHER_PAIR = "preference pairs have both answers in chosen and rejected; write them there"
_RATING = "answers that are rated alone are not trained; keep those that are to be learned"
_MEDIA = "only text is trained"
_PARTS = "turns are trained as a whole; use weight, train or loss"


def _by_name(reasons: Mapping[str, str]) -> dict[str, str]:
    return {name: why for names, why in reasons.items() for name in names.split()}


REFUSED: Mapping[str, Mapping[str, str]] = {
    "record": _by_name(
        {
            "tool_choice function_call": "settings of a request",
            "chosen rejected": _PAIR,
            "rejected_response rejected_messages": _OTHER_PAIR,
            "label kto_tag": _RATING,
            "images videos audios image video audio objects": _MEDIA,
            "mask": "turns of the assistant are trained; use weight",
        }
    ),
    "message": _by_name(
        {
            "train_detail loss_scale mask": _PARTS,
            "refusal": "templates do not show it; make it the content",
            "images videos audios image video audio": _MEDIA,
        }
    ),
}
"""Fields whose meaning training cannot honour, and why not. data/README.md lists the fields that
are used. All other fields are ignored or, in messages, left to the template."""


def check_fields(fields: Mapping[str, Any], place: str, prefix: str = "") -> None:
    """Refuses a record or message with a field that training cannot honour."""
    for name, value in fields.items():
        why = REFUSED[place].get(name)
        if why is None or is_empty(value):
            continue
        if name == "label" and not isinstance(value, bool):  # a class, not a preference
            continue
        raise InputError(
            f"field '{prefix}{name}' is not used ({why}); leave the record out, or remove or "
            "rename the field"
        )


def text_of(record: Mapping[str, Any], name: str, default: str | None = None) -> str:
    if name not in record and default is None:
        raise InputError(f"field '{name}' is missing (found {listed(record)})")
    value = record.get(name, default)
    if value is None and default is not None:  # as tables write a missing value
        value = default
    if not isinstance(value, str):
        raise InputError(f"field '{name}' is {kind_of(value)}, not a string")
    return value


def instruction_of(record: Mapping[str, Any]) -> str:
    """The instruction in a record as Alpaca or Dolly has it, with its input or context."""
    details = (text_of(record, name, "") for name in ("input", "context"))
    return "\n\n".join([text_of(record, "instruction"), *filter(None, details)])


def json_of(value: object, name: str, kind: type) -> Any:
    """A list or an object, which may be written as JSON in a string; None for an empty string."""
    expected = kind_of(kind())
    if value is None or value == "":
        return None
    if isinstance(value, str) and (value := json_value(value)) is None:
        raise InputError(f"field '{name}' is a string that does not hold JSON")
    if not isinstance(value, kind):
        raise InputError(f"field '{name}' is {kind_of(value)}, not {expected}")
    return value


def is_empty(value: object) -> bool:
    """Whether a field says nothing: null, or an empty text, list or object."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def kind_of(value: object) -> str:
    """The kind of a JSON value, in words."""
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
