"""Tokens of a global batch, from which micro-batches are laid out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.trained_tokens import TARGETS, TrainedTokens

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

    Attributes:
        samples: Samples by id, with the number of tokens used of each.
        weights: Weight in the loss of each trained token of a sample, by sample id; of a preference
            pair, its own.
        start_id: Token before the first of every sample; None if each has its own.
        trained: The tokens that are trained.
        iteration: Iteration of training, on which dropout depends; None to drop nothing.
        rejected: Gives the tokens of rejected answers; None if no sample is a preference pair.
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
