"""Loader of the tokens of micro-batches, iteration by iteration."""

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.collate import TokenReader
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.loss import token_weights

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


class Collate(Protocol[BatchT_co]):
    """Function that reads and arranges the tokens of a micro-batch for a family of models."""

    def __call__(
        self,
        microbatch: MicroBatch,
        samples: Mapping[int, Sample],
        token_weights: Mapping[int, float],
        reader: TokenReader,
        start_id: int,
    ) -> BatchT_co:
        """The tokens, and the weight of each in the loss; see `collate`."""
        ...


class TokenLoader(Generic[BatchT]):
    """Reads the micro-batches of an iteration, with the loss weights of its global batch."""

    def __init__(
        self,
        reader: TokenReader,
        start_id: int,
        weighting: LossWeighting,
        collate: Collate[BatchT],
    ) -> None:
        """Reads from `reader`; `collate` and `token_weights` explain the other arguments."""
        self._reader = reader
        self._start_id = start_id
        self._weighting = weighting
        self._collate = collate
        self._samples: Mapping[int, Sample] = {}
        self._token_weights: Mapping[int, float] = {}
        self._ahead: dict[MicroBatch, BatchT] = {}

    def start_iteration(self, samples: Sequence[Sample]) -> None:
        """Starts the iteration of a global batch."""
        self._samples = {sample.sample_id: sample for sample in samples}
        self._token_weights = token_weights(samples, self._weighting)
        self._ahead.clear()

    def read_ahead(self, microbatch: MicroBatch) -> None:
        """Reads a micro-batch of the current global batch before it is asked for."""
        self._ahead[microbatch] = self._read(microbatch)

    def __call__(self, microbatch: MicroBatch) -> BatchT:
        """A micro-batch of the current global batch."""
        ahead = self._ahead.pop(microbatch, None)
        return self._read(microbatch) if ahead is None else ahead

    def _read(self, microbatch: MicroBatch) -> BatchT:
        return self._collate(
            microbatch, self._samples, self._token_weights, self._reader, self._start_id
        )
