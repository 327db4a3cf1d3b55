import numpy as np

from dynapipe_hpc.planner.cost.cost_model import Cost, StageCosts


def test_every_column_is_found_under_its_name() -> None:
    columns = {cost.name.lower(): np.full((2, 3), float(cost)) for cost in Cost}
    costs = StageCosts.of(**columns)
    assert costs.table.shape == (2, 3, len(Cost))
    for name, column in columns.items():
        np.testing.assert_array_equal(getattr(costs, name), column)
