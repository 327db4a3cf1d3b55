"""A family whose costs cannot be estimated is planned by those that were measured."""

from collections.abc import Mapping
from pathlib import Path

from tests.examples.measured_layers import SHAPE, linear_table

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.part import Part, Weights
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import EstimatedCosts, MeasuredCosts
from dynapipe_hpc.planner.plan_iteration import plan_iteration

LENGTHS = (12, 30, 60, 25)
CLUSTER = Cluster(n_replicas=2, n_stages=2, device_memory_bytes=10**9)


class Unknown(GptShape):
    """A GPT of which only the weights are known."""

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:  # noqa: ARG002
        return {}

    def weights(self, n_shards: int = 1) -> Mapping[str, Weights]:
        return SHAPE.weights(n_shards)


UNKNOWN = Unknown.model_validate(SHAPE.model_dump())


def test_its_plans_are_those_of_its_measured_costs() -> None:
    costs = MeasuredCosts(ProfiledConfig(path=Path("a.h5")), linear_table())
    assert plan_iteration(LENGTHS, UNKNOWN, CLUSTER, costs) == plan_iteration(
        LENGTHS, SHAPE, CLUSTER, costs
    )


def test_estimates_of_its_parts_are_as_good_as_closed_forms() -> None:
    rates = AnalyticConfig(recompute=("none", "full"))
    costs = EstimatedCosts(rates, SHAPE.parts())
    assert plan_iteration(LENGTHS, UNKNOWN, CLUSTER, costs) == plan_iteration(
        LENGTHS, SHAPE, CLUSTER, rates
    )
