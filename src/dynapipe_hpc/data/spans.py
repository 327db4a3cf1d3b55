"""Spans of tokens that samples are trained on, where that is not just their targets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]
"""First position in a sample, input and target together, and the position after the last."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of trained tokens of consecutive samples; a sample without any trains its target.

    Attributes:
        offsets: Spans of sample *i* are those from `offsets[i]` to `offsets[i + 1]`, int64, shape
            (n_samples + 1,).
        starts: First position of every span in its sample, int32, shape (n_spans,).
        ends: Position after the last, int32, shape (n_spans,).
    """

    offsets: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    @classmethod
    def none(cls, n_samples: int) -> Self:
        """Samples that all train their targets; takes no memory."""
        nothing = np.zeros(0, np.int32)
        return cls(np.broadcast_to(np.int64(0), (n_samples + 1,)), nothing, nothing)

    @classmethod
    def from_samples(cls, samples: Sequence[Sequence[Span]]) -> Self:
        """Spans, sample by sample."""
        bounds = np.array([span for spans in samples for span in spans], np.int32).reshape(-1, 2)
        offsets = np.cumsum([0, *map(len, samples)], dtype=np.int64)
        return cls(offsets, bounds[:, 0].copy(), bounds[:, 1].copy())

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Spans of samples one part after the other."""
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(
            np.insert(np.cumsum(lengths, dtype=np.int64), 0, 0),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.ends for part in parts]),
        )

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of spans of every sample, shape (n_samples,)."""
        return np.diff(self.offsets)

    def of_sample(self, sample_id: int) -> list[Span]:
        """Spans of a sample, ascending."""
        first, end = self.offsets[sample_id : sample_id + 2].tolist()
        starts, ends = (bounds[first:end].tolist() for bounds in (self.starts, self.ends))
        return list(zip(starts, ends, strict=True))

    def without_first_tokens(self) -> Self:
        """The same spans in samples that have lost their first token."""
        return replace(self, starts=np.maximum(self.starts - 1, 0), ends=self.ends - 1)

    def between(self, first: int, end: int) -> Self:
        """Spans of the samples from `first` to before `end`."""
        offsets = self.offsets[first : end + 1]
        bounds_of_block = slice(int(offsets[0]), int(offsets[-1]))
        return type(self)(
            offsets - offsets[0], self.starts[bounds_of_block], self.ends[bounds_of_block]
        )
