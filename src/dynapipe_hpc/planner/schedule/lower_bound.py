"""Lower bound on the time of an iteration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Self

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.row_length import padded, tokens_of
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.simulate import extra_reduce_ms, iteration_ms


@dataclass(frozen=True, slots=True, eq=False)
class PathTimes:
    """Least times of micro-batches on their way through the stages.

    The extra time of splitting a backward pass is left out: a plan need not split passes.

    Arrays have shape (n_microbatches, n_stages) unless stated otherwise.

    `reduce_ms`: Time from each stage's last pass until its gradients are reduced, shape
    (n_stages,).
    """

    forward_ms: FloatArray
    gradient_ms: FloatArray  # time of B, without this extra time
    weight_ms: FloatArray  # time of W; 0 if backward passes are not split
    transfer_ms: FloatArray
    reduce_ms: FloatArray

    @classmethod
    def from_costs(
        cls,
        costs: StageCosts,
        link: Link,
        *,
        may_split: bool,
        reduce_ms: FloatArray | None = None,
    ) -> Self:
        """The times of micro-batches; infinite if they cannot run."""
        transfer_ms = link.latency_ms + costs.boundary_bytes / link.bytes_per_ms
        weight_ms = costs.weight_ms if may_split else np.zeros_like(costs.weight_ms)
        gradient_ms = np.full_like(weight_ms, np.inf)
        known = np.isfinite(weight_ms)
        np.subtract(costs.backward_ms, weight_ms, out=gradient_ms, where=known)
        reduce_ms = np.zeros(costs.n_stages) if reduce_ms is None else reduce_ms
        return cls(costs.forward_ms, gradient_ms, weight_ms, transfer_ms, reduce_ms)

    @property
    def through_ms(self) -> FloatArray:
        """Work of a stage before its last B has ended: F and B."""
        return self.forward_ms + self.gradient_ms

    @property
    def work_ms(self) -> FloatArray:
        """All work of a stage: F, B and W."""
        return self.through_ms + self.weight_ms

    @property
    def head_ms(self) -> FloatArray:
        """Time until a micro-batch can have reached a stage."""
        return _before(self.forward_ms + self.transfer_ms)

    @property
    def tail_ms(self) -> FloatArray:
        """Time from the end of a micro-batch's B on a stage to the end of what follows.

        That is W, here or on an earlier stage, and then a reduction.
        """
        back_ms = _before(self.gradient_ms + self.transfer_ms)
        last_ms = self.weight_ms + self.reduce_ms
        return back_ms + np.maximum.accumulate(last_ms - back_ms, axis=1)

    @property
    def there_and_back_ms(self) -> FloatArray:
        """Round trip, shape (n_microbatches,): from first pass to last pass, and reductions."""
        return np.asarray((self.head_ms + self.through_ms + self.tail_ms)[:, -1])


def _before(stages: FloatArray) -> FloatArray:
    sums = np.cumsum(stages, axis=1)
    return np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], axis=1)


LENGTH_STEP = 1.01
"""Ratio of neighbouring lengths among the rows that are looked up."""
N_PRICES = 65
"""Prices of a pair of tokens that are tried."""


OUTLIER_SHARE = 0.05
"""Least part of an iteration's time that an outlier adds."""


class LongestTrip(NamedTuple):
    """The longest sample, and its round trip through the stages.

    `added_ms`: Time by which the trip exceeds the busy time of the average rank, if that makes the
    sample an outlier, else 0.
    """

    sample: Sample
    trip_ms: float
    added_ms: float


class LowerBound(NamedTuple):
    """Times that no plan can beat, see `lower_bound`.

    `longest_trip_ms`: Round trip of the longest sample through the stages, which is part of the
    bound. For a plan with slices, it is the longest round trip of a micro-batch, and not part of
    the bound.
    """

    iteration_ms: float  # lower bound on the time of an iteration, the update at its end included
    longest_trip_ms: float


def lower_bound(
    pipelines: Sequence[Pipeline],
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    may_split: bool,
) -> LowerBound:
    """Lower bound on the time of any plan of the samples.

    It is the larger of two times: the round trip of the longest sample, if no sample runs as
    slices, and the work of the busiest stage with what surrounds it. First a micro-batch must reach
    the stage (head); after the stage's last B, a micro-batch must go back, with W and a reduction
    on one stage (tail), or W comes last. At best, replicas share the work equally. Idle time
    between passes is ignored, and so is memory, except that micro-batches must fit alone.

    It holds for every mode of recomputation, assignment to replicas and schedule, and for every
    partition of the samples into micro-batches in any layout; in an encoder-decoder model only for
    the micro-batches of the plan.

    `pipelines`: Pipelines of the plan, one per replica. `samples`: Samples of the plan, in any
    order.
    """
    trip_ms = longest_trip_ms(pipelines, samples, cost, cluster, may_split=may_split)
    sliced = _have_slices(pipelines)
    if cost.is_encoder_decoder:
        paths = [_paths(pipeline.costs, cost, cluster, may_split) for pipeline in pipelines]
        works = [_StageWork.from_paths(p, p.through_ms.sum(0), p.work_ms.sum(0)) for p in paths]
    else:
        works = [_any_work(samples, cost, cluster, may_split=may_split, sliced=sliced)]
    busiest_ms = max(work.busiest_ms(extra_reduce_ms(cost), sliced=sliced) for work in works)
    makespan_ms = busiest_ms if sliced else max(busiest_ms, trip_ms)
    return LowerBound(makespan_ms + float(cost.reduce_ms.min()) + cost.step_ms, trip_ms)


def longest_trip(
    pipelines: Sequence[Pipeline],
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    may_split: bool,
) -> LongestTrip:
    """The trip of the longest sample in plans of the same kind, see `lower_bound`."""
    trip_ms = longest_trip_ms(pipelines, samples, cost, cluster, may_split=may_split)
    timelines = [pipeline.timeline for pipeline in pipelines]
    added_ms = trip_ms - float(np.mean([timeline.busy_ms for timeline in timelines]))
    least_ms = OUTLIER_SHARE * iteration_ms(timelines, cost)
    longest = max(samples, key=lambda sample: sample.attention_pairs)
    # Infinite where no sample was measured alone: the plan has longer rows only.
    return LongestTrip(longest, trip_ms, added_ms if least_ms <= added_ms < np.inf else 0.0)


def longest_trip_ms(
    pipelines: Sequence[Pipeline],
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    may_split: bool,
) -> float:
    """Least round trip of the longest sample through the stages in plans of the same kind.

    A micro-batch has at least the tokens and pairs of tokens of its longest sample. The arguments
    are those of `lower_bound`.
    """
    if _have_slices(pipelines) or cost.is_encoder_decoder:
        paths = [
            PathTimes.from_costs(p.costs, cluster.link, may_split=may_split) for p in pipelines
        ]
        return max(float(path.there_and_back_ms.max()) for path in paths)
    length = _lengths(samples, cost)
    most_pairs = float(tokens_of(samples, "attention_pairs").max())
    shapes = _decoder_rows(np.maximum(1.0, most_pairs / length[1:] ** 2), length[:-1])
    least_ms = np.inf
    for model, recompute in _ways(cost):
        costs = model.stage_costs(shapes, recompute)
        runs = np.flatnonzero(fits(costs, activation_room_bytes(cost, cluster)))
        path = PathTimes.from_costs(costs.take(runs), cluster.link, may_split=may_split)
        least_ms = min(least_ms, float(path.there_and_back_ms.min(initial=np.inf)))
    return least_ms


class _StageWork(NamedTuple):
    """Least times of the stages of a replica. Arrays of shape (n_stages,)."""

    head_ms: FloatArray
    tail_ms: FloatArray
    through_ms: FloatArray
    work_ms: FloatArray

    @classmethod
    def from_paths(cls, paths: PathTimes, through_ms: FloatArray, work_ms: FloatArray) -> Self:
        """Least heads and tails of these micro-batches."""
        return cls(paths.head_ms.min(axis=0), paths.tail_ms.min(axis=0), through_ms, work_ms)

    def busiest_ms(self, reduce_ms: FloatArray, *, sliced: bool) -> float:
        """The bound of the busiest stage; heads and tails of slices count as 0."""
        head_ms, tail_ms = (0.0, 0.0) if sliced else (self.head_ms, self.tail_ms)
        busy_ms = np.maximum(self.through_ms + tail_ms, self.work_ms + reduce_ms)
        return float((head_ms + busy_ms).max())


def _any_work(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    may_split: bool,
    sliced: bool,
) -> _StageWork:
    """Least work over all partitions, however samples or their slices lie in rows.

    If b and c >= 0 are such that b l + c l^2 is at most what a row of l tokens takes, for all l,
    then a micro-batch takes at least b times its tokens plus c times its pairs of tokens: it has
    at least the tokens and pairs of its samples or slices. Any c gives a bound, with the largest b.
    The least time of a row is looked up at numbers of rows between which times are straight lines,
    or fall per row, see `KnownRows`.
    """
    grid = _lengths(samples, cost)
    longer, shorter = grid[1:, None], grid[:-1]
    most = len(samples) + sum(sample.is_pair for sample in samples)
    known = np.array(cost.known_rows.n_rows or (1, 2 ** (most - 1).bit_length()), np.float64)
    room_bytes = activation_room_bytes(cost, cluster)
    least = np.full((4, len(shorter), cluster.n_stages), np.inf)
    for model, recompute in _ways(cost):
        alone = model.stage_costs(_decoder_rows(np.ones(len(shorter)), shorter), recompute)
        # Slices may fit where a row as long as what they attend to does not.
        runs = fits(alone, room_bytes) | sliced
        for n_rows in known[: np.searchsorted(known, most) + 1]:
            shapes = _decoder_rows(np.full(len(shorter), n_rows), shorter)
            costs = model.stage_costs(shapes, recompute)
            usable = np.flatnonzero(runs & np.isfinite(costs.work_ms).all(axis=1))
            path = _paths(costs.take(usable), cost, cluster, may_split)
            times = (path.head_ms, path.tail_ms, path.through_ms / n_rows, path.work_ms / n_rows)
            least[:, usable] = np.minimum(least[:, usable], times)
    head_ms, tail_ms, *per_row_ms = least
    tokens = tokens_of(samples, "tokens").astype(np.float64)
    pairs = tokens_of(samples, "attention_pairs").astype(np.float64)
    longest = int(pairs.argmax())

    def least_sum(row_ms: FloatArray) -> FloatArray:
        per_token_ms = row_ms / longer
        prices = np.linspace(0, 1, N_PRICES)[:, None] * (per_token_ms / longer).min(axis=0)
        rest_ms = np.array([(per_token_ms - price * longer).min(axis=0) for price in prices])
        of_all_ms = (rest_ms * tokens.sum() + prices * pairs.sum()).max(axis=0)
        of_longest_ms = (rest_ms * tokens[longest] + prices * pairs[longest]).max(axis=0)
        return np.asarray(np.maximum(of_all_ms / cluster.n_replicas, of_longest_ms))

    return _StageWork(head_ms.min(axis=0), tail_ms.min(axis=0), *map(least_sum, per_row_ms))


def _paths(costs: StageCosts, cost: CostModel, cluster: Cluster, may_split: bool) -> PathTimes:
    reduce_ms = extra_reduce_ms(cost)
    return PathTimes.from_costs(costs, cluster.link, may_split=may_split, reduce_ms=reduce_ms)


def _lengths(samples: Sequence[Sample], cost: CostModel) -> FloatArray:
    """Lengths of rows, ascending; each stands for all lengths up to the next.

    A preference pair may cost as much as two rows of half its length, and a slice as much as a part
    of a row that is twice as long as its sample.
    """
    tokens, known = tokens_of(samples, "tokens"), cost.known_rows
    shortest = min(sample.tokens / (1 + sample.is_pair) for sample in samples)
    longest = max(
        padded(2 * int(tokens.max())), padded(tokens.sum()) / known.most, known.least_tokens
    )
    n_lengths = int(np.ceil(np.log(longest / shortest) / np.log(LENGTH_STEP))) + 1
    return np.asarray(shortest * LENGTH_STEP ** np.arange(n_lengths + 1))


def _decoder_rows(n_rows: FloatArray, row_tokens: FloatArray) -> Shapes:
    return Shapes.padded(n_rows, row_tokens, np.zeros_like(row_tokens))


def _ways(cost: CostModel) -> Iterator[tuple[CostModel, Recompute]]:
    of_layouts = {each.layout: each for each in map(cost.of_layout, Layout)}
    return product(of_layouts.values(), cost.recompute_modes)


def _have_slices(pipelines: Sequence[Pipeline]) -> bool:
    return any(microbatch.slice for pipeline in pipelines for microbatch in pipeline.microbatches)
