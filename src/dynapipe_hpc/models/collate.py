"""Tensors that a model reads, made of a micro-batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.to_device import to_device

IntegerArray = npt.NDArray[np.integer[Any]]


class TokenReader(Protocol):
    """Where tokens come from, the dataset in practice."""

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[IntegerArray, IntegerArray]:
        """The first tokens of a sample's input and of its target."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The tokens of a micro-batch. Tensors of shape (rows, row_tokens).

    Attributes:
        tokens: What the model reads: every sample one position late, after a start token.
        labels: What it is to predict: the samples themselves.
        weights: Weight of each prediction in the loss, float64; zero on inputs and on padding.
    """

    tokens: Tensor
    labels: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> "TokenBatch":
        """The same on another device, or itself."""
        tensors = (self.tokens, self.labels, self.weights)
        return TokenBatch(*(to_device(tensor, device) for tensor in tensors))


def collate(
    microbatch: MicroBatch,
    samples: Mapping[int, Sample],
    token_weights: Mapping[int, float],
    reader: TokenReader,
    start_id: int,
) -> TokenBatch:
    """Reads and lays out the tokens of a micro-batch.

    A sample of n tokens takes n positions; samples of a row follow each other without gaps.

    Args:
        microbatch: Which samples, in which rows.
        samples: Samples by id, with the number of tokens used of each.
        token_weights: Weight in the loss of each target token of a sample, by sample id.
        reader: Gives the tokens.
        start_id: Token before the first of every sample; also fills padding.

    Raises:
        ValueError: The samples of a row are longer than the row.
    """
    shape = (microbatch.n_rows, microbatch.row_tokens)
    tokens = np.full(shape, start_id, dtype=np.int64)
    labels = np.full(shape, start_id, dtype=np.int64)
    weights = np.zeros(shape, dtype=np.float64)
    for row, sample_ids in enumerate(microbatch.rows):
        _check_length(row, [samples[i] for i in sample_ids], microbatch.row_tokens)
        start = 0
        for sample in (samples[i] for i in sample_ids):
            read = reader.read(sample.sample_id, sample.input_tokens, sample.target_tokens)
            end = start + sample.tokens
            labels[row, start:end] = np.concatenate(read)
            tokens[row, start + 1 : end] = labels[row, start : end - 1]
            weights[row, start + sample.input_tokens : end] = token_weights[sample.sample_id]
            start = end
    return TokenBatch(*(torch.from_numpy(array) for array in (tokens, labels, weights)))


def _check_length(row: int, samples: list[Sample], row_tokens: int) -> None:
    needed = sum(sample.tokens for sample in samples)
    if needed > row_tokens:
        raise ValueError(
            f"row {row} holds {row_tokens} tokens, but its samples "
            f"{[sample.sample_id for sample in samples]} have {needed}"
        )
