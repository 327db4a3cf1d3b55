"""The tokens of one iteration after the other."""

from collections.abc import Mapping, Sequence

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.collate import TokenBatch, TokenReader, collate
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.loss import token_weights


class TokenLoader:
    """Reads the micro-batches of an iteration, weighted as its global batch demands."""

    def __init__(self, reader: TokenReader, start_id: int, weighting: LossWeighting) -> None:
        """Reads from `reader`; see `collate` and `token_weights` for the others."""
        self._reader = reader
        self._start_id = start_id
        self._weighting = weighting
        self._samples: Mapping[int, Sample] = {}
        self._token_weights: Mapping[int, float] = {}

    def start_iteration(self, samples: Sequence[Sample]) -> None:
        """Turns to the next global batch."""
        self._samples = {sample.sample_id: sample for sample in samples}
        self._token_weights = token_weights(samples, self._weighting)

    def __call__(self, microbatch: MicroBatch) -> TokenBatch:
        """Reads a micro-batch of the global batch."""
        return collate(microbatch, self._samples, self._token_weights, self._reader, self._start_id)
