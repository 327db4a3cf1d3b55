"""Records: the shapes in which people keep samples, and what training takes from them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.errors import InputError, listed
from dynapipe_hpc.data.input_file import GIT_LFS, IS_POINTER
from dynapipe_hpc.data.text.conversation import (
    CONVERSATIONS,
    Content,
    Conversation,
    Texts,
    context_of,
    conversation_from,
)
from dynapipe_hpc.data.text.preferences import (
    ANSWERS,
    are_messages,
    chat_preference,
    text_preference,
    with_usual_names,
)
from dynapipe_hpc.data.text.record_fields import (
    RecordFormat,
    check_fields,
    instruction_of,
    text_of,
)

DEFAULT_TASK = "default"


@dataclass(frozen=True, slots=True)
class PairFields:
    """Names of the fields of a pair."""

    inputs: str = "inputs"
    targets: str = "targets"


PAIR_FIELDS = PairFields()
PROMPT_FIELDS = PairFields("prompt", "completion")
"""TRL's fields of a pair, which hold texts or lists of messages."""


Record = Mapping[str, Any]


def formats_of_record(record: object, fields: PairFields) -> list[RecordFormat]:
    """The formats that the fields of a record show, likeliest first."""
    if not isinstance(record, dict):
        return []
    if fields == PAIR_FIELDS:
        record = with_usual_names(record)
    sure = [name for name, shows in SURE.items() if shows(record, fields)]
    return sure[:1] or [name for name, shows in LIKELY.items() if shows(record, fields)]


def sample_of(record: Record, record_format: RecordFormat, fields: PairFields) -> Content:
    """Takes from a record the content to train on."""
    if record_format in (RecordFormat.MESSAGES, RecordFormat.PAIRS, RecordFormat.ALPACA):
        check_fields(record, "record")
    return READERS[record_format](record, fields)


def _has_answers(record: Record) -> bool:
    is_rated = "instruction" in record and isinstance(record.get("completions"), list)
    return is_rated or any(isinstance(record.get(name), str | list | dict) for name in ANSWERS)


def _has_prompt(record: Record, fields: PairFields) -> bool:
    names = {PROMPT_FIELDS.inputs, PROMPT_FIELDS.targets}
    return fields == PAIR_FIELDS and names <= record.keys() - {PAIR_FIELDS.inputs}


def _message_fields(record: Record, fields: PairFields) -> PairFields | None:
    """The two fields of a pair if both are lists of messages (TRL); None if they are not."""
    for each in (fields, PROMPT_FIELDS):
        if all(isinstance(record.get(name), list) for name in (each.inputs, each.targets)):
            return each
    return None


def _conversation(record: Record, fields: PairFields) -> tuple[Conversation]:
    prompt = _message_fields(record, fields) or PAIR_FIELDS
    if fields not in (PAIR_FIELDS, prompt):
        raise InputError(
            f"fields '{fields.inputs}' and '{fields.targets}' are not two lists of "
            "messages; leave out --inputs-field and --targets-field"
        )
    return (conversation_from(record, prompt.inputs, prompt.targets),)


def _pair(record: Record, fields: PairFields) -> Texts:
    if _has_prompt(record, fields):
        fields = PROMPT_FIELDS
    for name in (fields.inputs, fields.targets):
        if name not in record:
            raise InputError(
                f"field '{name}' is missing (found {listed(record)}); name the fields of the input "
                "and the target: --inputs-field NAME --targets-field NAME; preference pairs have "
                "'chosen' and 'rejected'"
            )
    return _texts(text_of(record, fields.inputs), record, fields.targets)


def _texts(prompt: str, record: Record, target: str) -> Texts:
    return Texts(prompt, (_answer(record, target),), context_of(record))


def _answer(record: Record, name: str) -> str:
    if not (answer := text_of(record, name)):
        raise InputError(f"field '{name}' is empty, so there is nothing to learn")
    return answer


SURE: Mapping[RecordFormat, Callable[[Record, PairFields], bool]] = {
    RecordFormat.CHAT_PREFERENCES: lambda record, _: _has_answers(record) and are_messages(record),
    RecordFormat.PREFERENCES: lambda record, _: _has_answers(record),
    RecordFormat.MESSAGES: lambda record, fields: _message_fields(record, fields) is not None,
    RecordFormat.PAIRS: _has_prompt,
}
"""Tests, in this order, by which a record is of one format and no other."""
LIKELY: Mapping[RecordFormat, Callable[[Record, PairFields], bool]] = {
    RecordFormat.PAIRS: lambda record, fields: fields.inputs in record or fields.targets in record,
    RecordFormat.MESSAGES: lambda record, _: "messages" in record or CONVERSATIONS in record,
    RecordFormat.ALPACA: lambda record, _: "instruction" in record,
    RecordFormat.TEXT: lambda record, _: "text" in record,
}
"""Tests by which a record may be of a format, likeliest first."""
READERS: Mapping[RecordFormat, Callable[[Record, PairFields], Content]] = {
    RecordFormat.CHAT_PREFERENCES: lambda record, _: chat_preference(with_usual_names(record)),
    RecordFormat.PREFERENCES: lambda record, _: text_preference(with_usual_names(record)),
    RecordFormat.MESSAGES: _conversation,
    RecordFormat.PAIRS: _pair,
    RecordFormat.ALPACA: lambda record, _: _texts(
        instruction_of(record),
        record,
        "response" if "response" in record and "output" not in record else "output",
    ),
    # Plain text has no conversation around it, whatever other fields are named.
    RecordFormat.TEXT: lambda record, _: Texts("", (_answer(record, "text"),), Conversation([])),
}


def task_of(record: Mapping[str, Any]) -> str:
    """Name of a record's task."""
    task = text_of(record, "task", DEFAULT_TASK)
    if "\0" in task:
        raise InputError("field 'task' holds a zero character, which a dataset cannot store")
    return task


_ROWS = (
    "is a table of text; convert it: python3 -c 'import csv, json, sys; [print(json.dumps(r)) for"
)
_HINTS: Mapping[bytes | str, str] = {
    GIT_LFS: IS_POINTER,
    b"BZh": "is compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "is compressed with xz; unpack it first",
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"\x89HDF": "is an HDF5 file; convert it to JSON lines",
    b"\xff\xfe": "is UTF-16 by its byte-order mark; write it as UTF-8 without one",
    b"\xfe\xff": "is UTF-16 by its byte-order mark; write it as UTF-8 without one",
    b"{\n": "begins a JSON object on several lines; convert it: jq -c . FILE > FILE.jsonl",
    ".csv": f"{_ROWS} r in csv.DictReader(sys.stdin)]' < FILE > FILE.jsonl",
    ".tsv": f'{_ROWS} r in csv.DictReader(sys.stdin, delimiter="\\t")]\' < FILE > FILE.jsonl',
    ".txt": "is text; make its lines documents: jq -Rc '{text: .}' FILE > FILE.jsonl",
}
"""Remedies for files that are not read, by their first bytes or by a suffix of their name."""
_NAMES = {
    RecordFormat.PAIRS: "inputs and targets",
    RecordFormat.ALPACA: "Alpaca's fields ('instruction', 'output')",
    RecordFormat.MESSAGES: "conversations ('messages')",
    RecordFormat.TEXT: "plain text ('text')",
    RecordFormat.PREFERENCES: "preference pairs of texts ('chosen', 'rejected')",
    RecordFormat.CHAT_PREFERENCES: "preference pairs of messages ('chosen', 'rejected')",
}


class FormatError(InputError):
    """The records have another format than expected; the message names it, and the remedy."""


def check_first_line(path: Path, line: bytes, expected: RecordFormat, fields: PairFields) -> None:
    """Refuses files of another format than expected, by their first line that is not blank."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        start = line.strip() + b"\n"
        is_cut = start.startswith(b"{")  # a line of JSON, whatever the name
        suffixes = () if is_cut else [suffix.lower() for suffix in path.suffixes]
        for sign, hint in _HINTS.items():
            if start.startswith(sign) if isinstance(sign, bytes) else sign in suffixes:
                raise FormatError(f"the file {hint}") from None
        return
    formats = formats_of_record(record, fields)
    if formats and expected not in formats:
        raise FormatError(
            f"the file holds {_NAMES[formats[0]]}, not {_NAMES[expected]}; say so: --format "
            f"{formats[0]}"
        )
