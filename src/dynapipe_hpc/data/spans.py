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

    `offsets`: Spans of sample *i* are those from `offsets[i]` to `offsets[i + 1]`, int64, shape
    (n_samples + 1,). `bounds`: First position of every span in its sample, and that after the last,
    int32, shape (n_spans, 2).
    """

    offsets: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int32]

    @classmethod
    def none(cls, n_samples: int) -> Self:
        """Samples that all train their targets; takes no memory."""
        return cls(np.broadcast_to(np.int64(0), (n_samples + 1,)), np.zeros((0, 2), np.int32))

    @classmethod
    def from_samples(cls, samples: Sequence[Sequence[Span]]) -> Self:
        bounds = np.array([span for spans in samples for span in spans], np.int32).reshape(-1, 2)
        return cls(np.cumsum([0, *map(len, samples)], dtype=np.int64), bounds)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Spans of samples one part after the other."""
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
        """Position after the last of every span, shape (n_spans,)."""
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
