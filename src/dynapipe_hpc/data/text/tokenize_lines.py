"""Tokenizing of JSON lines into a block of samples; runs in worker processes."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.text.text_format import FormatError, check_first_line
from dynapipe_hpc.data.text.text_part import LONGEST_LINE_BYTES, Lines, TextPart
from dynapipe_hpc.data.text.tokenizers import Tokenizer
from dynapipe_hpc.data.token_block import TokenBlock

DEFAULT_TASK = "default"
MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a valid sample.

    Attributes:
        part: The part that it is from.
        number: Number of the line in the part, from 1.
        reason: What is wrong with it.
        is_format: Whether the complete file is of another format, and the reason names the remedy.
    """

    part: TextPart
    number: int
    reason: str
    is_format: bool = False

    def describe(self) -> str:
        """File, line number in the file, and reason, as a message.

        Raises:
            InputError: The file can no longer be read.
        """
        return f"{self.part.path}:{self.part.lines_before() + self.number}: {self.reason}"


@dataclass(frozen=True, slots=True)
class TokenizedLines:
    """The result of tokenizing some lines.

    Attributes:
        block: Samples of the good lines.
        n_bytes: Size in bytes of all lines in the file.
        bad: The bad lines.
    """

    block: TokenBlock
    n_bytes: int
    bad: tuple[BadLine, ...]


@dataclass(frozen=True, slots=True)
class _Text:
    inputs: str
    targets: str
    task: str


def tokenize_lines(lines: Lines, tokenizer: Tokenizer) -> TokenizedLines:
    """Tokenizes one sample per line and ends every target with the end-of-sequence token.

    Args:
        lines: JSON objects with the strings `inputs`, `targets` (not empty) and, optionally,
            `task`.
        tokenizer: Tokenizer of inputs and targets.
    """
    texts: list[_Text] = []
    bad: list[BadLine] = []
    for number, line in enumerate(lines.lines, start=lines.first):
        try:
            if number == 1 and lines.part.start == 0:
                check_first_line(line)
            texts.append(_parse(line))
        except InputError as error:
            is_format = isinstance(error, FormatError)
            bad.append(BadLine(lines.part, number, str(error), is_format))
    return TokenizedLines(_tokenize(texts, tokenizer), lines.n_bytes, tuple(bad))


def _tokenize(texts: Sequence[_Text], tokenizer: Tokenizer) -> TokenBlock:
    inputs = tokenizer.encode([text.inputs for text in texts])
    targets = tokenizer.encode([text.targets for text in texts])
    ended = [[*tokens, tokenizer.eos_id] for tokens in targets]
    tasks = [text.task for text in texts]
    return TokenBlock.of(list(zip(inputs, ended, tasks, strict=True)), tokenizer.vocab_size)


def _parse(line: bytes) -> _Text:
    if len(line) > LONGEST_LINE_BYTES:
        raise InputError(f"longer than {LONGEST_LINE_BYTES:,} bytes")
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})") from None
    if not isinstance(record, dict):
        raise InputError(f"not a JSON object but {_kind(record)}")
    text = _Text(
        _field(record, "inputs"), _field(record, "targets"), _field(record, "task", DEFAULT_TASK)
    )
    if not text.targets:
        raise InputError("field 'targets' is empty, so there is nothing to learn")
    if "\0" in text.task:
        raise InputError("field 'task' holds a zero character, which a dataset cannot store")
    return text


def _field(record: dict[str, Any], name: str, default: str | None = None) -> str:
    if name not in record and default is None:
        raise InputError(f"field '{name}' is missing (found {_listed(record)})")
    value = record.get(name, default)
    if not isinstance(value, str):
        raise InputError(f"field '{name}' is {_kind(value)}, not a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"field '{name}' holds half of a surrogate pair, not text") from None
    return value


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(map(quoted, islice(names, MOST_NAMES)))
    more = len(names) - MOST_NAMES
    return f"{shown}, {more} more" if more > 0 else shown or "no fields"


def _kind(value: object) -> str:
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
