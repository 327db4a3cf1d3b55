from pathlib import Path

import pytest
from tests.examples.linear_cost import changed
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.explain.describe_file import describe_for
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, StageCosts


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
        config = experiment(max_tokens=2048)
        planner = config.planner.model_copy(update={"batch": DynamicConfig(layouts=layouts)})
        told = describe_for(config.model_copy(update={"planner": planner}), dataset)
        return int(told.split("none ")[1].split()[0].strip(","))

    padded = longest(("padded",))
    assert longest(("padded", "packed")) == padded
    assert 1.2 * padded < longest(("packed",)) < 2048


def test_of_a_t5_either_side_is_told_beside_the_longest_of_the_other(tmp_path: Path) -> None:
    dataset = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "a"), ([2], [3] * 9 + [9], "b")])
    config = experiment(family="t5", head_size=8)
    _, inputs, targets = describe_for(config, dataset).splitlines()
    assert inputs.startswith("inputs, beside targets of 16 tokens: none ")
    assert targets.startswith("targets, beside inputs of 24 tokens: none ")
