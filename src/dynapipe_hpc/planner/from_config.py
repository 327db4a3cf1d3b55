"""The rules and choosers that the [planner] table names, baselines included."""

from collections.abc import Sequence

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline, OneModeSearch
from dynapipe_hpc.planner.baselines.config import DensePackingConfig
from dynapipe_hpc.planner.baselines.padded_rows import check_row_tokens
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.choice import Chooser
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.from_config import CostSource, MeasuredCosts, load_table
from dynapipe_hpc.planner.cost.table.profile_table import PADDED
from dynapipe_hpc.planner.schedule.rules import forward_only, may_split, schedule_rules
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule


def read_costs(config: AnalyticConfig | ProfiledConfig, shape: ModelShape) -> CostSource:
    """Reads the cost table that a configuration names, if it names one."""
    if isinstance(config, AnalyticConfig):
        return config
    return MeasuredCosts(config, load_table(config.path, shape))


def unmeasured_halves(
    costs: MeasuredCosts, config: PlannerConfig, shape: ModelShape, n_shards: int
) -> list[str]:
    """Measured layers whose backward passes may be split, but whose halves were not measured."""
    if not may_split(schedule_rules(config.schedule)):
        return []
    return [
        str(key)
        for key, layer in costs.table.layers.items()
        if layer.input_ms is None
        and key.tensor_parallel == n_shards
        and (key.layout == PADDED or config.may_pack)
        and any(
            key.recompute == mode.text and key.kind in shape.deferring_kinds(mode)
            for mode in costs.config.recompute_modes
        )
    ]


def check_halves(
    costs: CostSource, config: PlannerConfig, shape: ModelShape, n_shards: int
) -> None:
    """Refuses a table without halves of backward passes where they cannot be estimated either.

    The arguments are those of `unmeasured_halves`.
    """
    if not isinstance(costs, MeasuredCosts) or shape.parts():
        return
    if lacking := unmeasured_halves(costs, config, shape, n_shards):
        raise InputError(
            f"{costs.config.path}: lacks the halves of backward passes of {', '.join(lacking)}, "
            f"which planner.schedule.split_backward needs for a {shape.family}; 'dynapipe-hpc "
            "profile CONFIG -o TABLE.h5' measures them"
        )


def chooser(config: PlannerConfig, cost: CostModel, cluster: Cluster, max_tokens: int) -> Chooser:
    """The chooser that a [planner] table asks for."""
    rules = schedule_rules(config.schedule)
    match config.batch:
        case DynamicConfig() as batch:
            return dynamic_chooser(batch, config.search, rules, cost=cost, cluster=cluster)
        case batch:
            if isinstance(batch, DensePackingConfig):
                check_row_tokens(batch, max_tokens)
            return Baseline(batch, rules, cost, cluster)


def evaluation_chooser(batch: DynamicConfig, cost: CostModel, cluster: Cluster) -> Chooser:
    """Dynamic micro-batches for evaluation, whatever rule training follows: the best start."""
    # Starts are compared with gradients that come back, which must not be in the way.
    link = cluster.link.model_copy(update={"full_duplex": True})
    cluster = cluster.model_copy(update={"link": link})
    return dynamic_chooser(
        batch, SearchConfig(effort=0), [forward_only], cost=cost, cluster=cluster
    )


def dynamic_chooser(
    batch: DynamicConfig,
    search: SearchConfig,
    rules: Sequence[ScheduleRule],
    *,
    cost: CostModel,
    cluster: Cluster,
) -> Chooser:
    """Dynamic micro-batches."""

    def choose_with(cost: CostModel) -> Chooser:
        return BestOfSearch(
            rules,
            search,
            cost,
            cluster,
            batch.layouts_to_choose,
            batch.token_multiple,
            slices=batch.slices,
        )

    if batch.recompute_choice == "per_microbatch":
        return choose_with(cost)
    return OneModeSearch(choose_with, cost)
