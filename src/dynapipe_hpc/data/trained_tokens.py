"""Trained tokens: those of a sample whose prediction counts in the loss."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.spans import Spans

Mask = npt.NDArray[np.bool_]
"""Whether each token of a sample is trained, input and target together, shape (tokens,)."""


class TrainedTokens:
    """Choice of the tokens of samples that are trained (the loss mask): those of targets."""

    def mask(self, sample: Sample) -> Mask:
        """Whether each of the tokens that are used of a sample is trained; at least one is."""
        return np.arange(sample.tokens) >= sample.input_tokens

    def count(self, sample: Sample) -> int:
        """Number of trained tokens of a sample."""
        return sample.target_tokens


class AllTokens(TrainedTokens):
    """The tokens of inputs and targets."""

    def mask(self, sample: Sample) -> Mask:
        return np.ones(sample.tokens, np.bool_)

    def count(self, sample: Sample) -> int:
        return sample.tokens


@dataclass(frozen=True, slots=True, eq=False)
class MarkedTokens(TrainedTokens):
    """The tokens in the spans that a dataset marks; targets of samples without spans.

    `keeps_end`: Whether inputs that are cut lose their start instead of their end.
    `predicts_inputs`: Whether the model predicts tokens of inputs, as decoder-only models do.
    """

    spans: Spans
    input_lengths: npt.NDArray[np.int64]
    keeps_end: bool
    predicts_inputs: bool

    def mask(self, sample: Sample) -> Mask:
        spans = self.spans.of_sample(sample.sample_id)
        if not spans:
            return TARGETS.mask(sample)
        n_inputs = int(self.input_lengths[sample.sample_id])
        marked = np.zeros(n_inputs + sample.target_tokens, np.bool_)
        for start, end in spans:
            marked[start:end] = True
        if not self.predicts_inputs:
            marked[:n_inputs] = False
        first = n_inputs - sample.input_tokens if self.keeps_end else 0
        return np.concatenate([marked[first : first + sample.input_tokens], marked[n_inputs:]])

    def count(self, sample: Sample) -> int:
        if not self.spans.of_sample(sample.sample_id):
            return sample.target_tokens
        return int(np.count_nonzero(self.mask(sample)))


TARGETS = TrainedTokens()
