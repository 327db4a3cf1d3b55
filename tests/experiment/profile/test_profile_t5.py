from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from tests.jobs.tiny_experiment import tiny_t5_experiment, with_keys

from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.profile import profile
from dynapipe_hpc.experiment.profile.stack import Stack, StackShape, tokens_on_disk
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable
from dynapipe_hpc.planner.schedule.config import ScheduleConfig

CONFIG = tiny_t5_experiment(n_stages=2)
GRID = ProfileGrid.from_config(CONFIG)
COST = ProfiledConfig(path=Path("t.h5"))


def measured(config: ExperimentConfig, grid: ProfileGrid) -> ProfileTable:
    return profile(Job(MPI.COMM_SELF), config, grid, repetition_s=0.0, on_progress=lambda _: None)


@pytest.fixture(scope="module")
def table() -> ProfileTable:
    return measured(CONFIG, GRID)


def test_targets_fill_their_rows() -> None:
    assert GRID.row_tokens == (16, 32)
    assert GRID.max_tokens == 64
    sizes = {(m.n_rows, m.row_tokens, m.target_tokens) for m in GRID.pairs()}
    assert {(1, 32, 32), (1, 16, 32), (2, 16, 16)} <= sizes
    assert (2, 32, 16) not in sizes
    for microbatch in (*GRID.pairs(), *GRID.microbatches()):
        inputs, targets = GRID.samples[microbatch.rows[0][0]]
        assert (inputs + 1, targets) == (microbatch.row_tokens, microbatch.target_tokens)


def test_packed_rows_are_measured_where_plans_may_have_them(table: ProfileTable) -> None:
    tables = CONFIG.model_dump()
    tables["planner"]["batch"] = {"rule": "dynamic", "layouts": ["packed"]}
    config = ExperimentConfig.model_validate(tables)
    more = measured(config, GRID)
    packed = {key: layer for key, layer in more.layers.items() if key.layout == "packed"}
    assert {key.kind for key in packed} == {key.kind for key in table.layers}
    for key, layer in packed.items():
        rows = table.layers[key._replace(layout="padded")]
        np.testing.assert_array_equal(np.isnan(layer.forward_ms), np.isnan(rows.forward_ms))
    cost = profiled_cost(more, config.model, any_placement(config), config.cluster, config=COST)
    assert cost.describe().startswith("measured in padded and packed rows")


def test_a_decoder_layer_stores_what_a_second_one_adds(table: ProfileTable) -> None:
    with tokens_on_disk(GRID.samples, CONFIG.model.vocab_size) as tokens:
        (pair,) = [m for m in GRID.pairs() if (m.n_rows, m.row_tokens) == (2, 16)]
        one, two = (
            Stack(CONFIG, StackShape(n, boundary=Boundary.PAIR), tokens).memory(pair).stored_bytes
            for n in (1, 2)
        )
    decoder = next(layer for key, layer in table.layers.items() if key.kind == "decoder")
    assert decoder.stored_bytes[1, 0, 0] == pytest.approx(two - one)


def test_halves_are_of_the_layers_of_both_sides() -> None:
    schedule = ScheduleConfig(split_backward=True)
    config = with_keys(CONFIG, planner={"schedule": schedule})
    grid = ProfileGrid((1,), (16, 32), 64, has_target_rows=True)
    table = measured(config, grid)
    found = {key.kind: layer.grids for key, layer in table.layers.items()}
    assert {kind for kind, grids in found.items() if "input_ms" in grids} == {
        *("encoder", "decoder", "stage")
    }
    for kind in ("encoder", "decoder"):
        # Of layers that are so fast, a half may be nothing beside the noise.
        assert np.isfinite(found[kind]["input_ms"]).any()
        assert np.isfinite(found[kind]["weight_ms"]).any()
