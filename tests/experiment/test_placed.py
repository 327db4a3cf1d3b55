"""Layers of an experiment, for its dataset or for batches of lengths."""

from pathlib import Path

import pytest
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.explain.show_plan import show_plan
from dynapipe_hpc.experiment.load import load_config, to_toml
from dynapipe_hpc.experiment.placed import placed, placed_for_lengths


def with_large_head(folder: Path) -> ExperimentConfig:
    """A vocabulary so large that the head takes as long as several layers."""
    write_samples(folder / "samples.h5", [([1] * 20, [9], "long")] * 40)
    config = tiny_experiment(n_stages=2)
    data = config.data.model_copy(update={"dataset": str(folder / "samples.h5")})
    model = config.model.model_copy(update={"n_layers": 8, "vocab_size": 20000})
    return config.model_copy(update={"data": data, "model": model})


def test_a_large_head_leaves_its_stage_fewer_layers(tmp_path: Path) -> None:
    config = with_large_head(tmp_path)
    counts = placed(config).model.layers_per_stage
    assert counts is not None
    assert counts[0] > counts[1]
    assert placed_for_lengths(config, [[(20, 1)] * 12] * 2).model.layers_per_stage == counts
    assert f"\nlayers per stage {counts[0]}, {counts[1]}\n" in show_plan(config, iteration=0)


def test_the_chosen_layers_are_a_part_of_the_configuration(tmp_path: Path) -> None:
    chosen = placed(with_large_head(tmp_path))
    path = tmp_path / "resolved.toml"
    path.write_text(to_toml(chosen))
    assert load_config(path) == chosen
    assert placed(load_config(path)) == chosen


@pytest.mark.parametrize("counts", [(2, 6), (7, 1)])
def test_named_layers_stay_where_they_are(tmp_path: Path, counts: tuple[int, ...]) -> None:
    config = with_large_head(tmp_path)
    named = config.model.model_copy(update={"layers_per_stage": counts})
    config = config.model_copy(update={"model": named})
    assert placed(config) == config
    assert placed_for_lengths(config, [[(20, 1)]]) == config


def test_layers_that_no_placement_can_run_have_equal_shares(tmp_path: Path) -> None:
    config = with_large_head(tmp_path)
    cluster = config.cluster.model_copy(update={"device_memory_bytes": 1000})
    config = config.model_copy(update={"cluster": cluster})
    assert placed(config).model.layers_per_stage == (4, 4)
