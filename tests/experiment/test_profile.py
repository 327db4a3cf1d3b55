from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from tests.oracles.tiny_experiment import tiny_experiment
from torch import Tensor, nn
from torch.nn.modules.module import register_module_full_backward_hook

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.experiment.profile import profile
from dynapipe_hpc.experiment.profile_grid import ProfileGrid
from dynapipe_hpc.experiment.profile_rounds import measure_rounds
from dynapipe_hpc.experiment.profile_stack import (
    OutOfMemoryError,
    Stack,
    StackShape,
    sample_loader,
)
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.planner.cost.profile_table import ProfileTable
from dynapipe_hpc.planner.cost.profiled import ProfiledCost

ALONE = Job(MPI.COMM_SELF)
CONFIG = tiny_experiment(n_stages=2)
TOO_LARGE = MicroBatch(((0,),), 1 << 40)


@pytest.fixture(scope="module")
def table() -> ProfileTable:
    grid = ProfileGrid.of(CONFIG, max_tokens=64)
    found = profile(ALONE, CONFIG, grid, repetition_s=0.0, on_progress=lambda _: None)
    assert found is not None
    return found


def test_a_measured_table_is_ready_for_planning(table: ProfileTable) -> None:
    cost = ProfiledCost(table, CONFIG.model, CONFIG.cluster, ProfiledConfig(path=Path("t.h5")))
    costs = cost.stage_costs(Shapes.of_rows(np.array([1, 3, 5]), np.array([24, 16, 16])))
    assert (costs.work_ms[:2] > 0).all()
    assert np.isfinite(costs.work_ms[:2]).all()
    assert np.isinf(costs.work_ms[2]).all()
    assert cost.update_ms > 0


@pytest.mark.parametrize(
    ("stage", "stack"),
    [
        (0, StackShape(n_layers=2, first=True)),
        (1, StackShape(n_layers=2, last=True)),
    ],
)
def test_stored_bytes_are_what_a_stage_of_a_run_counts(
    table: ProfileTable, stage: int, stack: StackShape
) -> None:
    with sample_loader([32], CONFIG.model.vocab_size) as loader:
        counted = Stack(CONFIG, stack, loader).run(MicroBatch(((0,), (0,)), 32)).stored_bytes
    cost = ProfiledCost(table, CONFIG.model, CONFIG.cluster, ProfiledConfig(path=Path("t.h5")))
    costs = cost.stage_costs(Shapes.of_rows(np.array([2]), np.array([32])))
    assert costs.stored_bytes[0, stage] == pytest.approx(counted, rel=1e-9)


def test_static_memory_is_that_of_the_stages_weights_and_their_state(table: ProfileTable) -> None:
    cost = ProfiledCost(table, CONFIG.model, CONFIG.cluster, ProfiledConfig(path=Path("t.h5")))
    with sample_loader([32], CONFIG.model.vocab_size) as loader:
        stacks = [StackShape(2, first=True), StackShape(2, last=True)]
        weights = [Stack(CONFIG, stack, loader).weight_bytes for stack in stacks]
    assert cost.static_bytes.tolist() == [4 * weight for weight in weights]


def test_a_table_says_where_it_was_made(table: ProfileTable) -> None:
    assert {"host", "torch", "created", "threads", "ranks"} <= table.provenance.keys()
    assert table.link is None


def test_micro_batches_that_run_out_of_memory_are_left_out() -> None:
    with sample_loader([16], CONFIG.model.vocab_size) as loader:
        stacks = [Stack(CONFIG, StackShape(n_layers=1), loader)]
        microbatches = [MicroBatch(((0,),), 16), TOO_LARGE]
        found = measure_rounds(ALONE, stacks, microbatches, 0.0, lambda _: None)
    assert found.shape == (2, 1, 1, 3)


@contextmanager
def large_backward_passes_run_out_of_memory(rows: int) -> Iterator[None]:
    """Asks for memory that no machine has, in the backward pass of so many rows or more."""

    def ask(module: nn.Module, _: object, gradients: tuple[Tensor, ...]) -> None:
        if isinstance(module, nn.Linear) and len(gradients[0]) >= rows:
            torch.empty(1 << 60)

    handle = register_module_full_backward_hook(ask)
    try:
        yield
    finally:
        handle.remove()


def test_after_an_out_of_memory_a_stack_measures_as_a_new_one_does() -> None:
    small, large = (MicroBatch(((0,),) * n, 16) for n in (2, 4))
    with sample_loader([16], CONFIG.model.vocab_size) as loader:
        stack = Stack(CONFIG, StackShape(n_layers=1), loader)
        stored_bytes = stack.run(small).stored_bytes
        with large_backward_passes_run_out_of_memory(rows=4), pytest.raises(OutOfMemoryError):
            stack.run(large)
        assert stack.run(small).stored_bytes == stored_bytes
        assert stack.run(large).stored_bytes == 2 * stored_bytes


def test_an_out_of_memory_in_one_round_leaves_the_others_right() -> None:
    small, large = (MicroBatch(((0,),) * n, 16) for n in (2, 4))
    with sample_loader([16], CONFIG.model.vocab_size) as loader:
        stacks = [Stack(CONFIG, StackShape(n_layers=n), loader) for n in (1, 2)]
        stored_bytes = [stack.run(small).stored_bytes for stack in stacks]
        with large_backward_passes_run_out_of_memory(rows=4):
            found = measure_rounds(ALONE, stacks, [small, large], 0.0, lambda _: None)
    assert found.shape == (2, 1, 2, 3)
    assert found[..., 2].tolist() == [[stored_bytes]] * 2
    assert (found > 0).all()


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    with sample_loader([16], CONFIG.model.vocab_size) as loader:
        stacks = [Stack(CONFIG, StackShape(n_layers=1), loader)]
        microbatches = [MicroBatch(((0,),) * n, 16) for n in (1, 2)]
        measure_rounds(ALONE, stacks, microbatches, 0.0, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
