"""Lengths of samples, all that planning needs of a dataset: read from JSON, or drawn."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.data.sample import Sample

Batch = Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(min_length=1)]
Lengths = Sequence[tuple[int, int]]


class _Content(BaseModel, strict=True):
    """The content of the file: lengths of every sample, or of its input and of its target."""

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
            "needs in addition to the lengths of inputs"
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
            f"{path}: batches has {inputs} inputs, but dec_batches has {targets} targets; each "
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


Tokens = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

LONGEST = 65_536
"""Maximum number of tokens of an input or a target."""
_FRACTION_BITS = 20
_WORDS = 13  # random words per sample: one for its kind, six each for input and target


class TaskKind(NamedTuple):
    """A kind of task, whose lengths are distributed log-normally."""

    name: str
    share: int  # number of its samples in 1,000 samples
    input_median: float  # median number of tokens of inputs
    input_octaves: float  # standard deviation of the base-2 logarithm of that number
    target_median: float
    target_octaves: float


TASK_KINDS = (
    TaskKind("language inference", 160, 46.6, 0.65, 3, 0.7),
    TaskKind("question answering", 340, 75, 0.95, 6, 1.3),
    TaskKind("dialogue", 219, 110, 1.0, 22, 0.9),
    TaskKind("reasoning", 154, 110, 0.75, 60, 0.8),
    TaskKind("reading comprehension", 100, 250, 0.85, 8, 1.3),
    TaskKind("news summarization", 13, 891, 0.62, 62, 0.6),
    TaskKind("long documents", 14, 620, 1.6, 40, 1.2),
)
"""Kinds of tasks of FLANv2 (zero-shot), calibrated to published statistics.

Published are the mean numbers of input tokens of MNLI (51.59, here language inference) and of
CNN/DailyMail (977.73, here news summarization); that 13.2 % more tokens are used with a maximum of
8,192 tokens per sample than with 512; and that padding every sample to the longest of a mini-batch
leaves less than 20 % real tokens. The other numbers are chosen so that these follow.

Source:
    Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, sections 1 and 2.
"""


class MultitaskLengths(NamedTuple):
    """Lengths of samples, arrays of shape (n_samples,)."""

    inputs: Tokens
    targets: Tokens
    task_ids: Tokens


def draw_lengths(n_samples: int, seed: int) -> MultitaskLengths:
    """Draws the lengths of samples; a larger `n_samples` begins with the same lengths.

    The same arguments give the same lengths on every machine: NumPy's distributions, which change
    between versions, are not used, and the last bits of `exp2` are rounded away.

    `seed`: Seed, from 0 on.
    """
    entropy = np.random.SeedSequence([seed % 2**32, seed // 2**32])
    words = np.random.Philox(entropy).random_raw(_WORDS * n_samples).reshape(n_samples, _WORDS)
    columns = np.array([kind[1:] for kind in TASK_KINDS], np.float64).T
    ends = np.cumsum([kind.share for kind in TASK_KINDS])
    task_ids = np.searchsorted(ends, words[:, 0] % np.uint64(ends[-1]), side="right")
    _, inputs, input_octaves, targets, target_octaves = columns[:, task_ids]
    return MultitaskLengths(
        _lengths(inputs, input_octaves, words[:, 1:7]),
        _lengths(targets, target_octaves, words[:, 7:]),
        task_ids.astype(np.int64),
    )


def _lengths(medians: Numbers, octaves: Numbers, words: npt.NDArray[np.uint64]) -> Tokens:
    # Sums of the 12 halves of six words, as numbers from 0 to 1, minus 6: mean 0, variance 1.
    sums = ((words & np.uint64(2**32 - 1)) + (words >> np.uint64(32))).sum(axis=1)
    normal: Numbers = np.ldexp(sums.astype(np.float64), -32) - 6
    exponents = np.floor(np.ldexp(octaves * normal, _FRACTION_BITS))
    lengths = medians * np.exp2(np.ldexp(exponents, -_FRACTION_BITS))
    return np.clip(np.rint(lengths), 1, LONGEST).astype(np.int64)
