"""Baselines: packed rows of balanced or next-fit groups, and any rule tuned for every batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout, MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.config import BaselineConfig, DensePackingConfig, RowCountConfig
from dynapipe_hpc.planner.baselines.padded_rows import (
    FEWER_TOKENS,
    Grouping,
    check_fit,
    dense_packing,
    naive_padding,
    token_budget,
)
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.batch.microbatch_costs import PricedReplica
from dynapipe_hpc.planner.batch.order import TooFewMicroBatchesError, balance
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.planner.batch.row_length import document_lengths, padded, row_lengths, tokens_of
from dynapipe_hpc.planner.choose.choice import (
    Candidate,
    Choice,
    Chooser,
    Infeasible,
    ReplicaScheduler,
)
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, IntArray, Shapes
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule

Groups = Sequence[Sequence[int]]
"""Per micro-batch the indices of its samples, in the order in which they lie in its row."""

SHORT_ROWS = 8
"""Rows that share the longest sample's tokens, to separate work per token from work per pair."""

MIN_GAIN = 1e-4
"""Smallest gain of an exchange, as a share of the largest sum."""


def packed_next_fit(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, tokens_per_microbatch: int
) -> list[list[MicroBatch]]:
    """Next fit in order of arrival: a row ends where the next sample would exceed its tokens.

    A longer sample has a row of its own. Replicas take rows in turns. Single samples are split off
    the last rows until all replicas have the same number.

    Source: The packing scheduler `dp_balanced` of Megatron-Core (`core/datasets/data_schedule.py`).
    """
    rows = next_fit(packed_tokens(samples, cost).tolist(), tokens_per_microbatch)
    return _packed(samples, deal(rows, cluster.n_replicas), cost, cluster)


def packed_balanced(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, tokens_per_microbatch: int
) -> list[list[MicroBatch]]:
    """Balances the work of replicas, then of their micro-batches, by largest differencing.

    All replicas have the number of micro-batches that the fullest one needs, but at most one per
    sample. As work is balanced, not tokens, `tokens_per_microbatch` limits only the mean. The
    largest micro-batches are in the middle, so that the pipeline fills and drains with small ones.
    The sources of this rule run it with 1F1B: planner.schedule.rules = ["1f1b"].

    Source: verl (`utils/seqlen_balancing.py`: number, differencing and order), slime
    (`balance_by_flops`) and prime-rl (swaps).
    """
    tokens = packed_tokens(samples, cost)
    work = pair_work(samples, cost) if cost.is_encoder_decoder else packed_work(samples, cost)
    replicas = [np.array(items) for items in balanced_groups(work, cluster.n_replicas)]
    most_tokens = max(int(tokens[items].sum()) for items in replicas)
    n_groups = -(-most_tokens // tokens_per_microbatch)
    groups = [_ordered_groups(work, items, n_groups) for items in replicas]
    return _packed(samples, groups, cost, cluster)


def packed_tokens(samples: Sequence[Sample], cost: CostModel) -> IntArray:
    """Positions that samples take in packed rows, on both sides together, shape (n_samples,)."""
    inputs, targets = document_lengths(samples, cost.is_encoder_decoder)
    return inputs + targets


def _packed(
    samples: Sequence[Sample], replicas: Sequence[Groups], cost: CostModel, cluster: Cluster
) -> list[list[MicroBatch]]:
    mode = cost.recompute_modes[0]
    rows: list[list[MicroBatch]] = [
        [
            packed_microbatch([samples[i] for i in group], mode, cost.is_encoder_decoder)
            for group in groups
        ]
        for groups in replicas
    ]
    check_fit([m for microbatches in rows for m in microbatches], cost, cluster, FEWER_TOKENS)
    return rows


def next_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Puts items into bins in the order given; only the last bin is ever open.

    `sizes`: Sizes of items, >= 1; one larger than `capacity` is alone in its bin. Source: Johnson,
    "Near-optimal bin packing algorithms", MIT 1973.
    """
    bins: list[list[int]] = []
    room = 0
    for item, size in enumerate(sizes):
        if size > room:
            bins.append([])
            room = capacity
        bins[-1].append(item)
        room -= size
    return bins


def deal(rows: Groups, n_replicas: int) -> list[list[list[int]]]:
    """Deals rows to replicas in turns, after splitting some so that all get the same number.

    Items leave the last row one by one, each for a new row at the end, until the number of rows is
    a multiple of the replicas. A row keeps its last item; then the row before it loses items.

    Returns rows per replica, in the given order. Raises `TooFewMicroBatchesError`: A replica would
    have nothing to do.
    """
    hands = [list(row) for row in rows]
    for donor in reversed(range(len(rows))):
        while len(hands) % n_replicas and len(hands[donor]) > 1:
            hands.append([hands[donor].pop()])
    if len(hands) < n_replicas:
        raise TooFewMicroBatchesError.from_counts(len(hands), n_replicas)
    return [hands[replica::n_replicas] for replica in range(n_replicas)]


def pair_work(samples: Sequence[Sample], cost: CostModel) -> FloatArray:
    """Work of samples with inputs and targets on all stages, shape (n_samples,).

    The work is what a second row of the same lengths adds to the first. Where the cost model does
    not know these lengths, the number of tokens stands for it.
    """
    inputs, targets = row_lengths(samples, is_encoder_decoder=True)
    packed, one = cost.of_layout(Layout.PACKED), np.ones_like(inputs)
    first_ms, both_ms = (
        packed.stage_costs(
            Shapes.padded(n_rows * one, inputs, targets), cost.recompute_modes[0]
        ).work_ms.sum(axis=1)
        for n_rows in (1, 2)
    )
    if not np.isfinite(both_ms).all():
        return packed_tokens(samples, cost).astype(np.float64)
    return np.asarray(np.maximum(both_ms - first_ms, 0.0))


def packed_work(samples: Sequence[Sample], cost: CostModel) -> FloatArray:
    """Work of samples in packed rows, b L + c L^2 for L tokens, shape (n_samples,).

    For a preference pair, the number of pairs of tokens that attend to each other replaces L^2.

    The formula is for decoder-only models. The sources of `packed_balanced` count floating-point
    operations, which underestimates c where attention is far from the peak rate: then rows of long
    samples take longer than other rows. So b and c come from the costs of two micro-batches in the
    cost model: the longest sample alone, and the same number of tokens in shorter rows. Where it
    does not know these costs, work is the number of tokens.
    """
    tokens, pairs = (tokens_of(samples, name) for name in ("tokens", "attention_pairs"))
    longest = padded(int(tokens.max()))
    n_rows = np.array([1, SHORT_ROWS])
    row_tokens = longest // n_rows
    shapes = Shapes.padded(n_rows, row_tokens, np.zeros_like(n_rows))
    packed = cost.of_layout(Layout.PACKED)
    per_token = packed.stage_costs(shapes, cost.recompute_modes[0]).bottleneck_ms / longest
    if not np.isfinite(per_token).all():
        return tokens.astype(np.float64)
    of_pair = max(0.0, float((per_token[0] - per_token[1]) / (row_tokens[0] - row_tokens[1])))
    of_token = max(0.0, float(per_token[0] - of_pair * longest))
    return np.asarray(of_token * tokens + of_pair * pairs)


def small_at_both_ends(work: FloatArray) -> list[int]:
    """Order of items with the most work in the middle, and less and less towards both ends."""
    largest_first: list[int] = np.argsort(-work, kind="stable").tolist()
    return largest_first[::2][::-1] + largest_first[1::2]


def _ordered_groups(work: FloatArray, items: IntArray, n_groups: int) -> list[list[int]]:
    groups = balanced_groups(work[items], min(n_groups, len(items)))
    of_all = [items[group].tolist() for group in groups]
    order = small_at_both_ends(np.array([work[group].sum() for group in of_all]))
    return [of_all[i] for i in order]


def balanced_groups(work: FloatArray, n_groups: int) -> list[list[int]]:
    """Groups items by the largest differencing method, then exchanges items to improve the groups.

    Returns per group its items, ascending. Raises `TooFewMicroBatchesError`: There are fewer items
    than groups. Source: `planner.batch.order.balance`; the refinement by swaps as in prime-rl.
    """
    return lower_by_swaps(work, balance(work, n_groups))


def lower_by_swaps(work: FloatArray, groups: list[list[int]]) -> list[list[int]]:
    """Exchanges items of the fullest group and another while that lowers the larger of their sums.

    Each time, it makes the exchange after which the larger of the two sums is smallest. The largest
    sum of all groups never grows.
    """
    group_of = np.empty(len(work), np.int64)
    for number, items in enumerate(groups):
        group_of[items] = number
    while True:
        sums = np.bincount(group_of, work)
        fullest = int(sums.argmax())
        inside, outside = (np.flatnonzero(group_of == fullest), np.flatnonzero(group_of != fullest))
        if not outside.size:
            break
        moved_work = work[inside][:, np.newaxis] - work[outside]
        larger = np.maximum(sums[fullest] - moved_work, sums[group_of[outside]] + moved_work)
        one, other = np.unravel_index(larger.argmin(), larger.shape)
        if larger[one, other] >= (1 - MIN_GAIN) * sums[fullest]:
            break
        swapped = [inside[one], outside[other]]
        group_of[swapped] = group_of[swapped[::-1]]
    return [np.flatnonzero(group_of == number).tolist() for number in range(len(groups))]


MIN_BUDGET = 1 / 8
"""Smallest token budget that is tried, as a multiple of the batch's longest sample."""

Settings = Callable[[Sequence[Sample], CostModel, Cluster], Iterable[int]]
"""Settings to try for a batch, ascending: rows or tokens of a micro-batch."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Plans an iteration by a baseline, with each setting to try, in every recomputation mode."""

    config: BaselineConfig
    schedule_rules: Sequence[ScheduleRule]  # ways to order passes, all of which are tried
    cost: CostModel
    cluster: Cluster

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans of all modes and of all settings whose micro-batches fit, see `Chooser`.

        Raises `DoesNotFitError` or `NotMeasuredError`: Nothing fits; the error comes from the
        smallest setting in the last mode.
        """
        return in_every_mode(self.cost, lambda cost: self._choose_in_mode(samples, cost))

    def _choose_in_mode(self, samples: Sequence[Sample], cost: CostModel) -> Choice:
        config, cluster = self.config, self.cluster
        grouping, settings_to_try = GROUPINGS[config.rule]
        if isinstance(config, DensePackingConfig):
            grouping = partial(
                dense_packing, row_tokens=config.row_tokens, target_tokens=config.target_tokens
            )
        settings: Iterable[int] = (
            settings_to_try(samples, cost, cluster)
            if config.setting == "tuned"
            else [config.setting]
        )
        scheduler = ReplicaScheduler(cost, cluster, self.schedule_rules)
        tried: list[Candidate | Infeasible] = []
        failures: list[InputError] = []
        for setting in settings:
            try:
                replicas = grouping(samples, cost, cluster, setting)
            except (DoesNotFitError, NotMeasuredError) as error:
                failures.append(error)
                continue
            priced = [PricedReplica.formed(microbatches, cost) for microbatches in replicas]
            tried.append(scheduler.schedule(describe(config, setting), priced))
        if not tried:
            raise failures[0]
        return Choice(tuple(tried))


def describe(config: BaselineConfig, setting: int) -> str:
    unit = "rows" if isinstance(config, RowCountConfig) else "tokens"
    text = f"{config.rule.replace('_', ' ')}, {setting} {unit}"
    if isinstance(config, DensePackingConfig):
        text += f" of {config.row_tokens} tokens" if config.row_tokens else ""
        text += f", targets of {config.target_tokens}" if config.target_tokens else ""
    return text


def row_counts(samples: Sequence[Sample], _: CostModel, cluster: Cluster) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, ... rows, up to all samples of a replica."""
    most = -(-len(samples) // cluster.n_replicas)
    steps = (n for k in count() for n in (2**k, 3 * 2**k // 2))
    last = 0
    for n in steps:
        if n > last:
            yield min(n, most)
            last = n
        if n >= most:
            return


def budgets(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Iterator[int]:
    """Budgets of padded tokens; the largest holds all samples of a replica in equal rows."""
    lengths = row_lengths(samples, cost.is_encoder_decoder)
    longest = int((lengths.row_tokens + lengths.target_tokens).max())
    return _rising(longest, most=longest * -(-len(samples) // cluster.n_replicas))


def packed_budgets(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Iterator[int]:
    """Token budgets of packed rows, up to a replica's tokens or, if more, the longest sample's."""
    tokens = packed_tokens(samples, cost)
    longest, of_replica = int(tokens.max()), -(-int(tokens.sum()) // cluster.n_replicas)
    return _rising(longest, most=max(longest, of_replica))


def _rising(longest: int, most: int) -> Iterator[int]:
    last = 0
    for k in count():
        budget = min(int(MIN_BUDGET * longest * 2 ** (k / 4)), most)
        if budget > last:
            yield budget
            last = budget
        if budget == most:
            return


GROUPINGS: Mapping[str, tuple[Grouping, Settings]] = {
    "naive_padding": (naive_padding, row_counts),
    "dense_packing": (dense_packing, row_counts),
    "token_budget": (token_budget, budgets),
    "packed_next_fit": (packed_next_fit, packed_budgets),
    "packed_balanced": (packed_balanced, packed_budgets),
}
"""Groupings of samples by the name of their batch rule, each with the settings to try."""


def in_every_mode(cost: CostModel, choose: Callable[[CostModel], Choice]) -> Choice:
    """Plans an iteration in every mode separately, least recomputation first.

    Raises `DoesNotFitError` or `NotMeasuredError` or `InfeasibleScheduleError`: There is no plan in
    any mode; the error is the one of the last mode, which keeps least.
    """
    tried: list[Candidate | Infeasible] = []
    failures: list[InputError] = []
    for mode in cost.recompute_modes:
        try:
            choice = choose(cost.of_mode(mode))
        except (DoesNotFitError, NotMeasuredError, InfeasibleScheduleError) as error:
            failures.append(error)
            continue
        tried += [replace(t, way=f"{t.way}, recompute {mode.text}") for t in choice.tried]
    if not tried:
        raise failures[-1]
    return Choice(tuple(tried))


@dataclass(frozen=True, slots=True)
class OneModeSearch:
    """A search in every mode, see `in_every_mode`, for `planner.batch.recompute_choice`."""

    chooser_of: Callable[[CostModel], Chooser]
    cost: CostModel

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans of the modes, see `Chooser`."""
        return in_every_mode(self.cost, lambda cost: self.chooser_of(cost).choose(samples))
