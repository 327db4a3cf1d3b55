"""From lines of JSON to tokens."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.examples.tokenized import sides_of

from dynapipe_hpc.data.text.open_lines import Lines, TextPart
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenize_lines import tokenize_lines
from dynapipe_hpc.data.text.tokenizers import ByteTokenizer

GOOD = json.dumps({"inputs": "hi", "targets": "hé", "task": "greet"}, ensure_ascii=False).encode()


def lines(*content: bytes) -> Lines:
    return Lines(TextPart(Path("in.jsonl")), 41, [line + b"\n" for line in content])


def test_every_target_ends_with_the_end_token() -> None:
    block = tokenize_lines(lines(GOOD, GOOD), Recipe(ByteTokenizer())).block
    assert sides_of(block) == [[[*b"hi"], [*"hé".encode(), 256]]] * 2
    assert block.tasks == ("greet", "greet")


@dataclass(frozen=True, slots=True)
class EndedInputs(ByteTokenizer):
    """As a T5's: inputs end, too."""

    input_end_id: int | None = 255


def test_inputs_end_where_the_tokenizer_says_so() -> None:
    block = tokenize_lines(lines(GOOD), Recipe(EndedInputs())).block
    assert sides_of(block) == [[[*b"hi", 255], [*"hé".encode(), 256]]]


BAD_LINES = [
    (b"x", r"not JSON \(Expecting value at column 1\)"),
    (b'{"inputs": "a", "targets": "b"', r"not JSON \(Expecting ',' delimiter at column"),
    (b"\xff\xfe{", "not UTF-8 at byte 1 of the line"),
    (b"[" * 100_000, r"not JSON \(maximum recursion"),
    (b'{"inputs": ' + b"1" * 5000 + b"}", r"not JSON \(Exceeds the limit"),
    (b'["a", "b"]', "not a JSON object but a list"),
    (b"null", "not a JSON object but null"),
    (b'{"input": "a", "targets": "b"}', r"'inputs' is missing \(found 'input', 'targets'\)"),
    (
        b'{"question": "a", "answer": "b"}',
        r"'inputs' is missing \(found 'question', 'answer'\); name the fields of the input and the "
        "target: --inputs-field NAME --targets-field NAME; preference pairs have 'chosen' and",
    ),
    (b"{}", r"field 'inputs' is missing \(found no fields\)"),
    (b'{"inputs": "a"}', r"field 'targets' is missing \(found 'inputs'\)"),
    (b'{"inputs": "a", "targets": 3}', "field 'targets' is a number, not a string"),
    (b'{"inputs": null, "targets": "b"}', "field 'inputs' is null, not a string"),
    (b'{"inputs": "a", "targets": "b", "task": {}}', "field 'task' is an object, not a string"),
    (b'{"inputs": "a", "targets": "b", "task": true}', "field 'task' is true or false, not a"),
    (b'{"inputs": "a", "targets": ""}', "field 'targets' is empty, so there is nothing to learn"),
    (b'{"inputs": "a", "targets": "b", "task": "a\\u0000"}', "'task' holds a zero character"),
    (b'{"inputs": "a", "targets": "\\ud800"}', "'targets' holds half of a surrogate pair"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_LINES, ids=[m[:40] for _, m in BAD_LINES])
def test_a_bad_line_is_named_and_left_out(bad: bytes, message: str) -> None:
    found = tokenize_lines(lines(GOOD, bad, GOOD), Recipe(ByteTokenizer()))
    assert len(found.block.tasks) == 2
    [bad_line] = found.bad
    assert re.match(rf"^in\.jsonl:42: .*{message}", bad_line.describe())
    assert found.n_bytes == 2 * len(GOOD) + len(bad) + 3
