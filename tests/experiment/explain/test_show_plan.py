"""Plans as they are shown and explained."""

import re
from pathlib import Path

import numpy as np
import pytest
from tests.examples.linear_cost import changed
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.show_plan import longest_rows, show_plan
from dynapipe_hpc.planner.baselines.config import NaivePaddingConfig
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, StageCosts


def on_samples(folder: Path) -> ExperimentConfig:
    write_samples(folder / "samples.h5", [([1] * 20, [9], "long")] * 20)
    data = {"dataset": str(folder / "samples.h5")}
    return with_keys(tiny_experiment(n_stages=2), data=data)


def shown_plan(config: ExperimentConfig) -> str:
    return show_plan(Experiment(config).open(), iteration=0)


def test_a_plan_says_how_many_shapes_its_micro_batches_have(tmp_path: Path) -> None:
    batch = NaivePaddingConfig(rule="naive_padding", rows_per_microbatch=5)
    shown = shown_plan(with_keys(on_samples(tmp_path), planner={"batch": batch}))
    assert "micro-batches (rows x tokens): 0:5x24  1:5x24  2:2x24\n" in shown
    assert "\nmicro-batches: 3, of different shapes and layouts: 2\n" in shown


def test_a_plan_is_drawn_in_letters_and_as_a_file(tmp_path: Path) -> None:
    experiment = Experiment(on_samples(tmp_path)).open()
    plain = show_plan(experiment, 0)
    shown = show_plan(experiment, 0, timeline=True, svg=tmp_path / "plan.svg")
    assert shown.startswith(f"{plain}\ntimeline, ")
    drawn = shown.removeprefix(plain)
    assert re.search(r"\nrank 0 \|0+[0-9a-j.]+\|\nrank 1 \|\.+0[0-9a-j.]+\|\n", drawn)
    assert "\nbusiest: rank " in drawn
    n_microbatches = int(re.findall(r"micro-batches: (\d+),", plain)[0])
    svg = (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert svg.count("<rect") == 1 + 2 * 2 * n_microbatches


def with_memory(folder: Path, memory_bytes: int, **model: object) -> ExperimentConfig:
    tables = on_samples(folder).model_dump()
    tables["model"] |= {"max_tokens": 2048, "layers_per_stage": [2, 2], **model}
    tables["planner"]["cost"]["recompute"] = ["none", "full"]
    tables["cluster"]["device_memory_bytes"] = memory_bytes
    return ExperimentConfig.model_validate(tables)


def longest_of(config: ExperimentConfig) -> list[int]:
    return [int(each.replace(",", "")) for each in re.findall(r"([\d,]+) \(", longest_text(config))]


def longest_text(config: ExperimentConfig) -> str:
    return longest_rows(Experiment(config).open())


def fits_alone(config: ExperimentConfig, tokens: int) -> bool:
    cost, targets = Experiment(config).open().planner.cost, tokens * config.model.has_target_rows
    costs = cost.stage_costs(Shapes.padded(*np.array([[1], [tokens], [targets]])))
    return bool(fits(costs, activation_room_bytes(cost, config.cluster))[0])


@pytest.mark.parametrize("memory_bytes", [1_200_000, 2_000_000])
@pytest.mark.parametrize(
    "model", [{}, {"family": "t5", "head_size": 8, "n_layers": 2}], ids=["gpt", "t5"]
)
def test_the_longest_row_fits_and_the_next_does_not(
    tmp_path: Path, model: dict[str, object], memory_bytes: int
) -> None:
    config = with_memory(tmp_path, memory_bytes, **model)
    none, full = longest_of(config)
    assert 0 < none < full
    assert none < 2048
    assert f"{longest_text(config)}\n" in shown_plan(config)
    assert fits_alone(config, none)
    assert not fits_alone(config, none + 8)


def test_rows_that_all_fit_are_as_long_as_the_model_takes(tmp_path: Path) -> None:
    config = with_memory(tmp_path, 10**10)
    assert longest_text(config) == "longest row that fits: 2,048 (none), 2,048 (full)"


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
    config = with_memory(tmp_path, 1_000_000)

    def longest(layouts: tuple[LayoutName, ...]) -> int:
        return longest_of(with_keys(config, planner={"batch": DynamicConfig(layouts=layouts)}))[0]

    padded = longest(("padded",))
    assert longest(("padded", "packed")) == padded
    assert 1.2 * padded < longest(("packed",)) < 2048
