from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.assemble import check_recompute
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig


def test_plans_that_keep_activations_can_be_run() -> None:
    check_recompute(AnalyticConfig())
    check_recompute(ProfiledConfig(path=Path("t.h5")))


def test_plans_that_recompute_cannot_be_run_yet() -> None:
    cost = ProfiledConfig(path=Path("t.h5"), recompute=("none", "full"))
    with pytest.raises(
        InputError, match=r"planner.cost.recompute allows none, full, but runs do not .* set it to"
    ):
        check_recompute(cost)
