"""The costs that a configuration asks for."""

from typing import assert_never

from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.analytic import AnalyticCost
from dynapipe_hpc.planner.cost.config import AnalyticConfig, CostConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.profiled import ProfiledCost
from dynapipe_hpc.planner.cost.table.load_table import load_table


def costs_of(config: CostConfig, shape: ModelShape, cluster: Cluster) -> tuple[CostModel, Link]:
    """Estimates, or measurements read from the file that the configuration names.

    Returns:
        The cost model, and the connection between neighbouring stages: as measured, else as
        the cluster says.

    Raises:
        InputError: The file cannot be read, or is of another model.
    """
    match config:
        case AnalyticConfig():
            return AnalyticCost(shape, cluster, config), cluster.link
        case ProfiledConfig():
            table = load_table(config.path, shape)
            return ProfiledCost(table, shape, cluster, config), table.link or cluster.link
        case _:
            assert_never(config)
