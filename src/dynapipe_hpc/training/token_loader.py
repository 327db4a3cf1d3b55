"""Loader of the tokens of micro-batches, iteration by iteration."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.trained_tokens import TARGETS, TrainedTokens
from dynapipe_hpc.models.batch import Batch, IterationTokens, TokenReader
from dynapipe_hpc.training.config import LossWeighting


def token_weights(
    samples: Sequence[Sample], weighting: LossWeighting, trained: TrainedTokens = TARGETS
) -> dict[int, float]:
    """Weight of each trained token, so that the weighted sum over a batch is its loss.

    The weights of a global batch add up to one, however it is split. A preference pair counts as
    one token. With "sample" or "task", all of these weigh the same, as do the tokens within each.
    """
    counts = {s.sample_id: 1 if s.is_pair else trained.count(s) for s in samples}
    match weighting:
        case "token":
            total = sum(counts[s.sample_id] for s in samples)
            return {s.sample_id: 1 / total for s in samples}
        case "sample":
            return {s.sample_id: 1 / (len(samples) * counts[s.sample_id]) for s in samples}
        case "task":
            totals: Counter[int] = Counter()
            for s in samples:
                totals[s.task_id] += counts[s.sample_id]
            return {s.sample_id: 1 / (len(totals) * totals[s.task_id]) for s in samples}
        case _:
            assert_never(weighting)


Collate = Callable[[MicroBatch, IterationTokens], Batch]
"""Function that reads and arranges the tokens of a micro-batch for a family; see `collate`."""


class TokenLoader:
    """Reads the micro-batches of an iteration, with the loss weights of its global batch."""

    def __init__(
        self,
        reader: TokenReader,
        padding_id: int,
        weighting: LossWeighting,
        collate: Collate,
        *,
        trained: TrainedTokens = TARGETS,
    ) -> None:
        """Reads from `reader`; `IterationTokens` and `token_weights` explain other arguments."""
        self._tokens = IterationTokens({}, {}, reader, padding_id, trained)
        self._weighting = weighting
        self._collate = collate
        self._ahead: dict[MicroBatch, Batch] = {}

    def start_iteration(self, samples: Sequence[Sample], iteration: int | None = None) -> None:
        """Starts a global batch; without a training iteration, nothing is dropped."""
        by_id = {sample.sample_id: sample for sample in samples}
        weights = token_weights(samples, self._weighting, self._tokens.trained)
        self._tokens = replace(self._tokens, samples=by_id, weights=weights, iteration=iteration)
        self._ahead.clear()

    def read_ahead(self, microbatch: MicroBatch) -> None:
        """Reads a micro-batch of the current global batch before it is needed."""
        self._ahead[microbatch] = self._collate(microbatch, self._tokens)

    def __call__(self, microbatch: MicroBatch) -> Batch:
        ahead = self._ahead.pop(microbatch, None)
        return self._collate(microbatch, self._tokens) if ahead is None else ahead
