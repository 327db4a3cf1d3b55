"""A cost table that was measured under other circumstances than those of its use."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.examples.measured_layers import SHAPE, linear_table
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.checks import check_costs, configured, missing_rate
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import with_cost_table
from dynapipe_hpc.experiment.rank.devices import circumstances, find_host_device
from dynapipe_hpc.planner.cost.config import AnalyticTable
from dynapipe_hpc.planner.cost.from_config import CostSource
from dynapipe_hpc.planner.cost.table.profile_file import write_table

CPU = tiny_experiment(n_stages=2)
CPU = CPU.model_copy(update={"training": CPU.training.model_copy(update={"device": "cpu"})})
MODEL = shape_from_values(SHAPE.model_dump())


def experiment(folder: Path, **changes: str) -> ExperimentConfig:
    """Two ranks whose costs were measured as they run, but for `changes`."""
    config = CPU.model_copy(update={"model": MODEL})
    measured = circumstances(config, find_host_device(config), 2) | changes
    path = folder / "costs.h5"
    write_table(replace(linear_table(), provenance=measured), path)
    return with_cost_table(config, path)


def costs_of(config: ExperimentConfig) -> CostSource:
    return Experiment(config).costs


def test_a_table_of_the_same_circumstances_needs_no_word(tmp_path: Path) -> None:
    config = experiment(tmp_path)
    assert check_costs(costs_of(config), circumstances(config, find_host_device(config), 2)) == ""
    assert check_costs(costs_of(config), configured(config)) == ""


@pytest.mark.parametrize(
    "name", ["ranks", "threads", "zero_stage", "shard_sums", "processor", "torch", "attention"]
)
def test_what_was_different_is_a_warning(tmp_path: Path, name: str) -> None:
    config = experiment(tmp_path, **{name: "77"})
    here = circumstances(config, find_host_device(config), 2)
    warning = check_costs(costs_of(config), here)
    assert f"costs.h5: was measured with {name} 77 (here {here[name]}); predictions may" in warning
    assert (
        "measure again with 'dynapipe-hpc profile CONFIG -o TABLE.h5', started in the same way"
        in warning
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda"}, "costs.h5: was measured with device cuda, but training.device is cpu"),
        (
            {"sequence_parallel": "True"},
            "with sequence_parallel True, but cluster.sequence_parallel is False; change it, or",
        ),
        ({"dtype": "bfloat16"}, "was measured with dtype bfloat16, but training.dtype is float32"),
    ],
)
def test_costs_that_cannot_be_right_are_refused(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    config = experiment(tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        check_costs(costs_of(config), configured(config))


@pytest.mark.parametrize("cluster", [{"n_replicas": 2}, {"n_shards": 2}])
def test_gpus_whose_sums_are_estimated_at_a_processors_rate_are_a_warning(
    cluster: dict[str, int],
) -> None:
    config = on_gpus(tiny_experiment(n_stages=2), **cluster)
    assert "reduction_bytes_per_ms is not set" in missing_rate(config)
    assert "at 1 GB/s" in missing_rate(config)
    rate = AnalyticTable(reduction_bytes_per_ms=1e6)
    planner = config.planner.model_copy(update={"cost": rate})
    assert missing_rate(config.model_copy(update={"planner": planner})) == ""


def test_processors_and_stages_need_no_rate_of_sums() -> None:
    assert missing_rate(on_gpus(tiny_experiment(n_stages=2))) == ""
    assert missing_rate(tiny_experiment(n_stages=1, n_replicas=2)) == ""


def on_gpus(config: ExperimentConfig, **cluster: int) -> ExperimentConfig:
    training = config.training.model_copy(update={"device": "cuda"})
    changed = config.cluster.model_copy(update=cluster)
    return config.model_copy(update={"training": training, "cluster": changed})
