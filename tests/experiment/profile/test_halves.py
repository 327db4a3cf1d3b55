"""A profile measures the halves of backward passes, by a clock that only passes advance."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from tests.examples.linear_cost import decoder_shapes
from tests.jobs.tiny_experiment import tiny_experiment
from torch import Tensor

from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER
from dynapipe_hpc.data.microbatch import Layout, MicroBatch, PaddedRows, Recompute
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.profile import profile as bench
from dynapipe_hpc.experiment.profile import stack
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.profile import SPLIT, WHOLE, Measure, measure_rounds, profile
from dynapipe_hpc.experiment.profile.stack import Stack, StackShape, tokens_on_disk
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.stage_parts import STAGE
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.planner.cost.table.profile_table import LayerKey, LayerProfile, ProfileTable
from dynapipe_hpc.training.module_stage import ModuleStage

ALONE = Job(MPI.COMM_SELF)
MODES = ("none", "selective", "full")
LAYOUTS = (Layout.PADDED, Layout.PACKED)


def config_of(*modes: str, split: bool, packs: bool = False) -> ExperimentConfig:
    tables = tiny_experiment(n_stages=2).model_dump()
    layouts = ("padded", "packed") if packs else ("padded",)
    tables["planner"] = {
        "cost": {"kind": "profiled", "path": "t.h5", "recompute": modes},
        "batch": {"rule": "dynamic", "layouts": layouts},
        "schedule": {"split_backward": split},
    }
    return ExperimentConfig.model_validate(tables)


GRID = ProfileGrid.from_config(config_of("none", split=True), max_tokens=64)
TOKENS = np.outer(GRID.rows, GRID.row_tokens).astype(np.float64)
TOKENS[TOKENS > 64] = np.nan


class Clock:
    """A clock that stands still but for passes; times in ms."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.split_stacks: list[int] = []
        self.passes: list[str] = []

    def perf_counter(self) -> float:
        return self.now_ms / 1e3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of stacks.

    F takes 1, the backward pass and B 2, and W 0.5. Per token, F of a layer takes 1, or 1.25 if
    split, the backward pass 3, or B 2 and W 1.5; of embedding and head, F takes 4 and the backward
    pass 8.
    """
    found = Clock()

    class TimedStage(ModuleStage):
        def load(self, index: int, microbatch: MicroBatch) -> None:
            self.tokens = microbatch.n_rows * microbatch.row_tokens
            super().load(index, microbatch)

        def pass_of(self, fixed_ms: float, layer_ms: float, end_ms: float) -> None:
            held: Any = self._module
            n_ends = held.is_first + held.is_last
            per_token_ms = layer_ms * len(held.layers) + end_ms * n_ends
            found.now_ms += fixed_ms + self.tokens * per_token_ms

        def forward(
            self, index: int, activation: Tensor | None, *, split_backward: bool = False
        ) -> Tensor | None:
            self.is_split = split_backward
            if split_backward:
                held: Any = self._module
                found.split_stacks.append(len(held.layers))
            found.passes.append(f"F{index}")
            self.pass_of(1, 1.25 if split_backward else 1, 4)
            return super().forward(index, activation, split_backward=split_backward)

        def backward(self, index: int, gradient: Tensor | None) -> Tensor | None:
            found.passes.append(f"B{index}")
            self.pass_of(2, 2 if self.is_split else 3, 8)
            return super().backward(index, gradient)

        def backward_weight(self, index: int) -> None:
            found.passes.append(f"W{index}")
            self.pass_of(0.5, 1.5, 0)
            super().backward_weight(index)

    monkeypatch.setattr(stack, "ModuleStage", TimedStage)
    monkeypatch.setattr(stack, "time", found)
    return found


def tables_of(config: ExperimentConfig) -> ProfileTable:
    return profile(ALONE, config, GRID, repetition_s=0.0, on_progress=lambda _: None)


def layers_of(table: ProfileTable, kind: str) -> Iterator[tuple[LayerKey, LayerProfile]]:
    return ((key, layer) for key, layer in table.layers.items() if key.kind == kind)


@pytest.mark.usefixtures("clock")
def test_both_halves_are_measured_of_every_layer_mode_and_layout_that_defers(
    tmp_path: Path,
) -> None:
    write_table(tables_of(config_of(*MODES, split=True, packs=True)), tmp_path / "t.h5")
    table = read_table(tmp_path / "t.h5")
    assert len(list(layers_of(table, LAYER))) == len(MODES) * len(LAYOUTS)
    for key, layer in layers_of(table, LAYER):
        np.testing.assert_allclose(layer.forward_ms, TOKENS)
        np.testing.assert_allclose(layer.backward_ms, 3 * TOKENS)
        if key.recompute == "full":
            assert layer.input_ms is None and layer.weight_ms is None
        else:
            assert layer.input_ms is not None and layer.weight_ms is not None
            np.testing.assert_allclose(layer.input_ms, 2.25 * TOKENS)  # and what F took longer
            np.testing.assert_allclose(layer.weight_ms, 1.5 * TOKENS)
    for kind in (EMBEDDING, HEAD):
        for _, layer in layers_of(table, kind):
            assert layer.input_ms is None and layer.weight_ms is None
            np.testing.assert_allclose(layer.backward_ms, 8 * TOKENS)
    for key, stage in layers_of(table, STAGE):
        if key.recompute == "full":
            assert stage.input_ms is None
        else:
            np.testing.assert_allclose(stage.grid("input_ms")[:, :1], 2)
            np.testing.assert_allclose(stage.grid("weight_ms")[:, :1], 0.5)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.text)
def test_costs_of_split_passes_are_those_measured(layout: Layout) -> None:
    config = config_of(*MODES, split=True, packs=True)
    source = ProfiledConfig(path=Path("t.h5"), recompute=MODES)
    placement = any_placement(config)
    cost = profiled_cost(tables_of(config), config.model, placement, config.cluster, config=source)
    shapes, tokens, n_layers = decoder_shapes(np.array([2]), np.array([32])), 64, 2
    for mode in Recompute:
        costs = cost.of_layout(layout).stage_costs(shapes, mode)
        defers = mode is not Recompute.FULL
        np.testing.assert_allclose(costs.backward_ms, 2 + tokens * (3 * n_layers + 8))
        np.testing.assert_allclose(costs.weight_ms, defers * (0.5 + tokens * 1.5 * n_layers))
        np.testing.assert_allclose(costs.splitting_ms, defers * (0.5 + tokens * 0.75 * n_layers))


def test_only_stacks_with_layers_run_twice_and_only_where_something_is_deferred(
    clock: Clock,
) -> None:
    tables_of(config_of("full", split=True))
    tables_of(config_of(*MODES, split=False))
    assert not clock.split_stacks
    tables_of(config_of("selective", split=True))
    n_rounds = bench.MIN_ROUNDS
    in_turn = [n for n in (1, 2) for _ in range(stack.CPU_IN_FLIGHT)]
    assert clock.split_stacks == in_turn * len(GRID.microbatches()) * n_rounds


@pytest.mark.parametrize(("measures", "n_rounds"), [(WHOLE, 6), (SPLIT, 3)])
def test_halves_leave_time_for_half_as_many_rounds(
    measures: tuple[Measure, ...], n_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    config = config_of("none", split=True)
    with tokens_on_disk([(8, 8)], config.model.vocab_size) as tokens:
        stacks = [Stack(config, StackShape(n_layers=1), tokens)]
        microbatches = [PaddedRows((0,), 16)]
        shares: list[float] = []
        measure_rounds(
            ALONE,
            stacks,
            microbatches,
            repetition_s=6.0,
            on_progress=shares.append,
            measures=measures,
        )
    assert len(shares) == 1 + n_rounds
