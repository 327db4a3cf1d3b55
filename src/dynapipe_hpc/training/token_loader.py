"""Loader of the tokens of micro-batches, iteration by iteration."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.trained_tokens import TARGETS, TrainedTokens
from dynapipe_hpc.models.tokens.collate import (
    IterationTokens,
    RejectedReader,
    TokenReader,
)
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.loss import token_weights

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


class Collate(Protocol[BatchT_co]):
    """Function that reads and arranges the tokens of a micro-batch for a family of models."""

    def __call__(self, microbatch: MicroBatch, tokens: IterationTokens) -> BatchT_co:
        """The tokens, and the weight of each in the loss; see `collate`."""
        ...


class TokenLoader(Generic[BatchT]):
    """Reads the micro-batches of an iteration, with the loss weights of its global batch."""

    def __init__(
        self,
        reader: TokenReader,
        start_id: int | None,
        weighting: LossWeighting,
        collate: Collate[BatchT],
        *,
        trained: TrainedTokens = TARGETS,
        rejected: RejectedReader | None = None,
    ) -> None:
        """Reads from `reader`; `IterationTokens` and `token_weights` explain other arguments."""
        self._tokens = IterationTokens({}, {}, reader, start_id, trained, rejected=rejected)
        self._weighting = weighting
        self._collate = collate
        self._ahead: dict[MicroBatch, BatchT] = {}

    def start_iteration(self, samples: Sequence[Sample], iteration: int | None = None) -> None:
        """Starts a global batch: that of an iteration of training, or one without dropout."""
        by_id = {sample.sample_id: sample for sample in samples}
        weights = token_weights(samples, self._weighting, self._tokens.trained)
        self._tokens = replace(self._tokens, samples=by_id, weights=weights, iteration=iteration)
        self._ahead.clear()

    def read_ahead(self, microbatch: MicroBatch) -> None:
        """Reads a micro-batch of the current global batch before it is asked for."""
        self._ahead[microbatch] = self._collate(microbatch, self._tokens)

    def __call__(self, microbatch: MicroBatch) -> BatchT:
        """A micro-batch of the current global batch."""
        ahead = self._ahead.pop(microbatch, None)
        return self._collate(microbatch, self._tokens) if ahead is None else ahead
