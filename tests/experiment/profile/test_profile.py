"""Profiles: grids, memory and times of parts, also of layers that take turns and of both sides."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from mpi4py import MPI
from tests.examples.any_decoders import origin_of, saved_decoder
from tests.examples.linear_cost import decoder_shapes
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment, with_keys
from torch import Tensor, nn
from torch.nn.modules.module import register_module_full_backward_hook

from dynapipe_hpc.architecture.part import LAYER, Boundary
from dynapipe_hpc.data.microbatch import Layout, MicroBatch, PackedRow, PaddedRows, Recompute, Slice
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.profile import profile as bench
from dynapipe_hpc.experiment.profile import stack
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.layer_profiles import TRANSIENT, mean_layer
from dynapipe_hpc.experiment.profile.profile import (
    SPLIT,
    WHOLE,
    Measure,
    has_slices,
    measure_rounds,
    profile,
    typical_costs,
)
from dynapipe_hpc.experiment.profile.stack import (
    OutOfMemoryError,
    Stack,
    StackShape,
    tokens_on_disk,
)
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear
from dynapipe_hpc.models.transformers.stage import TransformersStage
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.profile_table import LayerKey, ProfileTable
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.training.module_stage import ModuleStage

ALONE = Job(MPI.COMM_SELF)
CONFIG = tiny_experiment(n_stages=2)


GRID = ProfileGrid.from_config(CONFIG, max_tokens=64)


def measured(config: ExperimentConfig, grid: ProfileGrid = GRID) -> ProfileTable:
    return profile(ALONE, config, grid, repetition_s=0.0, on_progress=lambda _: None)


def with_modes(
    *modes: str, layouts: tuple[str, ...] = ("padded",), split: bool = False
) -> ExperimentConfig:
    tables = CONFIG.model_dump()
    tables["planner"] |= {
        "cost": {"kind": "profiled", "path": "t.h5", "recompute": modes},
        "batch": {"rule": "dynamic", "layouts": layouts},
        "schedule": {"split_backward": split},
    }
    return ExperimentConfig.model_validate(tables)


@pytest.fixture(scope="module")
def table() -> ProfileTable:
    return measured(with_modes("none", "selective", "full", layouts=("packed",)))


@pytest.mark.parametrize(
    ("stage", "stack"),
    [(0, StackShape(n_layers=2, first=True)), (1, StackShape(n_layers=2, last=True))],
)
@pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)
def test_memory_is_what_a_stage_of_a_run_needs(
    table: ProfileTable, stage: int, stack: StackShape, mode: Recompute
) -> None:
    with tokens_on_disk([(16, 16)], CONFIG.model.vocab_size) as tokens:
        needed = Stack(CONFIG, stack, tokens).memory(PaddedRows((0, 0), 32, mode))
    modes = ProfiledConfig(path=Path("t.h5"), recompute=("none", "selective", "full"))
    cost = profiled_cost(table, CONFIG.model, any_placement(CONFIG), CONFIG.cluster, config=modes)
    costs = cost.stage_costs(decoder_shapes(np.array([2]), np.array([32])), mode)
    assert costs.stored_bytes[0, stage] == pytest.approx(needed.stored_bytes, rel=1e-9)
    forward, backward = costs.forward_transient_bytes, costs.backward_transient_bytes
    assert forward[0, stage] >= needed.forward_transient_bytes
    assert backward[0, stage] >= needed.backward_transient_bytes
    peak_bytes = needed.stored_bytes + needed.backward_transient_bytes
    assert costs.stored_bytes[0, stage] + backward[0, stage] == pytest.approx(peak_bytes, rel=0.2)


def test_packed_rows_are_measured_where_plans_may_have_them(table: ProfileTable) -> None:
    packed = {key: layer for key, layer in table.layers.items() if key.layout == "packed"}
    assert len(packed) == len(table.layers) / 2
    assert {key.recompute for key in packed} == {mode.text for mode in Recompute}
    assert {key.layout for key in measured(with_modes("none")).layers} == {"padded"}
    for key, layer in packed.items():
        rows = table.layers[key._replace(layout="padded")]
        np.testing.assert_array_equal(np.isnan(layer.forward_ms), np.isnan(rows.forward_ms))
        if (key.kind, key.recompute) == (LAYER, "none"):
            # Documents of like length are gathered: what attention returns is kept twice.
            tokens = np.array(GRID.rows)[:, None] * np.array(GRID.row_tokens)
            more_bytes = (layer.stored_bytes - rows.stored_bytes) / tokens
            assert np.nanmin(more_bytes) >= 4 * CONFIG.model.hidden_size


def with_slices(slices: str | int, max_tokens: int = 0) -> ExperimentConfig:
    tables = with_modes("none", layouts=("packed",)).model_dump()
    tables["planner"]["batch"]["slices"] = slices
    if max_tokens:
        tables["data"]["max_tokens"] = tables["model"]["max_tokens"] = max_tokens
        tables["data"]["tokens_per_batch"] = max_tokens
    return ExperimentConfig.model_validate(tables)


def test_slices_are_measured_where_plans_may_have_them() -> None:
    unsliced = measured(with_slices("off"))
    assert all(layer.pair_ms is None for layer in unsliced.layers.values())
    layers = measured(with_slices(8)).layers
    sliced = {key: layer for key, layer in layers.items() if layer.pair_ms is not None}
    assert sliced.keys() == {LayerKey(1, "none", LAYER, "packed")}
    assert all((layer.pair_ms >= 0).all() for layer in sliced.values() if layer.pair_ms is not None)


def test_slices_are_measured_if_samples_are_long_enough_for_the_rule() -> None:
    long_enough = [has_slices(with_slices("auto", n), Layout.PACKED) for n in (2040, 2048)]
    assert long_enough == [False, True]
    assert not has_slices(with_slices("auto", 2048), Layout.PADDED)


def test_the_time_of_a_pair_is_the_slope_over_what_is_before_a_slice() -> None:
    row = PackedRow((0,), 32, (0, 32))
    with tokens_on_disk([(16, 16)], CONFIG.model.vocab_size) as tokens:
        stack = Stack(CONFIG, StackShape(n_layers=1), tokens)
        times = [(3.0 + 0.5 * 8 * begin, 1.0 + 2.0 * 8 * begin) for begin in (0, 8, 16, 24)]
        with patch.object(Stack, "slices_ms", return_value=times) as slices_ms:
            found = stack.pair_ms(row)
    assert found == pytest.approx((0.5, 2.0))
    (slices,) = slices_ms.call_args.args
    assert [part.slice for part in slices] == [Slice(b, b + 8, 32) for b in (0, 8, 16, 24)]


def test_static_memory_is_that_of_the_stages_weights_and_their_state(table: ProfileTable) -> None:
    cost = profiled_cost(
        table,
        CONFIG.model,
        any_placement(CONFIG),
        CONFIG.cluster,
        config=ProfiledConfig(path=Path("t.h5")),
    )
    with tokens_on_disk([(16, 16)], CONFIG.model.vocab_size) as tokens:
        stacks = [StackShape(2, first=True), StackShape(2, last=True)]
        built = [Stack(CONFIG, stack, tokens) for stack in stacks]
        weights = [each._optimizer.parameters.weight_bytes for each in built]
    assert cost.static_bytes.tolist() == [4 * weight for weight in weights]


def test_the_typical_time_is_the_median_of_rounds_and_ranks() -> None:
    # Ranks with medians of 2, 40 and 6.
    by_rank = [[1, 2, 90], [40, 30, 50], [6, 5, 70]]
    times_ms = np.full((3, 3, 1, 1, 2), np.reshape(by_rank, (3, 3, 1, 1, 1)))
    assert typical_costs(np.ones((3, 1, 1, 3)), times_ms)[0, 0].tolist() == [6, 6, 1, 1, 1]


@contextmanager
def large_backward_passes_run_out_of_memory(rows: int) -> Iterator[None]:
    """Asks for memory that no machine has, in the backward pass of so many rows or more."""

    def ask(module: nn.Module, _: object, gradients: tuple[Tensor, ...]) -> None:
        if isinstance(module, ColumnLinear) and len(gradients[0]) >= rows:
            torch.empty(1 << 60)

    handle = register_module_full_backward_hook(ask)
    try:
        yield
    finally:
        handle.remove()


def test_after_an_out_of_memory_a_stack_measures_as_a_new_one_does() -> None:
    small, large = (PaddedRows((0,) * n, 16) for n in (2, 4))
    with tokens_on_disk([(8, 8)], CONFIG.model.vocab_size) as tokens:
        stack = Stack(CONFIG, StackShape(n_layers=1), tokens)
        stored_bytes = stack.memory(small).stored_bytes
        with large_backward_passes_run_out_of_memory(rows=4), pytest.raises(OutOfMemoryError):
            stack.memory(large)
        assert stack.memory(small).stored_bytes == stored_bytes
        assert stack.memory(large).stored_bytes == 2 * stored_bytes


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
        table = measured(config, grid)
    layer = table.layers[LayerKey(1, "none", LAYER, "packed")]
    # A stack of two layers takes as long as one here, which a layer is fitted to.
    assert layer.pair_ms is not None
    assert layer.near_pair_ms is not None
    share = 0.25 if has_full else 0.0
    np.testing.assert_allclose(layer.pair_ms, 0.6 * share * np.array([1.0, 2.0]))
    np.testing.assert_allclose(layer.near_pair_ms, 0.6 * (1 - share) * np.array([10.0, 30.0]))


ALL_MODES = ("none", "selective", "full")
LAYOUTS = (Layout.PADDED, Layout.PACKED)


ALL_SPLIT = with_modes(*ALL_MODES, layouts=tuple(each.text for each in LAYOUTS), split=True)


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


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.text)
def test_costs_of_split_passes_are_those_measured(layout: Layout) -> None:
    config = ALL_SPLIT
    source = ProfiledConfig(path=Path("t.h5"), recompute=ALL_MODES)
    placement = any_placement(config)
    cost = profiled_cost(measured(config), config.model, placement, config.cluster, config=source)
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
    measured(with_modes("full", split=True))
    measured(with_modes(*ALL_MODES))
    assert not clock.split_stacks
    measured(with_modes("selective", split=True))
    n_rounds = bench.MIN_ROUNDS
    in_turn = [n for n in (1, 2) for _ in range(stack.CPU_IN_FLIGHT)]
    assert clock.split_stacks == in_turn * len(GRID.microbatches()) * n_rounds


@pytest.mark.parametrize(("measures", "n_rounds"), [(WHOLE, 6), (SPLIT, 3)])
def test_halves_leave_time_for_half_as_many_rounds(
    measures: tuple[Measure, ...], n_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    config = with_modes("none", split=True)
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


T5_CONFIG = tiny_t5_experiment(n_stages=2)
T5_GRID = ProfileGrid.from_config(T5_CONFIG)
T5_COST = ProfiledConfig(path=Path("t.h5"))


@pytest.fixture(scope="module")
def t5_table() -> ProfileTable:
    return measured(T5_CONFIG, T5_GRID)


def test_targets_fill_their_rows() -> None:
    assert T5_GRID.row_tokens == (16, 32)
    assert T5_GRID.max_tokens == 64
    sizes = {(m.n_rows, m.row_tokens, m.target_tokens) for m in T5_GRID.pairs()}
    assert {(1, 32, 32), (1, 16, 32), (2, 16, 16)} <= sizes
    assert (2, 32, 16) not in sizes
    for microbatch in (*T5_GRID.pairs(), *T5_GRID.microbatches()):
        inputs, targets = T5_GRID.samples[microbatch.rows[0][0]]
        assert (inputs + 1, targets) == (microbatch.row_tokens, microbatch.target_tokens)


def test_packed_pairs_are_measured_where_plans_may_have_them(t5_table: ProfileTable) -> None:
    tables = T5_CONFIG.model_dump()
    tables["planner"]["batch"] = {"rule": "dynamic", "layouts": ["packed"]}
    config = ExperimentConfig.model_validate(tables)
    more = measured(config, T5_GRID)
    packed = {key: layer for key, layer in more.layers.items() if key.layout == "packed"}
    assert {key.kind for key in packed} == {key.kind for key in t5_table.layers}
    for key, layer in packed.items():
        rows = t5_table.layers[key._replace(layout="padded")]
        np.testing.assert_array_equal(np.isnan(layer.forward_ms), np.isnan(rows.forward_ms))
    cost = profiled_cost(more, config.model, any_placement(config), config.cluster, config=T5_COST)
    assert cost.describe().startswith("measured in padded and packed rows")


def test_a_decoder_layer_stores_what_a_second_one_adds(t5_table: ProfileTable) -> None:
    with tokens_on_disk(T5_GRID.samples, T5_CONFIG.model.vocab_size) as tokens:
        (pair,) = [m for m in T5_GRID.pairs() if (m.n_rows, m.row_tokens) == (2, 16)]
        one, two = (
            Stack(T5_CONFIG, StackShape(n, boundary=Boundary.PAIR), tokens)
            .memory(pair)
            .stored_bytes
            for n in (1, 2)
        )
    decoder = next(layer for key, layer in t5_table.layers.items() if key.kind == "decoder")
    assert decoder.stored_bytes[1, 0, 0] == pytest.approx(two - one)


def test_halves_are_of_the_layers_of_both_sides() -> None:
    schedule = ScheduleConfig(split_backward=True)
    config = with_keys(T5_CONFIG, planner={"schedule": schedule})
    grid = ProfileGrid((1,), (16, 32), 64, has_target_rows=True)
    found = {key.kind: layer.grids for key, layer in measured(config, grid).layers.items()}
    assert {kind for kind, grids in found.items() if "input_ms" in grids} == {
        *("encoder", "decoder", "stage")
    }
    for kind in ("encoder", "decoder"):
        # Of layers that are so fast, a half may be nothing beside the noise.
        assert np.isfinite(found[kind]["input_ms"]).any()
        assert np.isfinite(found[kind]["weight_ms"]).any()
