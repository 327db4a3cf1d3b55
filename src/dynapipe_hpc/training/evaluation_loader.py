"""Loader of the tokens of an evaluation."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.trained_tokens import TARGETS, TrainedTokens
from dynapipe_hpc.models.tokens.iteration_tokens import IterationTokens, TokenReader
from dynapipe_hpc.training.token_loader import Collate

BatchT = TypeVar("BatchT")


class EvaluationLoader(Generic[BatchT]):
    """Reads micro-batches of samples, with the number of its sample as the weight of each token.

    See `SampleLosses`, which adds up losses by these numbers.
    """

    def __init__(
        self,
        reader: TokenReader,
        start_id: int | None,
        collate: Collate[BatchT],
        samples: Sequence[Sample],
        trained: TrainedTokens = TARGETS,
    ) -> None:
        """Reads `samples` from `reader`; `IterationTokens` explains other arguments."""
        by_id = {sample.sample_id: sample for sample in samples}
        numbers = {sample.sample_id: float(k) for k, sample in enumerate(samples, start=1)}
        self._tokens = IterationTokens(by_id, numbers, reader, start_id, trained)
        self._collate = collate

    def __call__(self, microbatch: MicroBatch) -> BatchT:
        """A micro-batch of the samples."""
        return self._collate(microbatch, self._tokens)
