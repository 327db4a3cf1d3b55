"""The placement of most tests, which is of no concern to them."""

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.plan.cluster import Cluster


def equal_shares(shape: ModelShape, cluster: Cluster) -> Placement:
    """As many layers on every stage."""
    return Placement.equal_shares(shape.n_all_layers, cluster.n_stages)


def rows_only(cluster: Cluster) -> list[Boundary]:
    """Boundaries of a decoder-only model."""
    return [Boundary.ROWS] * cluster.n_stages
