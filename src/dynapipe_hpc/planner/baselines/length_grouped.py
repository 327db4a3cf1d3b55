"""Micro-batches of as many samples of similar length: a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.fixed_rows import RowSize
from dynapipe_hpc.planner.baselines.split_for_replicas import split_for_replicas
from dynapipe_hpc.planner.batch.check_fit import FEWER_ROWS, check_fit
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.cost.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class LengthGrouped:
    """Groups samples by length, longest first, and pads each group to its longest sample.

    Attributes:
        rows_per_microbatch: Samples of every micro-batch but the last, which has what is left, and
            of fewer where replicas would have none.

    Source:
        `group_by_length` of the trainer in Hugging Face transformers, within a global batch.
    """

    rows_per_microbatch: int

    def __str__(self) -> str:
        """The rule and its setting."""
        return f"length grouped, {self.rows_per_microbatch} rows"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[MicroBatch]:
        """Groups the samples of all replicas, see `BatchRule`."""
        lengths = zip(*row_lengths(samples, cost.is_encoder_decoder), strict=True)
        size_of = {
            sample.sample_id: RowSize(int(n), int(m))
            for sample, (n, m) in zip(samples, lengths, strict=True)
        }
        rows = [(i,) for i in sorted(size_of, key=lambda i: (size_of[i], i), reverse=True)]
        n_rows, mode = self.rows_per_microbatch, cost.recompute_modes[0]
        groups = [tuple(rows[i : i + n_rows]) for i in range(0, len(rows), n_rows)]
        microbatches: list[MicroBatch] = []
        for group in split_for_replicas(groups, cluster.n_replicas):
            ids = tuple(i for (i,) in group)
            longest = RowSize(*map(max, zip(*(size_of[i] for i in ids), strict=True)))
            microbatches.append(PaddedRows(ids, longest.row_tokens, mode, longest.target_tokens))
        check_fit(microbatches, cost, cluster, FEWER_ROWS)
        return microbatches
