"""Exact splits of ordered samples into consecutive micro-batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import Layout, MicroBatch, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE, row_lengths
from dynapipe_hpc.planner.batch.windows.price_windows import PADDED_ONLY, price_bundled_windows
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import CostModel, IntArray

Window = tuple[int, int, int]  # first sample, number of samples, index of the mode


def split_samples(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    memory_share: float = 1.0,
    layouts: Sequence[Layout] = PADDED_ONLY,
    token_multiple: int = ROW_MULTIPLE,
) -> list[MicroBatch]:
    """Cuts samples into the consecutive micro-batches that finish soonest.

    Minimises the predicted iteration time

        max_i fill(M_i) + (1 / n_replicas) * sum_i bottleneck(M_i)        [ms]

    exactly, where `bottleneck` is forward and backward time on the micro-batch's slowest stage,
    and `fill` is forward and backward time on all its other stages: the pipeline fills and drains
    at the pace of its slowest micro-batch, and in between its slowest stage is busy with all of
    them. The slowest stage is that of each micro-batch. The sum is therefore at least the work of
    any one stage, and equal to it if the same stage is the slowest for all, as in most pipelines.
    With equal stages this is equation 1 of the paper.

    Every micro-batch gets the fastest layout and mode of recomputation that it may use. It may keep
    a fraction `memory_share` of the memory that the model leaves on a stage; one sample alone may
    keep all of it. A large batch is cut between bundles only, see `bundles`.

    Args:
        samples: Samples in the order to be cut, at least one; see `orders`.
        cost: Cost model of micro-batches.
        cluster: The cluster, with the replicas that share the work and the memory limit.
        memory_share: Fraction in (0, 1]; 1 / n_stages suits schedules that keep as many
            micro-batches at a time as there are stages.
        layouts: Layouts of micro-batches, see `price_windows`.
        token_multiple: Multiple that rows are padded to.

    Returns:
        Micro-batches that hold every sample once, in the given order. If these are fewer than
        replicas, the best split into micro-batches of at most len(samples) / n_replicas samples.

    Raises:
        DoesNotFitError: A sample alone needs more memory than a stage has.
        NotMeasuredError: The cost model does not know what a sample alone costs.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, equations 1 and 2.
    """
    table = price_bundled_windows(samples, cost, cluster, layouts, token_multiple=token_multiple)
    return [table.microbatch(*window) for window in split(table, cluster.n_replicas, memory_share)]


def split(table: WindowTable, n_replicas: int, memory_share: float = 1.0) -> list[Window]:
    """Windows (first sample, number of samples, mode) of a split, see `split_samples`."""
    return next(splits(table, n_replicas, [memory_share]))


def splits(
    table: WindowTable, n_replicas: int, memory_shares: Iterable[float]
) -> Iterator[list[Window]]:
    """Windows of the splits for several shares of memory, as `split` finds each.

    If the best split of a larger share keeps within a smaller one, which only rules windows out, it
    is the best there, too, and not searched again.

    Args:
        table: Windows of the ordered samples.
        n_replicas: Replicas that share the work.
        memory_shares: Fractions in (0, 1], the largest first.
    """
    before: _Split | None = None
    for share in memory_shares:
        cheapest = table.cheapest(share)
        if before is None or not before.is_best_among(cheapest):
            before = _Split.from_windows(table, n_replicas, cheapest)
        windows, n_samples = before.windows, len(table.row_of_sample)
        if len(windows) < n_replicas <= n_samples:
            shorter = table.of_at_most(n_samples // n_replicas)
            windows = _Split.from_windows(shorter, n_replicas, shorter.cheapest(share)).windows
        yield windows


def split_front(table: WindowTable, memory_share: float = 1.0) -> list[_kernels.FrontPoint]:
    """Pareto front of fill and work: all splits that `split` may find for some number of replicas.

    It shows what a split trades: less fill, so that pipelines fill sooner, for more work. The
    front is exact, and the point with the most fill comes first.
    """
    cheapest = table.cheapest(memory_share)
    return _kernels.split_front(
        table.row_of_sample, cheapest.begin, cheapest.work_ms, cheapest.fill_ms
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Split:
    """The best split into windows of a table.

    Attributes:
        windows: The windows.
        among: The windows that it was chosen from.
        places: Places of the windows among these.
    """

    windows: list[Window]
    among: _kernels.CheapestModes
    places: IntArray

    @classmethod
    def from_windows(
        cls, table: WindowTable, n_replicas: int, cheapest: _kernels.CheapestModes
    ) -> Self:
        length = table.row_of_sample
        sizes = _kernels.split_samples(
            length,
            cheapest.begin,
            cheapest.work_ms,
            cheapest.fill_ms,
            n_replicas,
        ).sizes
        firsts = np.cumsum([0, *sizes[:-1]])
        places = cheapest.begin[length[firsts]] + np.array(sizes) - 1
        modes = cheapest.mode[places].tolist()
        return cls(list(zip(firsts.tolist(), sizes, modes, strict=True)), cheapest, places)

    def is_best_among(self, fewer: _kernels.CheapestModes) -> bool:
        """Whether others are a part of the windows that it was chosen from, and hold its own."""
        usable = np.isfinite(fewer.work_ms)
        return bool(usable[self.places].all()) and all(
            np.array_equal(one[usable], other[usable])
            for one, other in (
                (fewer.work_ms, self.among.work_ms),
                (fewer.fill_ms, self.among.fill_ms),
                (fewer.mode, self.among.mode),
            )
        )


def padded_microbatch(
    samples: Sequence[Sample], recompute: Recompute, is_encoder_decoder: bool = False
) -> PaddedRows:
    """One sample per row, all rows as long as the longest on either side."""
    row_tokens, target_tokens = map(max, row_lengths(samples, is_encoder_decoder))
    return PaddedRows(
        sample_ids=tuple(sample.sample_id for sample in samples),
        row_tokens=int(row_tokens),
        recompute=recompute,
        target_tokens=int(target_tokens),
    )
