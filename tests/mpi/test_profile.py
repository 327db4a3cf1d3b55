from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from tests.jobs.tiny_experiment import tiny_experiment, with_keys
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
)

from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.profile import profile
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.models.sharding.sharded_linear import RowLinear
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.profile_table import PADDED, LayerKey, ProfileTable

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(("n_shards", "spread"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("n_stages", [1, 2])
def test_ranks_measure_together_and_the_first_has_the_table(
    n_stages: int, n_shards: int, spread: bool
) -> None:
    job = Job(MPI.COMM_WORLD)
    if job.size % (n_stages * n_shards):
        pytest.skip(f"{job.size} ranks do not make {n_stages} stages of {n_shards} shards")
    config = tiny_experiment(n_stages, job.size // (n_stages * n_shards), n_shards)
    config = with_keys(config, cluster={"sequence_parallel": spread})
    grid = ProfileGrid.from_config(config, max_tokens=32)
    table = profile(job, config, grid, repetition_s=0.0, on_progress=lambda _: None)
    if job.is_first:
        assert (table.link is not None) == (n_stages > 1)
        assert {key.tensor_parallel for key in table.layers} == {n_shards}
        _check_kept_bytes(table, config)
        profiled_cost(
            table,
            config.model,
            any_placement(config),
            config.cluster,
            config=ProfiledConfig(path=Path("t.h5")),
        )
        assert table.update.optimizer_ms_per_byte > 0
        assert table.provenance["ranks"] == str(job.size)


def _check_kept_bytes(table: ProfileTable, config: ExperimentConfig) -> None:
    """A layer has kept what its architecture says, and little more."""
    cluster, model = config.cluster, config.model
    part = model.parts(cluster.n_shards, cluster.n_stream_shards)[LAYER]
    layer = table.layers[LayerKey(cluster.n_shards, "none", LAYER)]
    rows, tokens = layer.axes
    per_token = part.kept_bytes(Recompute.NONE, table.element_bytes).per_own
    kept = layer.stored_bytes / (rows[:, np.newaxis] * tokens)
    few = 4 * (4 / cluster.n_stream_shards + model.n_heads / cluster.n_shards)
    known = kept[np.isfinite(kept)]
    assert np.abs(known - per_token - few).max() <= 1


@contextmanager
def running_out_of_memory(backward: bool, rows: int) -> Iterator[None]:
    """Asks for memory that no machine has, in passes of so many rows or more."""

    def ask(module: nn.Module, tensors: tuple[Tensor, ...]) -> None:
        if isinstance(module, RowLinear) and len(tensors[0]) >= rows:
            torch.empty(1 << 60)

    handle = (
        register_module_full_backward_hook(lambda module, _, gradients: ask(module, gradients))
        if backward
        else register_module_forward_pre_hook(ask)
    )
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")  # at the embedding
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_what_one_shard_has_no_memory_for_all_leave_out(backward: bool) -> None:
    job = Job(MPI.COMM_WORLD)
    if job.size % 2:
        pytest.skip("needs two shards")
    config = tiny_experiment(job.size // 2, n_shards=2)
    grid = ProfileGrid.from_config(config, max_tokens=64)
    poor = job.rank == job.size - 1
    with running_out_of_memory(backward, rows=2 if poor else 1000):
        table = profile(job, config, grid, repetition_s=0.0, on_progress=lambda _: None)
    padded = {k: v for k, v in table.layers.items() if k.layout == PADDED}
    for layer in padded.values():
        measured = np.isfinite(layer.forward_ms)
        # Smallest first, up to the first of two rows.
        assert measured.sum() == measured[0].sum() > 0
