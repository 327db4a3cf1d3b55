"""Cost tables beside their use: measured under other circumstances, or without halves of passes."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.examples.measured_layers import SHAPE, linear_layer, linear_table
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.checks import check_costs, configured, kinds_with_halves, missing_rate
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import with_cost_table
from dynapipe_hpc.experiment.rank.devices import circumstances, find_host_device
from dynapipe_hpc.planner.cost.config import AnalyticTable, ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import CostSource, MeasuredCosts
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.planner.cost.table.profile_table import (
    LayerKey,
    LayerProfile,
    ProfileTable,
    describe_table,
)
from dynapipe_hpc.planner.from_config import unmeasured_halves

CPU = with_keys(tiny_experiment(n_stages=2), training={"device": "cpu"})
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
    assert missing_rate(with_keys(config, planner={"cost": rate})) == ""


def test_processors_and_stages_need_no_rate_of_sums() -> None:
    assert missing_rate(on_gpus(tiny_experiment(n_stages=2))) == ""
    assert missing_rate(tiny_experiment(n_stages=1, n_replicas=2)) == ""


def on_gpus(config: ExperimentConfig, **cluster: int) -> ExperimentConfig:
    return with_keys(config, training={"device": "cuda"}, cluster=cluster)


COSTS = ProfiledConfig(path=Path("c.h5"), recompute=("none", "full"))
LAYER = linear_layer(1.0)
HALVES = replace(LAYER, input_ms=1.5 * LAYER.forward_ms, weight_ms=LAYER.forward_ms)


def config_of(*, split: bool, rules: tuple[str, ...] = ()) -> ExperimentConfig:
    tables = tiny_experiment(n_stages=2).model_dump()
    tables["model"] = SHAPE.model_dump()
    tables["planner"]["schedule"] = {"split_backward": split, "rules": rules}
    return ExperimentConfig.model_validate(tables)


SPLIT, WHOLE = config_of(split=True), config_of(split=False)


def table_of(**halves: bool) -> ProfileTable:
    """Layers of some modes, with halves or without."""
    layers: dict[LayerKey, LayerProfile] = {}
    for mode, has_halves in halves.items():
        layers |= linear_table(mode, **({"layer": HALVES} if has_halves else {})).layers
    return replace(linear_table(), layers=layers)


def test_layers_that_defer_have_halves_where_plans_may_split() -> None:
    assert kinds_with_halves(SPLIT, Recompute.NONE) == {"layer", "stage"}
    assert kinds_with_halves(SPLIT, Recompute.SELECTIVE) == {"layer", "stage"}
    assert not kinds_with_halves(SPLIT, Recompute.FULL)
    assert not kinds_with_halves(WHOLE, Recompute.NONE)
    assert not kinds_with_halves(config_of(split=True, rules=("1f1b",)), Recompute.NONE)


def unmeasured(costs: MeasuredCosts, config: ExperimentConfig = SPLIT) -> list[str]:
    return unmeasured_halves(costs, config.planner, config.model, config.cluster.n_shards)


def test_what_was_measured_is_not_lacking() -> None:
    measured = MeasuredCosts(COSTS, table_of(none=True, full=False))
    assert unmeasured(measured) == []  # with full, nothing is deferred


def test_what_was_not_measured_is_named() -> None:
    both = ProfiledConfig(path=Path("c.h5"), recompute=("none", "selective"))
    costs = MeasuredCosts(both, table_of(none=True, selective=False))
    assert unmeasured(costs) == ["tensor_parallel=1/recompute=selective/layer"]
    assert unmeasured(costs, WHOLE) == []
    assert unmeasured(replace(costs, config=COSTS)) == []


def test_packed_rows_matter_where_plans_may_pack() -> None:
    table = table_of(none=True)
    packed = LayerKey(1, "none", "layer", "packed")
    costs = MeasuredCosts(COSTS, replace(table, layers={**table.layers, packed: LAYER}))
    assert unmeasured(costs) == []
    tables = SPLIT.model_dump()
    tables["planner"]["batch"] = {"rule": "dynamic", "layouts": ("padded", "packed")}
    assert unmeasured(costs, ExperimentConfig.model_validate(tables)) == [str(packed)]


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_table_says_whether_it_has_halves(tmp_path: Path, is_measured: bool) -> None:
    path = tmp_path / "c.h5"
    write_table(table_of(none=is_measured), path)
    text = describe_table(read_table(path), path)
    assert ("ms, backward passes in halves, too; " in text) == is_measured
    assert ("\n  halves of backward passes: not measured" in text) != is_measured
