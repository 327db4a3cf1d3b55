"""Tensors that a model reads, made of a micro-batch."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, tokens_held
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.tokens.documents import check_offsets
from dynapipe_hpc.models.tokens.iteration_tokens import IterationTokens
from dynapipe_hpc.models.tokens.to_device import to_device

NO_SAMPLE = -1


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The tokens of a micro-batch. Tensors of shape (rows, row_tokens).

    Attributes:
        tokens: What the model reads: every sample one position late, after its start token.
        labels: What it is to predict: the samples themselves.
        weights: Weight of each prediction in the loss, float64; zero on tokens that are not
            trained, and on padding.
        sample_ids: Sample of each prediction; `NO_SAMPLE` on padding.
    """

    tokens: Tensor
    labels: Tensor
    weights: Tensor
    sample_ids: Tensor

    def to(self, device: torch.device) -> "TokenBatch":
        """The same on another device, or itself."""
        tensors = (self.tokens, self.labels, self.weights, self.sample_ids)
        return TokenBatch(*(to_device(tensor, device) for tensor in tensors))


def collate(microbatch: MicroBatch, tokens: IterationTokens) -> TokenBatch:
    """Reads and lays out the tokens of a micro-batch.

    A sample of n tokens takes n positions; samples of a row follow each other without gaps. What a
    slice reads begins with the token before it.

    Raises:
        ValueError: The samples of a row are longer than the row, or those of a packed row do not
            begin where its offsets say.
    """
    if isinstance(microbatch, PackedRow):
        lengths = [len(_held(microbatch, tokens.samples[i])) for i in microbatch.sample_ids]
        check_offsets(microbatch.sample_ids, lengths, microbatch.offsets)
    shape = (microbatch.n_rows, microbatch.row_tokens)
    read, labels = (np.full(shape, tokens.padding_id, dtype=np.int64) for _ in range(2))
    weights, owner_ids = np.zeros(shape), np.full(shape, NO_SAMPLE)
    for row, sample_ids in enumerate(microbatch.rows):
        of_row = [tokens.samples[i] for i in sample_ids]
        _check_length(row, of_row, microbatch)
        start = 0
        for sample in of_row:
            held = _held(microbatch, sample)
            end = start + len(held)
            of_sample = np.concatenate([[tokens.start(sample)], *tokens.read(sample)])
            read[row, start:end] = of_sample[held.start : held.stop]
            labels[row, start:end] = of_sample[held.start + 1 : held.stop + 1]
            weights[row, start:end] = tokens.loss_weights(sample)[held.start : held.stop]
            owner_ids[row, start:end] = sample.sample_id
            start = end
    return TokenBatch(*(torch.from_numpy(array) for array in (read, labels, weights, owner_ids)))


def _held(microbatch: MicroBatch, sample: Sample) -> range:
    return tokens_held(microbatch, sample.sample_id, sample.tokens)


def _check_length(row: int, samples: list[Sample], microbatch: MicroBatch) -> None:
    needed = sum(len(_held(microbatch, sample)) for sample in samples)
    if needed > microbatch.row_tokens:
        raise ValueError(
            f"row {row} holds {microbatch.row_tokens} tokens, but its samples "
            f"{[sample.sample_id for sample in samples]} have {needed}"
        )
