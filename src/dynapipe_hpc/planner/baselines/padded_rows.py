"""Baselines of padded rows, the interface of all groupings of samples, and what they share."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.config import DensePackingConfig
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits, misfit_error
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.order import balance_replicas
from dynapipe_hpc.planner.batch.row_length import padded, positions, row_lengths, tokens_of
from dynapipe_hpc.planner.cost.cost_model import CostModel, IntArray

FEWER_ROWS = "lower planner.batch.rows_per_microbatch or data.max_tokens"
FEWER_TOKENS = "lower planner.batch.tokens_per_microbatch or data.max_tokens"


class Grouping(Protocol):
    """A way to group samples into the micro-batches of every replica.

    Contract: every sample occurs exactly once; no sample is longer than the rows of its
    micro-batch; every micro-batch fits on every stage alone, or a named error is raised.
    """

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster, setting: int, /
    ) -> list[list[MicroBatch]]:
        """Groups the samples of all replicas.

        Raises:
            DoesNotFitError: A micro-batch needs more memory than a stage has.
            NotMeasuredError: The cost model does not know what a micro-batch costs.
            TooFewMicroBatchesError: A replica would have nothing to do.
        """
        ...


def check_fit(
    microbatches: Sequence[MicroBatch], cost: CostModel, cluster: Cluster, way_out: str
) -> None:
    """Checks that micro-batches fit into memory.

    Raises `DoesNotFitError` or `NotMeasuredError`: One does not fit; `way_out` ends the message.
    """
    costs = microbatch_costs(microbatches, cost)
    misfits = np.flatnonzero(~fits(costs, activation_room_bytes(cost, cluster)))
    if misfits.size:
        largest = microbatches[misfits[0]]
        targets = f" + {largest.target_tokens}" if largest.target_tokens else ""
        raise misfit_error(
            f"a micro-batch of {largest.n_rows} x {largest.row_tokens}{targets} tokens",
            costs.take(misfits[:1]),
            cost,
            cluster,
            way_out=way_out,
        )


def on_replicas(
    microbatches: Sequence[MicroBatch], cost: CostModel, cluster: Cluster, way_out: str
) -> list[list[MicroBatch]]:
    """Micro-batches that fit, balanced over the replicas."""
    check_fit(microbatches, cost, cluster, way_out)
    replicas = balance_replicas(microbatches, cost, cluster.n_replicas)
    return [[microbatches[i] for i in replica] for replica in replicas]


Row = tuple[int, ...]
Group = tuple[Row, ...]


class RowSize(NamedTuple):
    """Padded tokens of a row, and of its targets' row; the latter 0 in a decoder-only model."""

    row_tokens: int
    target_tokens: int


def naive_padding(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, rows_per_microbatch: int
) -> list[list[MicroBatch]]:
    """Pads every sample to the longest of the iteration, in order of arrival."""
    rows = [(sample.sample_id,) for sample in samples]
    size, mode = _longest_rows(samples, cost), cost.recompute_modes[0]
    microbatches = [
        PaddedRows(tuple(i for (i,) in group), size.row_tokens, mode, size.target_tokens)
        for group in _grouped(rows, rows_per_microbatch, cluster)
    ]
    return on_replicas(microbatches, cost, cluster, FEWER_ROWS)


def dense_packing(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    rows_per_microbatch: int,
    *,
    row_tokens: int = 0,
    target_tokens: int = 0,
) -> list[list[MicroBatch]]:
    """Fills rows of one length with samples, the longest first, by first fit.

    Attention runs over the complete row, so samples of a row see each other. In an encoder-decoder
    model, inputs and targets have rows of their own, and a sample needs room in both. The paper
    calls this rule MLM+DS; there, rows are as long as the longest sample of all.

    `cost`: Cost model; its first mode is used. `rows_per_microbatch`: Rows of every micro-batch but
    the last, which has the rest; fewer if a replica would otherwise get no micro-batch.
    `row_tokens`: Length of every row, or of the iteration's longest sample if that is longer.
    `target_tokens`: Length of rows of targets in the same way, in an encoder-decoder model.
    Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, evaluation.
    """
    least = RowSize(padded(row_tokens), padded(target_tokens) if cost.is_encoder_decoder else 0)
    size = RowSize(*map(max, least, _longest_rows(samples, cost)))
    inputs, targets = (tokens_of(samples, f"{side}_tokens") for side in ("input", "target"))
    n_sides = 2 if cost.is_encoder_decoder else 1
    needed = np.stack(positions(inputs, targets, cost.is_encoder_decoder), 1)[:, :n_sides]
    rows = [
        tuple(samples[i].sample_id for i in row)
        for row in first_fit_decreasing(needed, np.array(size[:n_sides]))
    ]
    mode = cost.recompute_modes[0]
    microbatches = [
        DenseRows(group, size.row_tokens, mode, size.target_tokens)
        for group in _grouped(rows, rows_per_microbatch, cluster)
    ]
    return on_replicas(microbatches, cost, cluster, FEWER_ROWS)


def token_budget(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, tokens_per_microbatch: int
) -> list[list[MicroBatch]]:
    """Fills micro-batches with samples, longest first, up to a number of padded tokens.

    A longer sample has a micro-batch of its own. The limit is halved until all replicas have work.
    """
    microbatches = list(_filled(samples, cost, tokens_per_microbatch))
    while tokens_per_microbatch and len(microbatches) < cluster.n_replicas:
        tokens_per_microbatch //= 2
        microbatches = list(_filled(samples, cost, tokens_per_microbatch))
    return on_replicas(microbatches, cost, cluster, FEWER_TOKENS)


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


def first_fit_decreasing(needed: IntArray, capacity: IntArray) -> list[list[int]]:
    """Packs items into equal bins, each item into the first that has room for it.

    Items come in decreasing order of the largest share that they take of any dimension; items
    with equal shares keep the given order.

    `needed`: Sizes of items, at most `capacity`, shape (n_items, n_dimensions). `capacity`: Sizes
    of a bin, >= 1, shape (n_dimensions,). Source: Johnson, "Near-optimal bin packing algorithms",
    MIT 1973.
    """
    free = np.tile(capacity, (len(needed), 1))
    bins: list[list[int]] = []
    for item in np.argsort(-(needed / capacity).max(axis=1), kind="stable").tolist():
        has_room = (free[: len(bins) + 1] >= needed[item]).all(axis=1)
        first = int(has_room.argmax())
        if first == len(bins):
            bins.append([])
        bins[first].append(item)
        free[first] -= needed[item]
    return bins


def split_for_replicas(groups: Sequence[Group], n_replicas: int) -> list[Group]:
    """Halves the group with the most rows until there is a group for every replica.

    In a group of one row, the row's samples are halved. With fewer samples than replicas, every
    sample ends up alone.

    `n_replicas`: Smallest number of groups to return.
    """
    parts = list(groups)
    while len(parts) < n_replicas:
        largest = max(range(len(parts)), key=lambda i: (len(parts[i]), len(parts[i][0])))
        halves = _halves(parts[largest])
        if len(halves) == 1:
            break
        parts[largest : largest + 1] = halves
    return parts


def _halves(group: Group) -> list[Group]:
    if len(group) > 1:
        middle = (len(group) + 1) // 2
        return [group[:middle], group[middle:]]
    (row,) = group
    middle = (len(row) + 1) // 2
    return [(half,) for half in (row[:middle], row[middle:]) if half]


def check_row_tokens(config: DensePackingConfig, max_tokens: int) -> None:
    """Checks that packed rows are not longer than the longest row with known costs."""
    for name in ("row_tokens", "target_tokens"):
        if (tokens := getattr(config, name)) > max_tokens:
            raise InputError(
                f"planner.batch.{name} ({tokens}) exceeds data.max_tokens ({max_tokens}), the "
                f"longest row with known costs; lower {name} or raise data.max_tokens"
            )


def _longest_rows(samples: Sequence[Sample], cost: CostModel) -> RowSize:
    return RowSize(*(int(n.max()) for n in row_lengths(samples, cost.is_encoder_decoder)))


def _grouped(rows: Sequence[Row], n_rows: int, cluster: Cluster) -> list[Group]:
    groups = [tuple(rows[i : i + n_rows]) for i in range(0, len(rows), n_rows)]
    return split_for_replicas(groups, cluster.n_replicas)
