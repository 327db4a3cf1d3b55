"""Micro-batches of which some hold slices, plans in which they run in any order that is allowed."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, cycle, pairwise

from tests.examples.example_plans import Groups, StagePass, inputs_of
from tests.examples.pipeline_training import train
from tests.examples.planned_iteration import plans_by_rules
from tests.examples.stage_costs import schedule_of
from tests.examples.training_case import Outcome, Rank, random_split

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Layout, MicroBatch, PackedRow, Recompute, Slice
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import (
    INSTANT,
    Pass,
    PassKind,
    Schedule,
    ScheduleRule,
)

CUTS: Mapping[str, Sequence[float]] = {
    "one token": (0, 1),
    "unequal": (0.1, 0.6),
    "many": tuple(k / 7 for k in range(1, 7)),
}
"""Shares of a sample, or numbers of tokens if whole, before which it is cut."""


def slices_of(sample: Sample, cuts: Sequence[float]) -> list[Slice]:
    """The slices of a sample; cuts that would leave nothing are left out."""
    n = sample.tokens
    places = {int(cut if isinstance(cut, int) else cut * n) for cut in cuts}
    bounds = [0, *sorted(place for place in places if 0 < place < n), n]
    return [Slice(begin, end, n) for begin, end in pairwise(bounds)]


def sliced_row(sample: Sample, part: Slice, others: Sequence[Sample] = ()) -> PackedRow:
    """A row of a slice and of whole samples behind it, filled up to a multiple of 8."""
    lengths = [part.end - part.begin, *(other.tokens for other in others)]
    offsets = tuple(accumulate(lengths, initial=0))
    ids = tuple(each.sample_id for each in (sample, *others))
    return PackedRow(ids, offsets[-1] + -offsets[-1] % 8, offsets, slice=part)


def sliced_replicas(
    samples: Sequence[Sample],
    n_replicas: int,
    cuts: Sequence[float],
    modes: Sequence[Recompute] = (Recompute.NONE,),
    *,
    beside: bool = False,
    seed: int = 0,
) -> list[list[MicroBatch]]:
    """Micro-batches of every replica: slices of the two longest samples, of 8 at least, and others.

    A sample is cut at `cuts`, see `CUTS`, for one replica. Micro-batches take modes in turn; with
    `beside`, short samples fill up the rows of slices.
    """
    longest, second, *others = sorted(samples, key=lambda sample: -sample.tokens)
    replicas: list[list[MicroBatch]] = [[] for _ in range(n_replicas)]
    for k, sample in enumerate((longest, second)):
        for part in slices_of(sample, cuts):
            short = [others.pop()] if beside and len(others) > 5 else []
            replicas[k % n_replicas].append(sliced_row(sample, part, short))
    layouts = (Layout.PACKED, Layout.PADDED)
    for k, whole in enumerate(random_split(others, min(4, len(others)), seed, layouts=layouts)):
        replicas[k % n_replicas].append(whole)
    turns = cycle(modes)
    return [[replace(each, recompute=next(turns)) for each in of_one] for of_one in replicas]


def groups_of(microbatches: Sequence[MicroBatch]) -> Groups:
    """The micro-batches of the slices of each sample, first slice first."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, microbatch in enumerate(microbatches):
        if microbatch.slice:
            places[microbatch.sample_ids[0]].append((microbatch.slice.begin, index))
    return [[index for _, index in sorted(group)] for group in places.values()]


def any_order(microbatches: Sequence[MicroBatch], seed: int, *, splits: bool) -> ScheduleRule:
    """A rule that draws one of the orders in which the passes of micro-batches can run."""
    kinds = tuple(PassKind) if splits else (PassKind.FORWARD, PassKind.BACKWARD)
    groups = groups_of(microbatches)

    def rule(costs: StageCosts, _limit: FloatArray, _link: Link = INSTANT, /) -> Schedule:
        draw, n_stages = random.Random(seed), costs.n_stages  # noqa: S311, it is to be repeated
        passes = [Pass(kind, i) for kind in kinds for i in range(len(microbatches))]
        waiting = {
            (stage, pass_): inputs_of(stage, pass_, n_stages, groups)
            for stage in range(n_stages)
            for pass_ in passes
        }
        done: dict[StagePass, None] = {}
        while waiting:
            ready = [each for each, inputs in waiting.items() if done.keys() >= {*inputs}]
            done[draw.choice(ready)] = None
            del waiting[next(reversed(done))]
        return schedule_of([p for at, p in done if at == s] for s in range(n_stages))

    return rule


def sliced_plans(
    replicas: Sequence[Sequence[MicroBatch]],
    cluster: Cluster,
    shape: ModelShape,
    iteration: int = 0,
    *,
    splits: bool = False,
) -> list[RankPlan]:
    """The checked plans of all ranks, in which passes run in any allowed order."""
    rules = [any_order(each, iteration, splits=splits) for each in replicas]
    return plans_by_rules(replicas, cluster, shape, rules, iteration)


def sliced_steps(
    cluster: Cluster,
    batches: Sequence[Sequence[Sample]],
    cuts: Sequence[float],
    modes: Sequence[Recompute],
    shape: ModelShape,
    *,
    beside: bool = False,
    splits: bool = False,
) -> Outcome:
    """The weights after a step on each batch."""
    iterations = []
    for k, samples in enumerate(batches):
        replicas = sliced_replicas(samples, cluster.n_replicas, cuts, modes, beside=beside, seed=k)
        iterations.append((samples, sliced_plans(replicas, cluster, shape, k, splits=splits)))
    return train(cluster, iterations, Rank.weights, shape=shape)
