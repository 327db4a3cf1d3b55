"""Descriptions of datasets and cost tables for an experiment: `inspect --config`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import changed
from tests.examples.measured_layers import SHAPE, T5_SHAPE, linear_table
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.describe_file import describe_for, longest_row
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, StageCosts
from dynapipe_hpc.planner.cost.table.profile_file import write_table


def experiment(**model: object) -> ExperimentConfig:
    tables = tiny_experiment(n_stages=2).model_dump()
    tables["model"].update(model)
    tables["planner"]["cost"]["recompute"] = ["none", "full"]
    tables["cluster"]["device_memory_bytes"] = 1_000_000
    return ExperimentConfig.model_validate(tables)


def test_inspect_tells_the_longest_sample_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")])
    config = tmp_path / "config.toml"
    config.write_text(to_toml(experiment(max_tokens=2048)))
    assert main(["inspect", str(dataset), "--config", str(config)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("tokens of at most 2,048; the dataset's longest 24")
    none, full = (int(last.split(mode)[1].split()[0].strip(",")) for mode in ("none ", "full "))
    assert 0 < none < full


def halved(_: Shapes, costs: StageCosts) -> StageCosts:
    """Half the times and bytes."""
    costs.of_kinds[:] /= 2
    return costs


def test_where_all_rows_are_packed_the_memory_of_packed_rows_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_layout(cost: CostModel, layout: Layout) -> CostModel:
        return changed(cost, halved) if layout is Layout.PACKED else cost

    monkeypatch.setattr(CostModel, "of_layout", of_layout)
    dataset = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")])

    def longest(layouts: tuple[LayoutName, ...]) -> int:
        planner = {"batch": DynamicConfig(layouts=layouts)}
        told = describe_for(with_keys(experiment(max_tokens=2048), planner=planner), dataset)
        return int(told.split("none ")[1].split()[0].strip(","))

    padded = longest(("padded",))
    assert longest(("padded", "packed")) == padded
    assert 1.2 * padded < longest(("packed",)) < 2048


def test_of_a_t5_either_side_is_told_beside_the_longest_of_the_other(tmp_path: Path) -> None:
    dataset = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "a"), ([2], [3] * 9 + [9], "b")])
    config = experiment(family="t5", head_size=8)
    _, inputs, targets = describe_for(config, dataset).splitlines()
    assert inputs.startswith("inputs, with targets of 16 tokens: none ")
    assert targets.startswith("targets, with inputs of 24 tokens: none ")


CONFIG = AnalyticConfig(recompute=("none", "full"))


def fits_alone(cost: CostModel, cluster: Cluster, size: tuple[int, int]) -> bool:
    costs = cost.stage_costs(Shapes.padded(*np.array([[1], [size[0]], [size[1]]])), Recompute.NONE)
    return bool(fits(costs, activation_room_bytes(cost, cluster))[0])


@pytest.mark.parametrize("memory_bytes", [250_000, 400_000])
def test_the_longest_row_fits_and_the_next_does_not(memory_bytes: int) -> None:
    cluster = Cluster(n_stages=2, device_memory_bytes=memory_bytes)
    cost = analytic_cost(SHAPE, equal_shares(SHAPE, cluster), cluster, CONFIG)
    longest = longest_row(cost, cluster, Recompute.NONE, 1024)
    assert 0 < longest < 1024
    assert fits_alone(cost, cluster, (longest, 0))
    assert not fits_alone(cost, cluster, (longest + 8, 0))


def test_one_side_leaves_room_for_the_other() -> None:
    cluster = Cluster(n_stages=2, device_memory_bytes=1_850_000)
    cost = analytic_cost(T5_SHAPE, equal_shares(T5_SHAPE, cluster), cluster, CONFIG)
    inputs = [longest_row(cost, cluster, Recompute.NONE, 1024, other_tokens=n) for n in (8, 200)]
    assert 1024 > inputs[0] > inputs[1] > 0
    targets = longest_row(
        cost, cluster, Recompute.NONE, 1024, side="target_tokens", other_tokens=inputs[1]
    )
    assert 200 <= targets < 1024
    assert fits_alone(cost, cluster, (inputs[1], targets))
    assert not fits_alone(cost, cluster, (inputs[1], targets + 8))


def test_a_cost_table_that_suits_an_experiment_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_experiment().model_copy(update={"model": shape_from_values(SHAPE.model_dump())})
    (tmp_path / "config.toml").write_text(to_toml(config))
    path = tmp_path / "x.h5"
    write_table(replace(linear_table(), provenance={"threads": "9"}), path)
    assert main(["inspect", str(path), "--config", str(tmp_path / "config.toml")]) == 0
    shown = capsys.readouterr().out
    assert f"\ncan be used: costs measured in padded rows, from {path}" in shown
    assert "was measured with threads 9 (here 1)" in shown
