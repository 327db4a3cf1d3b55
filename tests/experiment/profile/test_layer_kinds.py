"""Profiles of models whose layers take turns, such as those with and without windows."""

import json
import math
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from mpi4py import MPI
from tests.examples.any_decoders import origin_of, saved_decoder
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.layer_profiles import TRANSIENT, mean_layer
from dynapipe_hpc.experiment.profile.profile import profile
from dynapipe_hpc.experiment.profile.stack import Stack
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.models.transformers.stage import TransformersStage
from dynapipe_hpc.planner.cost.table.profile_table import LayerKey

ALONE = Job(MPI.COMM_SELF)
MODES = ("none", "full")


@pytest.fixture
def config(tmp_path: Path) -> ExperimentConfig:
    """Two stages of a Gemma 3, with two layers with windows each, or one and one without."""
    turns = ["sliding_attention", "full_attention"] * 2
    saved_decoder("gemma3", tmp_path, layer_types=turns)
    tables = tiny_experiment(n_stages=2).model_dump()
    tables["model"] = origin_of(tmp_path)[1].model_dump()
    tables["planner"]["cost"] = {"kind": "profiled", "path": "t.h5", "recompute": MODES}
    return ExperimentConfig.model_validate(tables)


def test_layers_of_each_kind_have_a_model_of_their_own(tmp_path: Path) -> None:
    saved_decoder("gemma3", tmp_path)
    kinds = TransformersStage.layer_kinds(origin_of(tmp_path)[1])
    assert [share for _, share in kinds] == [0.75, 0.25]
    settings = [json.loads(shape.model_dump()["settings"]) for shape, _ in kinds]
    assert [each["layer_types"] for each in settings] == [
        ["sliding_attention"] * 4,
        ["full_attention"] * 4,
    ]


def test_layers_that_are_all_alike_have_one(tmp_path: Path) -> None:
    saved_decoder("granite", tmp_path, eos_token_id=[2, 3, 4, 5])
    shape = origin_of(tmp_path)[1]
    assert TransformersStage.layer_kinds(shape) == [(shape, 1.0)]


def test_a_mean_layer_takes_the_mean_time_and_the_largest_transient_memory() -> None:
    costs = np.arange(10.0).reshape(2, 1, 5), np.arange(10.0, 25.0).reshape(3, 1, 5)
    mean = mean_layer([(costs[0], 0.75), (costs[1], 0.25)])
    expected = 0.75 * costs[0] + 0.25 * costs[1][:2]
    expected[..., TRANSIENT] = costs[1][:2][..., TRANSIENT]
    np.testing.assert_allclose(mean, expected)


@pytest.mark.parametrize(("name", "has_full"), [("gemma3", True), ("starcoder2", False)])
def test_slices_of_layers_with_windows_are_measured_apart(
    name: str, has_full: bool, tmp_path: Path
) -> None:
    saved_decoder(name, tmp_path)
    tables = tiny_experiment(n_stages=2).model_dump()
    tables["model"] = origin_of(tmp_path)[1].model_dump()
    tables["planner"]["batch"] = {"rule": "dynamic", "layouts": ["packed"], "slices": 8}
    config = ExperimentConfig.model_validate(tables)
    grid = ProfileGrid.from_config(config, max_tokens=64)

    def pair_ms(stack: Stack, _: object) -> tuple[float, float]:
        return (1.0, 2.0) if math.isinf(stack.window) else (10.0, 30.0)

    with patch.object(Stack, "pair_ms", pair_ms):
        table = profile(ALONE, config, grid, repetition_s=0.0, on_progress=lambda _: None)
    layer = table.layers[LayerKey(1, "none", LAYER, "packed")]
    # A stack of two layers takes as long as one here, which a layer is fitted to.
    assert layer.pair_ms is not None
    assert layer.near_pair_ms is not None
    share = 0.25 if has_full else 0.0
    np.testing.assert_allclose(layer.pair_ms, 0.6 * share * np.array([1.0, 2.0]))
    np.testing.assert_allclose(layer.near_pair_ms, 0.6 * (1 - share) * np.array([10.0, 30.0]))
