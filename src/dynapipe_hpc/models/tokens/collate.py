"""Tensors that a model reads, made of a micro-batch."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import Branch, MicroBatch, PackedRow, tokens_held
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.tokens.documents import check_offsets
from dynapipe_hpc.models.tokens.iteration_tokens import IntegerArray, IterationTokens
from dynapipe_hpc.models.tokens.to_device import to_device

NO_SAMPLE = -1


@dataclass(frozen=True, slots=True, eq=False)
class PairTokens:
    """Preference pairs of a micro-batch.

    Attributes:
        answers: Answer of each prediction, shape (rows, row_tokens): 2k for the chosen one of
            pair k, 2k + 1 for the rejected one; 0 at tokens that are not trained.
        sample_ids: Sample of each pair, shape (n_pairs,).
        weights: Weight of each pair in the loss, float64, shape (n_pairs,).
    """

    answers: Tensor
    sample_ids: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> "PairTokens":
        """The same on another device, or itself."""
        tensors = (self.answers, self.sample_ids, self.weights)
        return PairTokens(*(to_device(tensor, device) for tensor in tensors))


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The tokens of a micro-batch. Tensors of shape (rows, row_tokens).

    Attributes:
        tokens: What the model reads: every sample one position late, after its start token.
        labels: What it is to predict: the samples themselves.
        weights: Weight of each prediction in the loss, float64; zero on tokens that are not
            trained, and on padding.
        sample_ids: Sample of each prediction; `NO_SAMPLE` on padding.
        pairs: Preference pairs; None if the samples are none.
    """

    tokens: Tensor
    labels: Tensor
    weights: Tensor
    sample_ids: Tensor
    pairs: PairTokens | None = field(default=None, kw_only=True)

    def to(self, device: torch.device) -> "TokenBatch":
        """The same on another device, or itself."""
        tensors = (self.tokens, self.labels, self.weights, self.sample_ids)
        pairs = self.pairs and self.pairs.to(device)
        return TokenBatch(*(to_device(tensor, device) for tensor in tensors), pairs=pairs)


def collate(microbatch: MicroBatch, tokens: IterationTokens) -> TokenBatch:
    """Reads and lays out the tokens of a micro-batch.

    A sample of n tokens takes n positions; samples of a row follow each other without gaps. What a
    slice reads begins with the token before it. The rejected answer of a preference pair begins
    with the last token of the prompt, as the chosen one does.

    Raises:
        ValueError: The samples of a row are longer than the row, or those of a packed row do not
            begin where its offsets and branches say.
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
            before, predicted = _texts(sample, tokens)
            read[row, start:end] = before[held.start : held.stop]
            labels[row, start:end] = predicted[held.start : held.stop]
            weights[row, start:end] = tokens.loss_weights(sample)[held.start : held.stop]
            owner_ids[row, start:end] = sample.sample_id
            start = end
    arrays = (torch.from_numpy(array) for array in (read, labels, weights, owner_ids))
    return TokenBatch(*arrays, pairs=_pairs(microbatch, tokens))


def _texts(sample: Sample, tokens: IterationTokens) -> tuple[IntegerArray, IntegerArray]:
    """Tokens read of a sample, and tokens predicted, position by position."""
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


def _pairs(microbatch: MicroBatch, tokens: IterationTokens) -> PairTokens | None:
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
    return PairTokens(*(torch.from_numpy(array) for array in (answers, ids, weights)))


def _held(microbatch: MicroBatch, sample: Sample) -> range:
    return tokens_held(microbatch, sample.sample_id, sample.tokens)


def _check_length(row: int, samples: list[Sample], microbatch: MicroBatch) -> None:
    needed = sum(len(_held(microbatch, sample)) for sample in samples)
    if needed > microbatch.row_tokens:
        raise ValueError(
            f"row {row} holds {microbatch.row_tokens} tokens, but its samples "
            f"{[sample.sample_id for sample in samples]} have {needed}"
        )
