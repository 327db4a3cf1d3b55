"""Keys of tokens, from which dropout derives its masks."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

STEP = 0x9E3779B97F4A7C15


def dropout_keys(
    iteration: int, rows: Sequence[Sequence[int]], held: Mapping[int, range], row_tokens: int
) -> Tensor:
    """Key of every token of a micro-batch's rows: of iteration, sample and position in it.

    Args:
        iteration: Iteration of training.
        rows: Ids of the samples of each row, which follow each other.
        held: Positions of each sample that the rows hold, by its id.
        row_tokens: Length of the rows.

    Returns:
        Shape (rows, row_tokens), int64; 0 at padding.
    """
    keys = np.zeros((len(rows), row_tokens), dtype=np.uint64)
    for row, sample_ids in enumerate(rows):
        start = 0
        for sample_id in sample_ids:
            # A sample without input reads a position all the same, if its row has room.
            first, n = held[sample_id].start, len(held[sample_id])
            end = min(start + max(n, 1), row_tokens)
            keys[row, start:end] = _keys(iteration, sample_id, range(first, first + end - start))
            start += n
    return torch.from_numpy(keys.view(np.int64))


def _keys(iteration: int, sample_id: int, positions: range) -> npt.NDArray[np.uint64]:
    of_sample = _mixed(_mixed(np.array([iteration], np.uint64)) ^ np.uint64(sample_id))
    return _mixed(of_sample ^ np.arange(positions.start, positions.stop, dtype=np.uint64))


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64 of each number (Steele et al., OOPSLA 2014)."""
    numbers = numbers + np.uint64(STEP)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
