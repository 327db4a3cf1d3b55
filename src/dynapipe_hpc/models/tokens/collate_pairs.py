"""Tensors that an encoder-decoder model reads, made of a micro-batch."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.key_value_cache import KeyValueCache
from dynapipe_hpc.models.tokens.collate import NO_SAMPLE, TokenBatch
from dynapipe_hpc.models.tokens.documents import PairDocuments, check_offsets
from dynapipe_hpc.models.tokens.dropout_keys import dropout_keys
from dynapipe_hpc.models.tokens.iteration_tokens import IntegerArray, IterationTokens, TokenReader
from dynapipe_hpc.models.tokens.padding_mask import padding_mask
from dynapipe_hpc.models.tokens.to_device import to_device


@dataclass(frozen=True, slots=True, eq=False)
class PairBatch:
    """The tokens of a micro-batch with inputs and targets in rows of their own.

    Attributes:
        documents: Documents of a packed micro-batch; None in other layouts.
        is_padded: Whether a row of `inputs` has padding, known without asking a device.
        inputs: What the encoder reads, shape (rows, row_tokens).
        lengths: How many positions of each of these rows are not padding, shape (rows,); at
            least one, so that there is something to attend to.
        tokens: What the decoder reads and is to predict: the targets of samples.
        keys: Keys for dropout of inputs and of targets, of their shapes; None without.
    """

    documents: PairDocuments | None
    is_padded: bool
    inputs: Tensor
    lengths: Tensor
    tokens: TokenBatch
    keys: tuple[Tensor, Tensor] | None = None

    def padding_mask(self, dtype: torch.dtype) -> Tensor | None:
        """Attention padding mask over whole rows: shape (rows, 1, 1, row_tokens).

        None if the encoder's rows have no padding.
        """
        if not self.is_padded:
            return None
        return padding_mask(self.lengths, self.inputs.shape[1], dtype)

    def with_cache(self, kv_cache: KeyValueCache) -> Self:
        """Refuses: samples of pairs have no slices."""
        raise NotImplementedError("samples of encoder-decoder models have no slices")

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return type(self)(
            self.documents and self.documents.to(device),
            self.is_padded,
            to_device(self.inputs, device),
            to_device(self.lengths, device),
            self.tokens.to(device),
            self.keys and (to_device(self.keys[0], device), to_device(self.keys[1], device)),
        )


def collate_pairs(microbatch: MicroBatch, tokens: IterationTokens) -> PairBatch:
    """Reads and lays out the tokens of a micro-batch.

    Inputs and targets of a row's samples follow each other without gaps, each on their side; a
    sample of a packed row that has no input has a position of padding in its place.

    A side of which the reader gives no tokens is laid out as padding.

    Raises:
        ValueError: The samples of a row are longer than the row, or those of a packed row do not
            begin where its offsets say.
    """
    documents = PairDocuments.from_microbatch(microbatch)
    if isinstance(microbatch, PackedRow):
        _check_offsets(microbatch, tokens)
    shape = (microbatch.n_rows, microbatch.row_tokens)
    target_shape = (microbatch.n_rows, microbatch.target_tokens)
    start_id = tokens.padding_id
    read, lengths = np.full(shape, start_id), np.ones(microbatch.n_rows, dtype=np.int64)
    decoder_tokens, labels = (np.full(target_shape, start_id, dtype=np.int64) for _ in range(2))
    weights, owner_ids = np.zeros(target_shape), np.full(target_shape, NO_SAMPLE)
    for row, sample_ids in enumerate(microbatch.rows):
        of_row = [tokens.samples[i] for i in sample_ids]
        _check_length(row, of_row, microbatch)
        lengths[row] = max(1, sum(sample.input_tokens for sample in of_row))
        start = target_start = 0
        for sample in of_row:
            inputs, targets = tokens.read(sample)
            end = target_start + sample.target_tokens
            read[row, start : start + len(inputs)] = inputs
            labels[row, target_start : target_start + len(targets)] = targets
            decoder_tokens[row, target_start + 1 : end] = labels[row, target_start : end - 1]
            weights[row, target_start:end] = tokens.loss_weights(sample)[sample.input_tokens :]
            owner_ids[row, target_start:end] = sample.sample_id
            start, target_start = start + _input_positions(sample, microbatch), end
    targets_read = (decoder_tokens, labels, weights, owner_ids)
    return PairBatch(
        documents,
        bool((lengths < microbatch.row_tokens).any()),
        torch.from_numpy(read),
        torch.from_numpy(lengths),
        TokenBatch(*(torch.from_numpy(array) for array in targets_read)),
        _keys(microbatch, tokens),
    )


@dataclass(frozen=True, slots=True)
class Sides:
    """Reads inputs, targets, both or neither.

    Attributes:
        inputs: Whether to read inputs.
        targets: Whether to read targets.
    """

    reader: TokenReader
    inputs: bool
    targets: bool

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[IntegerArray, IntegerArray]:
        """See `TokenReader`; nothing of a side that is not read."""
        return self.reader.read(sample_id, input_tokens * self.inputs, target_tokens * self.targets)

    def first_token(self, sample_id: int) -> int:
        """See `TokenReader`."""
        return self.reader.first_token(sample_id)


def _keys(microbatch: MicroBatch, tokens: IterationTokens) -> tuple[Tensor, Tensor] | None:
    rows, iteration = microbatch.rows, tokens.iteration
    if iteration is None:
        return None
    of_row = [tokens.samples[i] for i in microbatch.sample_ids]
    inputs = {s.sample_id: range(_input_positions(s, microbatch)) for s in of_row}
    targets = {s.sample_id: range(s.target_tokens) for s in of_row}
    return (
        dropout_keys(iteration, rows, inputs, microbatch.row_tokens),
        dropout_keys(iteration, rows, targets, microbatch.target_tokens),
    )


def _input_positions(sample: Sample, microbatch: MicroBatch) -> int:
    """Positions of a sample's input: a document needs one, for its target to attend to."""
    return max(sample.input_tokens, int(isinstance(microbatch, PackedRow)))


def _check_offsets(microbatch: PackedRow, tokens: IterationTokens) -> None:
    samples = [tokens.samples[i] for i in microbatch.sample_ids]
    inputs = [_input_positions(sample, microbatch) for sample in samples]
    targets = [sample.target_tokens for sample in samples]
    check_offsets(microbatch.sample_ids, inputs, microbatch.offsets, "input tokens")
    check_offsets(microbatch.sample_ids, targets, microbatch.target_offsets, "target tokens")


def _check_length(row: int, samples: list[Sample], microbatch: MicroBatch) -> None:
    inputs = [_input_positions(sample, microbatch) for sample in samples]
    targets = [sample.target_tokens for sample in samples]
    for side, needed, held in (
        ("input", sum(inputs), microbatch.row_tokens),
        ("target", sum(targets), microbatch.target_tokens),
    ):
        if needed > held:
            raise ValueError(
                f"row {row} holds {held} {side} tokens, but its samples "
                f"{[sample.sample_id for sample in samples]} have {needed}"
            )
