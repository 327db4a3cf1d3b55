"""Spans of trained tokens in the dataset file, read and checked."""

import h5py
import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.open_dataset import array_of
from dynapipe_hpc.data.dataset.own_tokens import offsets_of
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.spans import Spans
from dynapipe_hpc.data.stored_array import holds

Lengths = npt.NDArray[np.int64]


def spans_of(file: h5py.File, n_samples: int) -> Spans:
    """Spans of all samples of a dataset; of older files, which store none, the targets.

    Raises:
        InputError: An array is missing, or the numbers of spans disagree.
    """
    if not holds(file, "spans"):
        return Spans.none(n_samples)
    offsets = offsets_of(file, "spans")
    starts, ends = (array_of(file, f"spans/{name}", "i")[:] for name in ("starts", "ends"))
    if len(offsets) != n_samples + 1:
        raise InputError(
            f"'spans/offsets' holds {len(offsets)} numbers, but {n_samples} samples need "
            f"{n_samples + 1}"
        )
    if not offsets[-1] == len(starts) == len(ends):
        raise InputError(
            f"'spans/offsets' ends at {offsets[-1]}, but there are {len(starts)} 'spans/starts' "
            f"and {len(ends)} 'spans/ends'"
        )
    return Spans(offsets, starts, ends) if len(starts) else Spans.none(n_samples)


def check_spans(spans: Spans, first_target: Lengths, n_tokens: Lengths) -> None:
    """Checks that spans are within their samples, in order, and that one has a target's start.

    However a sample is cut, it keeps the first token of its target, so something is trained.

    Args:
        spans: The spans.
        first_target: Position of the first token to predict of every target.
        n_tokens: Number of tokens of every sample.

    Raises:
        InputError: A span is wrong; names the first sample that has one.
    """
    if not len(spans.starts):
        return
    owners = np.repeat(np.arange(len(n_tokens)), spans.lengths)
    is_wrong = (spans.starts < 0) | (spans.starts >= spans.ends)
    is_wrong |= spans.ends > n_tokens[owners]
    is_wrong[1:] |= (owners[1:] == owners[:-1]) & (spans.starts[1:] < spans.ends[:-1])
    if is_wrong.any():
        worst = int(is_wrong.argmax())
        raise InputError(
            f"sample {owners[worst]} has the span {spans.starts[worst]} to {spans.ends[worst]}, "
            "which is empty, beyond its tokens, or before the end of the previous span"
        )
    first = first_target[owners]
    has_start = (spans.starts <= first) & (first < spans.ends)
    n_with_start = np.bincount(owners[has_start], minlength=len(n_tokens))
    if (lacking := (spans.lengths > 0) & (n_with_start == 0)).any():
        raise InputError(
            f"sample {lacking.argmax()} has spans, but none has the first token of its target"
        )
