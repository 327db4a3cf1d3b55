import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.cost.cost_model import Cost, StageCosts


def test_the_kernels_number_the_columns_of_costs_alike() -> None:
    kernels = {cost.name: cost.value for cost in _kernels.Cost}
    assert kernels == {cost.name: cost.value for cost in Cost}


def test_every_column_is_found_under_its_name() -> None:
    columns = {cost.name.lower(): np.full((2, 3), float(cost)) for cost in Cost}
    costs = StageCosts.of(**columns)
    assert costs.table.shape == (2, 3, len(Cost))
    for name, column in columns.items():
        np.testing.assert_array_equal(getattr(costs, name), column)
