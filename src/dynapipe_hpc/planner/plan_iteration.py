"""Plans for a list of sample lengths, in one call."""

from collections.abc import Iterable

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.lengths_file import samples_of_lengths
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.row_length import check_rows
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.from_config import CostSource
from dynapipe_hpc.planner.cost.function_cost import FunctionCost
from dynapipe_hpc.planner.from_config import dynamic_chooser
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.rules import schedule_rules

EVERY_MODE = AnalyticConfig(recompute=("none", "selective", "full"))
"""Estimates in which the planner may choose what each micro-batch recomputes."""

PADDED = DynamicConfig()
"""Padded rows of a multiple of 8 tokens."""


def plan_iteration(
    lengths: Iterable[int | tuple[int, int]],
    model: ModelShape | FunctionCost,
    cluster: Cluster,
    costs: CostSource = EVERY_MODE,
    *,
    placement: Placement | None = None,
    batch: DynamicConfig = PADDED,
    effort: int = 100_000,
) -> list[RankPlan]:
    """Checked plans of all ranks for one iteration over samples of the given lengths.

    The same arguments give the same plans on every machine, if cost functions give equal costs.

    Args:
        lengths: Tokens of every sample; or pairs of input and target tokens, which a t5 needs.
        model: The model, whose costs are estimated or were measured; or cost functions for any
            model, which replace `costs` and `placement`.
        cluster: Replicas, stages and shards, and the memory of a rank. A measured link in `costs`
            replaces `cluster.link`. With one stage, micro-batches are balanced over replicas.
        costs: Peak rates of a rank (`AnalyticConfig`), from which time and memory are estimated, or
            what `read_cost_table` returns. The default is one CPU core per rank.
        placement: Number of layers on every stage. The default is `model.layers_per_stage` or, if
            that is None, equal shares; runs choose a placement by cost instead.
        batch: Layouts and padding of micro-batches.
        effort: Search budget, see `planner.search.effort`; 0 takes the best plan that the search
            would begin with.

    Returns:
        One plan per stage of every replica. Each holds the micro-batches of its replica, its
        instructions, its memory account, and the predicted times in ms.

    Raises:
        InputError: A length is not a positive number or exceeds `model.max_tokens`, the placement
            is for other layers or stages, the samples cannot be planned within the memory of
            `cluster`, the costs are those of another model, or a cost function returns no cost.
    """
    has_targets = isinstance(model, ModelShape) and model.has_target_rows
    pairs = [_pair(i, length, has_targets=has_targets) for i, length in enumerate(lengths)]
    if not pairs:
        raise InputError("lengths is empty; an iteration needs at least one sample")
    samples = samples_of_lengths(pairs)
    search = SearchConfig(effort=effort)
    if isinstance(model, FunctionCost):
        if costs is not EVERY_MODE or placement is not None:
            raise InputError(
                "costs and placement belong to a ModelShape, but model is a FunctionCost, whose "
                "functions and stage_shares take their place; leave them out"
            )
        planner = _planner_of_functions(model, cluster, batch, search)
    else:
        configured = Placement(model.layers_per_stage) if model.layers_per_stage else None
        equal_shares = Placement.equal_shares(model.n_all_layers, cluster.n_stages)
        placement = placement or configured or equal_shares
        _check_placement(placement, model, cluster)
        check_rows(samples, model, batch.document_multiple)
        config = PlannerConfig(
            cost=costs if isinstance(costs, AnalyticConfig) else costs.config,
            batch=batch,
            search=search,
        )
        planner = Planner.from_config(
            config, costs, model, placement, cluster=cluster, max_tokens=model.max_tokens
        )
    return planner.make_plans(0, samples)


def _planner_of_functions(
    functions: FunctionCost, cluster: Cluster, batch: DynamicConfig, search: SearchConfig
) -> Planner:
    if len(functions.stage_shares) != cluster.n_stages:
        raise InputError(
            f"stage_shares has {len(functions.stage_shares)} stages, but cluster.n_stages is "
            f"{cluster.n_stages}; give a share for each"
        )
    rules, cost = schedule_rules(ScheduleConfig()), functions.cost_model()
    chooser = dynamic_chooser(batch, search, rules, cost=cost, cluster=cluster)
    boundaries = [Boundary.ROWS] * cluster.n_stages
    return Planner(chooser, cost, cluster, functions.hidden_size, boundaries)


def _check_placement(placement: Placement, shape: ModelShape, cluster: Cluster) -> None:
    counts, n_layers, n_stages = placement.layers_per_stage, shape.n_all_layers, cluster.n_stages
    if placement.n_layers != n_layers or placement.n_stages != n_stages or min(counts) < 1:
        raise InputError(
            f"layers per stage are {counts}, but shape has {n_layers} layers for {n_stages} stages "
            "of cluster, each of which needs one; change placement, shape.n_layers or "
            "cluster.n_stages"
        )


def _pair(i: int, length: int | tuple[int, int], *, has_targets: bool) -> tuple[int, int]:
    """Input and target tokens; of a single length, the last token is the target."""
    if not isinstance(length, int | np.integer):
        inputs, targets = length
    elif has_targets:
        raise InputError(
            f"lengths[{i}] is {quoted(length)}; an encoder-decoder model needs pairs of input and "
            "target tokens"
        )
    else:
        inputs, targets = length - 1, 1
    if inputs < 0 or targets < 1:
        raise InputError(
            f"lengths[{i}] is {quoted(length)}; a sample needs at least one token, and "
            "a pair needs at least one target token"
        )
    return inputs, targets
