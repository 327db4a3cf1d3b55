from pathlib import Path

from tests.oracles.measured_layers import SHAPE, linear_table

from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.cost.analytic import AnalyticCost
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import cost_model_of, link_of
from dynapipe_hpc.planner.cost.profile_file import write_table
from dynapipe_hpc.planner.cost.profiled import ProfiledCost

CLUSTER = Cluster(n_stages=2, device_memory_bytes=10**9)


def test_the_kind_chooses_the_model(tmp_path: Path) -> None:
    write_table(linear_table(), tmp_path / "costs.h5")
    measured = ProfiledConfig(path=tmp_path / "costs.h5")
    assert isinstance(cost_model_of(measured, SHAPE, CLUSTER), ProfiledCost)
    assert isinstance(cost_model_of(AnalyticConfig(), SHAPE, CLUSTER), AnalyticCost)


def test_a_measured_link_replaces_the_configured_one(tmp_path: Path) -> None:
    write_table(linear_table(), tmp_path / "costs.h5")
    measured = ProfiledConfig(path=tmp_path / "costs.h5")
    assert link_of(measured, CLUSTER) == Link(latency_ms=0.5, bytes_per_ms=1e5)
    assert link_of(AnalyticConfig(), CLUSTER) == CLUSTER.link
