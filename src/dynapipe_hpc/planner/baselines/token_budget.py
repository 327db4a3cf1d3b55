"""Micro-batches of about as many tokens, from samples by length: a baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.fixed_rows import RowSize
from dynapipe_hpc.planner.batch.check_fit import FEWER_TOKENS, check_fit
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.cost.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Fills micro-batches with samples, longest first, up to a number of padded tokens.

    Attributes:
        tokens_per_microbatch: Limit on padded tokens; a longer sample has a micro-batch of its own.
            The limit is halved until every replica has a micro-batch.
    """

    tokens_per_microbatch: int

    def __str__(self) -> str:
        """The rule and its setting."""
        return f"token budget, {self.tokens_per_microbatch} tokens"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[MicroBatch]:
        """Groups the samples of all replicas, see `BatchRule`."""
        budget = self.tokens_per_microbatch
        microbatches = list(_filled(samples, cost, budget))
        while budget and len(microbatches) < cluster.n_replicas:
            budget //= 2
            microbatches = list(_filled(samples, cost, budget))
        check_fit(microbatches, cost, cluster, FEWER_TOKENS)
        return microbatches


def _filled(samples: Sequence[Sample], cost: CostModel, budget: int) -> Iterator[MicroBatch]:
    mode = cost.recompute_modes[0]
    lengths = zip(*row_lengths(samples, cost.is_encoder_decoder), strict=True)
    sized = [
        (RowSize(int(n), int(m)), s.sample_id) for s, (n, m) in zip(samples, lengths, strict=True)
    ]
    sample_ids: list[int] = []
    held = RowSize(0, 0)
    for size, sample_id in sorted(sized, reverse=True):
        wider = RowSize(*map(max, held, size))
        if sample_ids and (len(sample_ids) + 1) * sum(wider) > budget:
            yield PaddedRows(tuple(sample_ids), held.row_tokens, mode, held.target_tokens)
            sample_ids, wider = [], size
        sample_ids.append(sample_id)
        held = wider
    yield PaddedRows(tuple(sample_ids), held.row_tokens, mode, held.target_tokens)
