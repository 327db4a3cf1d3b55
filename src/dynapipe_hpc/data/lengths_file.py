"""Batches of sample lengths in a JSON file: all that planning needs of a dataset."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.data.sample import Sample

Batch = Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(min_length=1)]
Lengths = Sequence[tuple[int, int]]


class _Content(BaseModel, strict=True):
    """The content of the file: tokens per sample, or of its input and its target."""

    batches: Annotated[list[Batch], Field(min_length=1)]
    dec_batches: list[Batch] | None = None


def read_lengths(path: Path, *, needs_targets: bool = False) -> list[Lengths]:
    """Reads the numbers of input and target tokens of every sample, batch by batch.

    Alone, `batches` holds the lengths of samples, and the last token of each counts as its
    target. With `dec_batches`, `batches` holds the lengths of inputs and `dec_batches` those of
    targets. Other keys are ignored.

    `needs_targets`: Whether `dec_batches` is required, as for encoder-decoder models.
    """
    try:
        content = _Content.model_validate_json(read_input(path))
    except ValidationError as error:
        raise InputError(f"{path}: {_explain(error.errors()[0])}") from None
    if needs_targets and content.dec_batches is None:
        raise InputError(
            f"{path}: has no dec_batches, the lengths of targets, which an encoder-decoder model "
            "needs beside those of inputs"
        )
    return list(_pairs(content, path))


def samples_of_lengths(lengths: Lengths) -> list[Sample]:
    """Samples numbered by their index in the batch."""
    return [Sample(i, inputs, targets) for i, (inputs, targets) in enumerate(lengths)]


def _pairs(content: _Content, path: Path) -> Iterator[Lengths]:
    if content.dec_batches is None:
        yield from ([(tokens - 1, 1) for tokens in batch] for batch in content.batches)
        return
    n_inputs, n_targets = map(len, content.batches), map(len, content.dec_batches)
    if (inputs := list(n_inputs)) != (targets := list(n_targets)):
        raise InputError(
            f"{path}: batches have {inputs} inputs, but dec_batches {targets} targets; each "
            "sample needs both"
        )
    for batch, dec_batch in zip(content.batches, content.dec_batches, strict=True):
        yield list(zip(batch, dec_batch, strict=True))


def _explain(detail: ErrorDetails) -> str:
    key, *indices = detail["loc"] or ("content",)
    names = zip(("batch", "sample"), indices, strict=False)
    where = ", ".join([str(key), *(f"{name} {index}" for name, index in names)])
    value = detail["input"]
    got = f"{quoted(value)}: " if isinstance(value, int | float | str) and indices else ""
    return f"{where}: {got}{detail['msg']}"
