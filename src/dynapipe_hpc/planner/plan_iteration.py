"""Plans for a list of sample lengths, in one call."""

from collections.abc import Iterable

import numpy as np

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.lengths_file import samples_of_lengths
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.check_rows import check_rows
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.from_config import CostSource, MeasuredCosts
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.search.config import SearchConfig

EVERY_MODE = AnalyticConfig(recompute=("none", "selective", "full"))
"""Estimates in which the planner may choose what each micro-batch recomputes."""


def plan_iteration(
    lengths: Iterable[int | tuple[int, int]],
    shape: ModelShape,
    cluster: Cluster,
    costs: CostSource = EVERY_MODE,
    *,
    placement: Placement | None = None,
    effort: int = 100_000,
) -> list[RankPlan]:
    """Checked plans of all ranks for one iteration over samples of the given lengths.

    The same arguments give the same plans on every machine.

    Args:
        lengths: Tokens of every sample; or pairs of input and target tokens, which a t5 needs.
        shape: The model.
        cluster: Replicas, stages and shards, and the memory of a rank. A measured link in `costs`
            replaces `cluster.link`.
        costs: Peak rates of a rank (`AnalyticConfig`), from which time and memory are estimated,
            or what `read_cost_table` returns. The default is one CPU core per rank.
        placement: Number of layers on every stage. The default is equal shares; runs choose a
            placement by cost instead.
        effort: Search budget, see `planner.search.effort`; 0 takes the best batch rule.

    Returns:
        One plan per stage of every replica. Each holds the micro-batches of its replica, its
        instructions, its memory account, and the predicted times in ms.

    Raises:
        InputError: A length is no positive number or exceeds `shape.max_tokens`, the placement
            is one of other layers or stages, the samples cannot be planned within the memory of
            `cluster`, or the costs are those of another model.
    """
    pairs = [_pair(i, length, shape) for i, length in enumerate(lengths)]
    if not pairs:
        raise InputError("lengths is empty; an iteration needs at least one sample")
    samples = samples_of_lengths(pairs)
    placement = placement or Placement.equal_shares(shape.n_all_layers, cluster.n_stages)
    _check_placement(placement, shape, cluster)
    check_rows(samples, shape)
    config = PlannerConfig(
        cost=costs.config if isinstance(costs, MeasuredCosts) else costs,
        batch=DynamicConfig(),
        search=SearchConfig(effort=effort),
    )
    planner = Planner.of(config, costs, shape, placement, cluster, shape.max_tokens)
    return planner.make_plans(0, samples)


def _check_placement(placement: Placement, shape: ModelShape, cluster: Cluster) -> None:
    counts, n_layers, n_stages = placement.layers_per_stage, shape.n_all_layers, cluster.n_stages
    if placement.n_layers != n_layers or placement.n_stages != n_stages or min(counts) < 1:
        raise InputError(
            f"layers per stage are {counts}, but shape has {n_layers} layers for {n_stages} stages "
            "of cluster, each of which needs one; change placement, shape.n_layers or "
            "cluster.n_stages"
        )


def _pair(i: int, length: int | tuple[int, int], shape: ModelShape) -> tuple[int, int]:
    """Input and target tokens; of a length alone, the last token is the target."""
    if not isinstance(length, int | np.integer):
        inputs, targets = length
    elif shape.architecture.has_target_rows:
        raise InputError(
            f"lengths[{i}] is {quoted(length)}; an encoder-decoder model needs pairs of input and "
            "target tokens"
        )
    else:
        inputs, targets = length - 1, 1
    if inputs < 0 or targets < 1:
        raise InputError(
            f"lengths[{i}] is {quoted(length)}; a sample needs at least one token, in a pair one "
            "target token"
        )
    return inputs, targets
