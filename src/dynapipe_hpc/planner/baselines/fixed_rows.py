"""Baselines of padded rows, which dynamic micro-batches are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.config import DensePackingConfig
from dynapipe_hpc.planner.baselines.first_fit import first_fit_decreasing
from dynapipe_hpc.planner.baselines.split_for_replicas import split_for_replicas
from dynapipe_hpc.planner.batch.check_fit import FEWER_ROWS, check_fit
from dynapipe_hpc.planner.batch.row_length import padded, positions, row_lengths, tokens_of
from dynapipe_hpc.planner.cost.cost_model import CostModel

Rows = Sequence[tuple[int, ...]]


class RowSize(NamedTuple):
    """Padded tokens of a row, and of its targets' row; the latter 0 in a decoder-only model."""

    row_tokens: int
    target_tokens: int


@dataclass(frozen=True, slots=True)
class DensePacking:
    """Fills rows of one length with samples, the longest first, by first fit.

    Attention runs over the whole row, so samples of a row see each other. In an encoder-decoder
    model, inputs and targets have rows of their own, and a sample needs room in both. The rule
    that the paper calls MLM+DS, which fills rows of the longest sample of all.

    Attributes:
        row_tokens: Length of every row; rows of an iteration with a longer sample are as long
            as that.
        rows_per_microbatch: Rows of every micro-batch but the last, which has what is left, and
            of fewer where replicas would have none.
        target_tokens: Length of a target's row in the same way, in an encoder-decoder model.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, evaluation.
    """

    row_tokens: int
    rows_per_microbatch: int
    target_tokens: int = 0

    def __str__(self) -> str:
        """The rule and its settings."""
        of = f" of {self.row_tokens} tokens" if self.row_tokens else ""
        targets = f", targets of {self.target_tokens}" if self.target_tokens else ""
        return f"dense packing, {self.rows_per_microbatch} rows{of}{targets}"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[MicroBatch]:
        """Groups the samples of all replicas, see `BatchRule`."""
        size = self._size(samples, cost)
        rows, mode = self._rows(samples, cost, size), cost.recompute_modes[0]
        microbatches: list[MicroBatch] = [
            DenseRows(group, size.row_tokens, mode, size.target_tokens)
            for group in _grouped(rows, self.rows_per_microbatch, cluster)
        ]
        check_fit(microbatches, cost, cluster, FEWER_ROWS)
        return microbatches

    def _size(self, samples: Sequence[Sample], cost: CostModel) -> RowSize:
        longest = _longest_rows(samples, cost)
        row_tokens = max(longest.row_tokens, padded(self.row_tokens))
        if not cost.is_encoder_decoder:
            return RowSize(row_tokens, 0)
        return RowSize(row_tokens, max(longest.target_tokens, padded(self.target_tokens)))

    def _rows(self, samples: Sequence[Sample], cost: CostModel, size: RowSize) -> Rows:
        """Sample ids row by row."""
        inputs, targets = (tokens_of(samples, f"{side}_tokens") for side in ("input", "target"))
        n_sides = 2 if cost.is_encoder_decoder else 1
        needed = np.stack(positions(inputs, targets, cost.is_encoder_decoder), 1)[:, :n_sides]
        rows = first_fit_decreasing(needed, np.array(size[:n_sides]))
        return [tuple(samples[i].sample_id for i in row) for row in rows]


@dataclass(frozen=True, slots=True)
class NaivePadding:
    """Pads every sample to the longest of the iteration, in order of arrival.

    Attributes:
        rows_per_microbatch: Samples of every micro-batch but the last, which has what is left.
    """

    rows_per_microbatch: int

    def __str__(self) -> str:
        """The rule and its setting."""
        return f"naive padding, {self.rows_per_microbatch} rows"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[MicroBatch]:
        """Groups the samples of all replicas, see `BatchRule`."""
        rows = [(sample.sample_id,) for sample in samples]
        size, mode = _longest_rows(samples, cost), cost.recompute_modes[0]
        microbatches: list[MicroBatch] = [
            PaddedRows(tuple(i for (i,) in group), size.row_tokens, mode, size.target_tokens)
            for group in _grouped(rows, self.rows_per_microbatch, cluster)
        ]
        check_fit(microbatches, cost, cluster, FEWER_ROWS)
        return microbatches


def check_row_tokens(config: DensePackingConfig, max_tokens: int) -> None:
    """Checks that packed rows are not longer than any that has a cost.

    Args:
        config: The table.
        max_tokens: The longest row that costs are known of, data.max_tokens.

    Raises:
        InputError: Rows are to be longer.
    """
    for name in ("row_tokens", "target_tokens"):
        if (tokens := getattr(config, name)) > max_tokens:
            raise InputError(
                f"planner.batch.{name} ({tokens}) exceeds data.max_tokens ({max_tokens}), the "
                f"longest row with known costs; lower {name} or raise data.max_tokens"
            )


def _longest_rows(samples: Sequence[Sample], cost: CostModel) -> RowSize:
    """The row that the longest sample needs, on either side."""
    return RowSize(*(int(n.max()) for n in row_lengths(samples, cost.is_encoder_decoder)))


def _grouped(rows: Rows, n_rows: int, cluster: Cluster) -> list[tuple[tuple[int, ...], ...]]:
    groups = [tuple(rows[i : i + n_rows]) for i in range(0, len(rows), n_rows)]
    return split_for_replicas(groups, cluster.n_replicas)
