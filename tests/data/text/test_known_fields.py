"""Fields of records that are known elsewhere, and programs that convert a table."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.examples.chats import CHATML, Record, chat, refusal, shown, tokenized

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.record_fields import REFUSED, RecordFormat
from dynapipe_hpc.data.text.records import PAIR_FIELDS, check_first_line

README = Path(__file__).parents[3] / "data" / "README.md"
ROW = re.compile(r"^\| (record|message) \| (.+?) \| .+? \| (refused: )?(.+?) \|$", re.MULTILINE)


class KnownField(NamedTuple):
    """A field in the table of the documentation."""

    place: str
    name: str
    is_refused: bool
    use: str


KNOWN_FIELDS = [
    KnownField(place, name.strip("`"), bool(refused), use)
    for place, names, refused, use in ROW.findall(README.read_text())
    for name in names.split(", ")
]
CALL = {"name": "f", "arguments": {}}
VALUES: dict[str, Any] = {
    "history": [["q", "r"]],
    "tools": [{"name": "f"}],
    "functions": [{"name": "f"}],
    "chat_template_kwargs": {"mood": "glad"},
    "label": False,
    "parallel_tool_calls": False,
    "tool_calls": [{"function": CALL}],
    "function_call": CALL,
    "weight": 0,
    "train": False,
    "loss": False,
}
"""Values of the fields that are no text."""
SOURCE = CHATML.replace(
    "{{- m.content }}", "{{- m.content }}{{- m.name }}{{- m.tool_call_id }}"
) + ("{{- mood }}{{- parallel_tool_calls }}")
"""A template that shows all of them."""
SHAPES: list[tuple[set[str], Record, RecordFormat]] = [
    ({"messages", "role", "content"}, chat("a", "b"), RecordFormat.MESSAGES),
    (
        {"conversations", "from", "value"},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        RecordFormat.MESSAGES,
    ),
    (
        {"prompt", "completion"},
        {"prompt": chat("a")["messages"], "completion": chat("a", "b")["messages"][1:]},
        RecordFormat.MESSAGES,
    ),
    (
        {"instruction", "input", "output"},
        {"instruction": "a", "input": "", "output": "b"},
        RecordFormat.ALPACA,
    ),
    (
        {"context", "response"},
        {"instruction": "a", "context": "", "response": "b"},
        RecordFormat.ALPACA,
    ),
]
"""Records that say the same, by the fields that say it."""


def with_field(field: KnownField) -> Record:
    record = chat("a", "b", "c", "d")
    place = record if field.place == "record" else record["messages"][1]
    place[field.name] = VALUES.get(field.name, "v")
    return record


@pytest.mark.parametrize("field", KNOWN_FIELDS, ids=lambda field: f"{field.place}-{field.name}")
def test_a_known_field_never_vanishes(field: KnownField) -> None:
    for names, record, record_format in SHAPES:
        if field.name in names:
            assert shown(record, SOURCE, record_format=record_format) == shown(
                chat("a", "b"), SOURCE
            )
            assert field.name in record or any(
                field.name in message for message in next(iter(record.values()))
            )
            return
    record = with_field(field)
    if field.is_refused:
        assert re.search(rf"field '[\w\[\].]*{field.name}' is not used", refusal(record, SOURCE))
    else:
        assert shown(record, SOURCE) != shown(chat("a", "b", "c", "d"), SOURCE)


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_a_known_field_that_is_empty_is_as_if_it_were_not_there(value: object) -> None:
    for field in KNOWN_FIELDS:
        record = with_field(field)
        place = record if field.place == "record" else record["messages"][1]
        if field.is_refused:
            place[field.name] = value
            assert shown(record, SOURCE) == shown(chat("a", "b", "c", "d"), SOURCE)


def test_a_field_that_nobody_knows_is_ignored() -> None:
    assert shown(chat("a", "b", source="x", label=3), SOURCE) == shown(chat("a", "b"), SOURCE)


def test_pairs_are_refused_by_the_same_names_and_text_by_none() -> None:
    pair = {"inputs": "a", "targets": "b"}
    words = "field 'chosen' is not used (answers of preference pairs; --format preferences or"
    assert words in refusal({**pair, "chosen": "b"}, record_format=RecordFormat.PAIRS)
    page = {"text": "a", "images": ["x"], "history": "created 2001", "tools": "hammer", "system": 5}
    made = tokenized([page], record_format=RecordFormat.TEXT)
    assert made.n_records == 1


def test_the_documentation_has_every_field_that_is_refused_and_why() -> None:
    refused = {(place, name, why) for place, of in REFUSED.items() for name, why in of.items()}
    assert {(k.place, k.name, k.use) for k in KNOWN_FIELDS if k.is_refused} == refused
    assert len(KNOWN_FIELDS) == len({(known.place, known.name) for known in KNOWN_FIELDS}) == 55


TABLES = {
    "a.csv": 'inputs,targets\n"a, ""b""\nc",d\n',
    "a.tsv": 'inputs\ttargets\n"a, ""b""\nc"\td\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_the_program_that_a_message_names_converts_a_table(name: str, tmp_path: Path) -> None:
    (tmp_path / f"FILE{Path(name).suffix}").write_text(TABLES[name])
    with pytest.raises(InputError, match="is a table") as refused:
        check_first_line(Path(name), b"inputs,targets", RecordFormat.PAIRS, PAIR_FIELDS)
    program = re.search("python3 .*FILE.jsonl", str(refused.value))
    assert program is not None
    subprocess.run(program[0], shell=True, cwd=tmp_path, check=True)  # noqa: S602 - our own text
    record = json.loads((tmp_path / "FILE.jsonl").read_text())
    assert record == {"inputs": 'a, "b"\nc', "targets": "d"}
