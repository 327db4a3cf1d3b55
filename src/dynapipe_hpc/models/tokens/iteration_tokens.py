"""Tokens of a global batch, from which micro-batches are laid out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.sample import Sample

IntegerArray = npt.NDArray[np.integer[Any]]


class TokenReader(Protocol):
    """Where tokens come from, the dataset in practice."""

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[IntegerArray, IntegerArray]:
        """The first tokens of a sample's input and of its target."""
        ...


@dataclass(frozen=True, slots=True)
class IterationTokens:
    """Tokens of the samples of an iteration's global batch, and their weights in the loss.

    Attributes:
        samples: Samples by id, with the number of tokens used of each.
        weights: Weight in the loss of each target token of a sample, by sample id.
        reader: Gives the tokens.
        start_id: Token before the first of every sample; also fills padding.
    """

    samples: Mapping[int, Sample]
    weights: Mapping[int, float]
    reader: TokenReader
    start_id: int

    def read(self, sample: Sample) -> tuple[IntegerArray, IntegerArray]:
        """The tokens of a sample's input and of its target, as many as are used."""
        return self.reader.read(sample.sample_id, sample.input_tokens, sample.target_tokens)
