"""Whether the times of split backward passes were measured, and who says so."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.examples.measured_layers import SHAPE, linear_layer, linear_table
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.checks import kinds_with_halves
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import MeasuredCosts
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.planner.cost.table.profile_table import (
    LayerKey,
    LayerProfile,
    ProfileTable,
    describe_table,
)
from dynapipe_hpc.planner.from_config import unmeasured_halves

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
