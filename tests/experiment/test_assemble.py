from dataclasses import replace
from pathlib import Path

import pytest
from tests.oracles.measured_layers import SHAPE, T5_SHAPE, linear_table
from tests.oracles.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.assemble import check_costs, check_family, check_split_backward
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profile_file import write_table
from dynapipe_hpc.planner.schedule.config import ScheduleConfig


def test_plans_that_keep_backward_passes_whole_can_be_run() -> None:
    check_split_backward(ScheduleConfig())


def test_plans_that_split_backward_passes_cannot_be_run_yet() -> None:
    message = "planner.schedule.split_backward is true, but runs keep .* whole; set it to false"
    with pytest.raises(InputError, match=message):
        check_split_backward(ScheduleConfig(split_backward=True))


def test_only_decoders_can_be_run_yet() -> None:
    check_family(SHAPE)
    with pytest.raises(InputError, match=r"model.family is 't5', but only .* 'gpt' can be run"):
        check_family(T5_SHAPE)


def test_costs_of_numbers_of_another_type_are_refused(tmp_path: Path) -> None:
    config, path = tiny_experiment(), tmp_path / "costs.h5"
    planner = config.planner.model_copy(update={"cost": ProfiledConfig(path=path)})
    profiled = config.model_copy(update={"planner": planner})
    write_table(replace(linear_table(), provenance={"dtype": "float32"}), path)
    check_costs(config)
    check_costs(profiled)
    training = config.training.model_copy(update={"dtype": "bfloat16"})
    with pytest.raises(InputError, match=r"dtype float32, but training.dtype is bfloat16; change"):
        check_costs(profiled.model_copy(update={"training": training}))
    write_table(replace(linear_table(), provenance={}), path)
    check_costs(profiled.model_copy(update={"training": training}))
