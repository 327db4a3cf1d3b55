"""Pipelines over processes give what one process gives, in float64 to rounding."""

from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from mpi4py import MPI
from tests.oracles.planned_iteration import planned_iteration
from tests.oracles.training_case import (
    SHAPE,
    T5_SHAPE,
    Outcome,
    make_rank,
    over_replicas,
    random_samples,
    random_split,
    unsplit_training,
)
from torch import Tensor

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.mpi_collectives import MpiCollectives
from dynapipe_hpc.executor.mpi_transport import MpiTransport
from dynapipe_hpc.executor.run import run_plan
from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.models.split import Split
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.schedule.config import RuleName

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
ZERO_STAGES: tuple[Literal[0, 1], ...] = (0, 1)
CLUSTERS = [
    Cluster(
        n_stages=stages,
        n_replicas=SIZE // (stages * shards),
        n_shards=shards,
        device_memory_bytes=1_000_000,
        zero_stage=zero_stage,
    )
    for stages, shards in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4))
    for zero_stage in ZERO_STAGES
    if SIZE % (stages * shards) == 0
]


def train(
    shape: ModelShape, cluster: Cluster, batches: Sequence[Sequence[Sample]], schedule: RuleName
) -> tuple[Outcome, dict[str, Split]]:
    """This rank's part of a training run; losses are the whole job's."""
    collectives = MpiCollectives(WORLD, cluster)
    own = make_rank(cluster, cluster.stage_of(RANK), collectives, shape=shape)
    same_shard = Job(WORLD).divide(cluster.shard_of(RANK)).comm
    transport = MpiTransport(same_shard, torch.float64)
    outcome = Outcome([], [], {})
    for k, samples in enumerate(batches):
        own.tokens.start_iteration(samples)
        microbatches = random_split(samples, 8, k, tuple(Recompute), shape)
        replicas = over_replicas(microbatches, cluster.n_replicas)
        plans = planned_iteration(replicas, cluster, shape, schedule, k)
        trace = run_plan(plans[cluster.plan_of(RANK)], own.stage, transport)
        outcome.losses.append(WORLD.allreduce(trace.loss) / cluster.n_shards)
        outcome.norms.append(trace.gradient_norm)
    outcome.tensors = own.weights()
    return outcome, own.splits()


def close(actual: Tensor, expected: Tensor) -> bool:
    scale = float(expected.abs().max())
    return torch.allclose(actual, expected, rtol=1e-10, atol=1e-12 * scale + 1e-15)


@pytest.mark.parametrize(
    "cluster",
    CLUSTERS,
    ids=lambda c: f"{c.n_stages}x{c.n_replicas}x{c.n_shards} zero {c.zero_stage}",
)
@pytest.mark.parametrize("schedule", ["1f1b", "adaptive"])
@pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=lambda shape: shape.family)
def test_three_steps_give_the_unsplit_weights(
    shape: ModelShape, cluster: Cluster, schedule: RuleName
) -> None:
    batches = [random_samples(seed, n=20) for seed in (1, 2, 3)]
    found, splits = train(shape, cluster, batches, schedule)
    expected = unsplit_training(batches, shape)
    assert found.losses == pytest.approx(expected.losses, rel=1e-10)
    assert found.norms == pytest.approx(expected.norms, rel=1e-10)
    parts = {name: split.part_of(expected.tensors[name]) for name, split in splits.items()}
    assert [n for n, t in found.tensors.items() if not close(t, parts[n])] == []
