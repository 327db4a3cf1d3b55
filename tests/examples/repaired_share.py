"""The noise that a cost model tells of its measurements."""

import re

from dynapipe_hpc.planner.cost.cost_model import CostModel


def repaired_share(cost: CostModel) -> float:
    """Share of the measurements that were repaired."""
    percent = re.search(r"noise repaired in ([0-9.]+) %", cost.describe())
    assert percent
    return float(percent[1]) / 100
