"""Trained tokens: those whose prediction counts in the loss, and the spans that mark them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.sample import Sample

Span = tuple[int, int]
"""First position in a sample, input and target together, and the position after the last."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of trained tokens of consecutive samples; a sample without spans trains its target.

    `offsets`: Spans of sample *i* are those from `offsets[i]` to `offsets[i + 1]`, int64, shape
    (n_samples + 1,). `bounds`: First position of every span in its sample, and the position after
    its last, int32, shape (n_spans, 2).
    """

    offsets: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int32]

    @classmethod
    def from_samples(cls, samples: Sequence[Sequence[Span]]) -> Self:
        bounds = np.array([span for spans in samples for span in spans], np.int32).reshape(-1, 2)
        return cls(np.cumsum([0, *map(len, samples)], dtype=np.int64), bounds)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Spans of the samples of all parts, one part after the other."""
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(
            np.insert(np.cumsum(lengths, dtype=np.int64), 0, 0),
            np.concatenate([part.bounds for part in parts]),
        )

    @property
    def starts(self) -> npt.NDArray[np.int32]:
        """First position of every span in its sample, shape (n_spans,)."""
        return self.bounds[:, 0]

    @property
    def ends(self) -> npt.NDArray[np.int32]:
        """Position after the last token of every span, shape (n_spans,)."""
        return self.bounds[:, 1]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of spans of every sample, shape (n_samples,)."""
        return np.diff(self.offsets)

    def of_sample(self, sample_id: int) -> list[Span]:
        """Spans of a sample, ascending."""
        first, end = self.offsets[sample_id : sample_id + 2].tolist()
        return [(start, until) for start, until in self.bounds[first:end].tolist()]

    def without_first_tokens(self) -> Self:
        """The same spans in samples that have lost their first token."""
        return replace(self, bounds=np.maximum(self.bounds - 1, 0))


class TrainedTokens:
    """Choice of the tokens of samples that are trained (the loss mask); here, none of the input."""

    def spans_in(self, sample: Sample) -> list[Span]:
        """Spans of trained tokens among the used tokens of a sample; at least one."""
        return [(sample.input_tokens, sample.tokens)]

    def mask(self, sample: Sample) -> npt.NDArray[np.bool_]:
        """Whether each used token of a sample is trained, shape (tokens,)."""
        mask = np.zeros(sample.tokens, np.bool_)
        for start, end in self.spans_in(sample):
            mask[start:end] = True
        return mask

    def count(self, sample: Sample) -> int:
        """Number of trained tokens of a sample."""
        return sum(end - start for start, end in self.spans_in(sample))


class AllTokens(TrainedTokens):
    """The tokens of inputs and targets."""

    def spans_in(self, sample: Sample) -> list[Span]:
        return [(0, sample.tokens)]


@dataclass(frozen=True, slots=True, eq=False)
class MarkedTokens(TrainedTokens):
    """The tokens in the spans that a dataset marks; of samples without spans, the targets."""

    spans: Spans
    input_lengths: npt.NDArray[np.int64]
    keeps_end: bool  # whether inputs that are cut lose their start instead of their end
    predicts_inputs: bool  # whether the model predicts tokens of inputs, as decoder-only models do

    def spans_in(self, sample: Sample) -> list[Span]:
        if not (spans := self.spans.of_sample(sample.sample_id)):
            return TARGETS.spans_in(sample)
        n_inputs = int(self.input_lengths[sample.sample_id])
        first = n_inputs - sample.input_tokens if self.keeps_end else 0
        # Of each part: its start in the complete sample, its start in what is used, its length.
        parts = [(n_inputs, sample.input_tokens, sample.target_tokens)]
        if self.predicts_inputs:
            parts.append((first, 0, sample.input_tokens))
        return [
            (to + max(start - begin, 0), to + min(end - begin, n))
            for start, end in spans
            for begin, to, n in parts
            if start < begin + n and begin < end
        ]


TARGETS = TrainedTokens()
