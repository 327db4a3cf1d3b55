import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.assemble import check_split_backward
from dynapipe_hpc.planner.schedule.config import ScheduleConfig


def test_plans_that_keep_backward_passes_whole_can_be_run() -> None:
    check_split_backward(ScheduleConfig())


def test_plans_that_split_backward_passes_cannot_be_run_yet() -> None:
    message = "planner.schedule.split_backward is true, but runs keep .* whole; set it to false"
    with pytest.raises(InputError, match=message):
        check_split_backward(ScheduleConfig(split_backward=True))
