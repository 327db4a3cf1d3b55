from dataclasses import replace
from pathlib import Path

from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import SHAPE, linear_table

from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import costs_of
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.from_config import read_costs

CLUSTER = Cluster(n_stages=2, device_memory_bytes=10**9)
EQUAL = equal_shares(SHAPE, CLUSTER)


def test_measured_costs_come_with_the_measured_link(tmp_path: Path) -> None:
    write_table(linear_table(), tmp_path / "costs.h5")
    cost, link = costs_of(
        read_costs(ProfiledConfig(path=tmp_path / "costs.h5"), SHAPE), SHAPE, EQUAL, CLUSTER
    )
    assert cost.describe().startswith("measured in padded rows")
    assert link == Link(latency_ms=0.5, bytes_per_ms=1e5)


def test_measured_costs_without_a_link_take_the_configured_one(tmp_path: Path) -> None:
    write_table(replace(linear_table(), link=None), tmp_path / "costs.h5")
    _, link = costs_of(
        read_costs(ProfiledConfig(path=tmp_path / "costs.h5"), SHAPE), SHAPE, EQUAL, CLUSTER
    )
    assert link == CLUSTER.link
