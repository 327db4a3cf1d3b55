"""Micro-batches laid out as tensors: tokens, labels, weights in the loss, and keys of dropout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import Branch, MicroBatch, PackedRow, tokens_held
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.trained_tokens import TARGETS, TrainedTokens
from dynapipe_hpc.models.documents import (
    EncoderDecoderDocuments,
    OnDevice,
    check_offsets,
    padding_mask,
)

IntegerArray = npt.NDArray[np.integer[Any]]
RejectedReader = Callable[[int, int], IntegerArray]
"""Reader of the first tokens of a pair's rejected answer, by sample id and number of tokens."""


class TokenReader(Protocol):
    """Source of tokens, the dataset in practice."""

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[IntegerArray, IntegerArray]:
        """The first tokens of a sample's input and of its target."""
        ...

    def first_token(self, sample_id: int) -> int:
        """The token before those of a sample that has a start token of its own."""
        ...


@dataclass(frozen=True, slots=True)
class IterationTokens:
    """Tokens of the samples of an iteration's global batch, and their weights in the loss.

    `weights`: Weight in the loss of each trained token of a sample, by sample id; of a preference
    pair, its own. `start_id`: Token before the first of every sample; None if each has its own.
    `iteration`: Iteration of training, on which dropout depends; None to drop nothing. `rejected`:
    Gives the tokens of rejected answers; None if no sample is a preference pair.
    """

    samples: Mapping[int, Sample]
    weights: Mapping[int, float]
    reader: TokenReader
    start_id: int | None
    trained: TrainedTokens = TARGETS
    iteration: int | None = None
    rejected: RejectedReader | None = None

    def read_rejected(self, sample: Sample) -> IntegerArray:
        """The tokens of a preference pair's rejected answer, as many as are used."""
        if self.rejected is None:
            raise ValueError(f"sample {sample.sample_id} is a pair, but nothing reads its answers")
        return self.rejected(sample.sample_id, sample.rejected_tokens)

    def read(self, sample: Sample) -> tuple[IntegerArray, IntegerArray]:
        """The tokens of a sample's input and of its target, as many as are used."""
        return self.reader.read(sample.sample_id, sample.input_tokens, sample.target_tokens)

    def start(self, sample: Sample) -> int:
        """The token that is read before those of a sample."""
        if self.start_id is None:
            return self.reader.first_token(sample.sample_id)
        return self.start_id

    @property
    def padding_id(self) -> int:
        """Token of padding: the start token, or any."""
        return self.start_id or 0

    def loss_weights(self, sample: Sample) -> npt.NDArray[np.float64]:
        """Weight in the loss of every token of a sample, input and target, shape (tokens,)."""
        weights = np.zeros(sample.tokens)
        weights[self.trained.mask(sample)] = self.weights[sample.sample_id]
        return weights


STEP = 0x9E3779B97F4A7C15


def dropout_keys(
    iteration: int, rows: Sequence[Sequence[int]], held: Mapping[int, range], row_tokens: int
) -> Tensor:
    """Key of every token of a micro-batch's rows: of iteration, sample and position in it.

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
    of_sample = _hashed(_hashed(np.array([iteration], np.uint64)) ^ np.uint64(sample_id))
    return _hashed(of_sample ^ np.arange(positions.start, positions.stop, dtype=np.uint64))


def _hashed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    numbers = numbers + np.uint64(STEP)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


NO_SAMPLE = -1


@dataclass(frozen=True, slots=True, eq=False)
class PreferencePairs(OnDevice):
    """Preference pairs of a micro-batch.

    `answers`: Answer of each prediction, shape (rows, row_tokens): 2k for the chosen one of pair k,
    2k + 1 for the rejected one; 0 at tokens that are not trained. `sample_ids`: Sample of each
    pair, shape (n_pairs,). `weights`: Weight of each pair in the loss, float64, shape (n_pairs,).
    """

    answers: Tensor
    sample_ids: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch(OnDevice):
    """The tokens of a micro-batch. Tensors of shape (rows, row_tokens).

    `tokens`: What the model reads: every sample one position late, after its start token.
    `weights`: Weight of each prediction in the loss, float64; zero on tokens that are not trained,
    and on padding. `sample_ids`: Sample of each prediction; `NO_SAMPLE` on padding. `pairs`:
    Preference pairs; None if the samples are none.
    """

    tokens: Tensor
    labels: Tensor
    weights: Tensor
    sample_ids: Tensor
    pairs: PreferencePairs | None = field(default=None, kw_only=True)


def collate(microbatch: MicroBatch, tokens: IterationTokens) -> TokenBatch:
    """Reads and lays out the tokens of a micro-batch.

    A sample of n tokens takes n positions; samples of a row follow each other without gaps. What a
    slice reads begins with the token before it. The rejected answer of a preference pair begins
    with the last token of the prompt, as the chosen one does.

    Raises `ValueError`: Samples of a packed row do not begin where its offsets and branches say.
    """
    if isinstance(microbatch, PackedRow):
        lengths = [len(_held(microbatch, tokens.samples[i])) for i in microbatch.sample_ids]
        check_offsets(microbatch.sample_ids, lengths, microbatch.offsets)
    shape = (microbatch.n_rows, microbatch.row_tokens)
    read, labels = (np.full(shape, tokens.padding_id, dtype=np.int64) for _ in range(2))
    weights, owner_ids = np.zeros(shape), np.full(shape, NO_SAMPLE)
    for row, sample_ids in enumerate(microbatch.rows):
        start = 0
        for sample in (tokens.samples[i] for i in sample_ids):
            held = _held(microbatch, sample)
            end = start + len(held)
            before, predicted = _texts(sample, tokens)
            read[row, start:end] = before[held.start : held.stop]
            labels[row, start:end] = predicted[held.start : held.stop]
            weights[row, start:end] = tokens.loss_weights(sample)[held.start : held.stop]
            owner_ids[row, start:end] = sample.sample_id
            start = end
    arrays = (torch.from_numpy(array) for array in (read, labels, weights, owner_ids))
    return TokenBatch(*arrays, pairs=_pairs(microbatch, tokens))


def _texts(sample: Sample, tokens: IterationTokens) -> tuple[IntegerArray, IntegerArray]:
    inputs, targets = tokens.read(sample)
    text = np.concatenate([[tokens.start(sample)], inputs, targets])
    if not sample.is_pair:
        return text[:-1], text[1:]
    rejected = tokens.read_rejected(sample)
    last_of_prompt = text[[len(inputs)]]
    return (
        np.concatenate([text[:-1], last_of_prompt, rejected[:-1]]),
        np.concatenate([text[1:], rejected]),
    )


def _pairs(microbatch: MicroBatch, tokens: IterationTokens) -> PreferencePairs | None:
    """The preference pairs of a micro-batch, whose branches are checked; None if it has none."""
    samples = [tokens.samples[i] for i in microbatch.sample_ids]
    branches = microbatch.branches if isinstance(microbatch, PackedRow) else ()
    if not branches and not any(sample.is_pair for sample in samples):
        return None
    if not isinstance(microbatch, PackedRow) or len(branches) != len(samples):
        raise ValueError("preference pairs are in a micro-batch that is no packed row of pairs")
    answers = np.zeros((1, microbatch.row_tokens), np.int64)
    places = zip(samples, branches, pairwise(microbatch.offsets), strict=True)
    for k, (sample, branch, (begin, end)) in enumerate(places):
        prompt_end = begin + sample.input_tokens
        if branch != Branch(prompt_end + sample.target_tokens, sample.input_tokens):
            raise ValueError(
                f"sample {sample.sample_id} has {sample.describe()}, but {branch} in a packed row "
                f"from {begin} on; the plan was made for other samples"
            )
        answers[0, prompt_end : branch.begin] = 2 * k
        answers[0, branch.begin : end] = 2 * k + 1
    weights = np.array([tokens.weights[i] for i in microbatch.sample_ids])
    ids = np.array(microbatch.sample_ids, np.int64)
    return PreferencePairs(*(torch.from_numpy(array) for array in (answers, ids, weights)))


def _held(microbatch: MicroBatch, sample: Sample) -> range:
    return tokens_held(microbatch, sample.sample_id, sample.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderDecoderBatch(OnDevice):
    """The tokens of a micro-batch with inputs and targets in rows of their own.

    `documents`: Documents of a packed micro-batch; None in other layouts. `is_padded`: Whether a
    row of `inputs` has padding, known without asking a device. `inputs`: What the encoder reads,
    shape (rows, row_tokens). `lengths`: How many positions of each of these rows are not padding,
    shape (rows,); at least one, so that there is something to attend to. `keys`: Keys for dropout
    of inputs and of targets, of their shapes; None without.
    """

    documents: EncoderDecoderDocuments | None
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


def collate_both_sides(
    microbatch: MicroBatch, tokens: IterationTokens, *, inputs: bool = True, targets: bool = True
) -> EncoderDecoderBatch:
    """Reads and lays out the tokens of a micro-batch.

    Inputs and targets of a row's samples follow each other without gaps, each on their side; a
    sample of a packed row that has no input has a position of padding in its place.

    A side that is not read is laid out as padding.

    Raises `ValueError`: The samples of a packed row do not begin where its offsets say.
    """
    documents = EncoderDecoderDocuments.from_microbatch(microbatch)
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
        lengths[row] = max(1, sum(sample.input_tokens for sample in of_row))
        start = target_start = 0
        for sample in of_row:
            of_inputs, of_targets = tokens.reader.read(
                sample.sample_id, sample.input_tokens * inputs, sample.target_tokens * targets
            )
            end = target_start + sample.target_tokens
            read[row, start : start + len(of_inputs)] = of_inputs
            labels[row, target_start : target_start + len(of_targets)] = of_targets
            decoder_tokens[row, target_start + 1 : end] = labels[row, target_start : end - 1]
            weights[row, target_start:end] = tokens.loss_weights(sample)[sample.input_tokens :]
            owner_ids[row, target_start:end] = sample.sample_id
            start, target_start = start + _input_positions(sample, microbatch), end
    targets_read = (decoder_tokens, labels, weights, owner_ids)
    return EncoderDecoderBatch(
        documents,
        bool((lengths < microbatch.row_tokens).any()),
        torch.from_numpy(read),
        torch.from_numpy(lengths),
        TokenBatch(*(torch.from_numpy(array) for array in targets_read)),
        _keys_of_sides(microbatch, tokens),
    )


def _keys_of_sides(microbatch: MicroBatch, tokens: IterationTokens) -> tuple[Tensor, Tensor] | None:
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
