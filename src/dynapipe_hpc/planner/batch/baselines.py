"""What dynamic micro-batching is compared with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, does_not_fit, fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.row_length import padded, row_lengths
from dynapipe_hpc.planner.cost.cost_model import CostModel

Rows = Sequence[tuple[int, ...]]
Sides = Sequence[Sequence[int]]

_FEWER_ROWS = "lower planner.batch.rows_per_microbatch or data.max_tokens"


@dataclass(frozen=True, slots=True)
class DensePacking:
    """Fills rows of one length with samples in order of arrival, by next fit.

    Attention runs over the whole row, so samples of a row see each other. In an encoder-decoder
    model, inputs and targets have rows of this length each, and a sample that does not fit one
    of them starts the next of both. The rule that the paper calls MLM+DS.

    Attributes:
        row_tokens: Length of every row, at least that of the longest sample.
        rows_per_microbatch: Rows of every micro-batch but the last, which has what is left.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, evaluation.
    """

    row_tokens: int
    rows_per_microbatch: int

    def __str__(self) -> str:
        """The rule and its settings."""
        return f"dense packing, {self.rows_per_microbatch} rows of {self.row_tokens} tokens"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[MicroBatch]:
        """Groups the samples of all replicas, see `BatchRule`."""
        sides = _sides_of(samples, cost)
        rows, mode = list(self._rows(samples, sides)), cost.recompute_modes[0]
        row_tokens = padded(self.row_tokens)
        size = RowSize(row_tokens, row_tokens if cost.is_encoder_decoder else 0)
        microbatches = _grouped(rows, size, self.rows_per_microbatch, mode)
        check_fit(microbatches, cost, cluster, _FEWER_ROWS)
        return microbatches

    def _rows(self, samples: Sequence[Sample], sides: Sides) -> Iterator[tuple[int, ...]]:
        """Sample ids row by row; a sample that no longer fits its row starts the next."""
        row: list[int] = []
        free = (self.row_tokens,) * len(sides)
        for sample, *needed in zip(samples, *sides, strict=True):
            if max(needed) > self.row_tokens:
                raise InputError(
                    f"sample {sample.sample_id} has {max(needed)} tokens, but a row holds "
                    f"{self.row_tokens}; cut long samples with data.max_tokens"
                )
            if any(n > left for n, left in zip(needed, free, strict=True)):
                yield tuple(row)
                row, free = [], (self.row_tokens,) * len(sides)
            row.append(sample.sample_id)
            free = tuple(left - n for n, left in zip(needed, free, strict=True))
        yield tuple(row)


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
        lengths = row_lengths(samples, cost.is_encoder_decoder)
        size, mode = RowSize(*(int(side.max()) for side in lengths)), cost.recompute_modes[0]
        microbatches = _grouped(rows, size, self.rows_per_microbatch, mode)
        check_fit(microbatches, cost, cluster, _FEWER_ROWS)
        return microbatches


class RowSize(NamedTuple):
    """Padded tokens of a row, and of its targets' row; the latter 0 in a decoder-only model."""

    row_tokens: int
    target_tokens: int


def _sides_of(samples: Sequence[Sample], cost: CostModel) -> Sides:
    """Tokens of all samples in each kind of row."""
    if cost.is_encoder_decoder:
        return [[s.input_tokens for s in samples], [s.target_tokens for s in samples]]
    return [[s.tokens for s in samples]]


def _grouped(rows: Rows, size: RowSize, n_rows: int, mode: Recompute) -> list[MicroBatch]:
    firsts = range(0, len(rows), n_rows)
    groups = (tuple(rows[i : i + n_rows]) for i in firsts)
    return [MicroBatch(group, size.row_tokens, mode, size.target_tokens) for group in groups]


def check_fit(
    microbatches: Sequence[MicroBatch], cost: CostModel, cluster: Cluster, way_out: str
) -> None:
    """Checks that micro-batches fit into memory.

    Raises:
        DoesNotFitError, NotMeasuredError: One does not; ends with the way out.
    """
    costs = microbatch_costs(microbatches, cost)
    misfits = np.flatnonzero(~fits(costs, activation_room_bytes(cost, cluster)))
    if misfits.size:
        largest = microbatches[misfits[0]]
        targets = f" + {largest.target_tokens}" if largest.target_tokens else ""
        raise does_not_fit(
            f"a micro-batch of {largest.n_rows} x {largest.row_tokens}{targets} tokens",
            costs.take(misfits[:1]),
            cost,
            cluster,
            way_out,
        )
