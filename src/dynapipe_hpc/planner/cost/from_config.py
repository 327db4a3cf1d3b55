"""The cost model that a configuration asks for."""

from typing import assert_never

from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.analytic import AnalyticCost
from dynapipe_hpc.planner.cost.config import AnalyticConfig, CostConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.profile_file import read_table
from dynapipe_hpc.planner.cost.profiled import ProfiledCost


def cost_model_of(config: CostConfig, shape: ModelShape, cluster: Cluster) -> CostModel:
    """Estimates, or measurements read from the table that the configuration names.

    Raises:
        InputError: The table cannot be read, or is of another model.
    """
    match config:
        case AnalyticConfig():
            return AnalyticCost(shape, cluster, config)
        case ProfiledConfig():
            return ProfiledCost(read_table(config.path), shape, cluster, config)
        case _:
            assert_never(config)


def link_of(config: CostConfig, cluster: Cluster) -> Link:
    """The connection between neighbouring stages: as measured, else as the cluster says.

    Raises:
        InputError: The table cannot be read.
    """
    measured = read_table(config.path).link if isinstance(config, ProfiledConfig) else None
    return measured or cluster.link
