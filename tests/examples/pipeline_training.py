"""Training in a pipeline of threads, put together to compare it with the unsplit model."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from tests.examples.local_ranks import LocalCollectives, LocalNetwork, LocalSums, LocalWorld
from tests.examples.planned_iteration import planned_iteration
from tests.examples.training_case import (
    SHAPE,
    Loading,
    Outcome,
    Rank,
    make_rank,
    over_replicas,
    random_split,
)
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Layout, MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import IterationTrace, launch_plan
from dynapipe_hpc.models.sharding.shards import Split
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import InstructionRows, StepOptimizer
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.objective import PreferenceLoss

MODES: dict[str, tuple[Recompute, ...]] = {mode.text: (mode,) for mode in Recompute}
MODES["mixed"] = tuple(Recompute)


def assert_equal(found: Outcome, expected: Outcome) -> None:
    """Compares losses, norms where known, and tensors, in float64 to rounding."""
    assert found.losses == pytest.approx(expected.losses, rel=1e-10)
    if expected.norms:
        assert found.norms == pytest.approx(expected.norms, rel=1e-10)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        scale = float(tensor.abs().max())
        torch.testing.assert_close(
            found.tensors[name], tensor, rtol=1e-10, atol=1e-12 * scale + 1e-15, msg=name
        )


def networks_of(
    world: LocalWorld, cluster: Cluster, dtype: torch.dtype
) -> list[LocalNetwork[Tensor]]:
    """One for the ranks of each shard."""
    return [
        LocalNetwork(
            world,
            lambda shape: torch.empty(shape, dtype=dtype),
            [rank for rank in range(cluster.n_ranks) if cluster.shard_of(rank) == shard],
        )
        for shard in range(cluster.n_shards)
    ]


def train(
    cluster: Cluster,
    iterations: Sequence[tuple[Sequence[Sample], Sequence[RankPlan]]],
    result: Callable[[Rank], dict[str, Tensor]],
    weighting: LossWeighting = "token",
    loading: Loading = lambda loader: loader,
    dtype: torch.dtype = torch.float64,
    shape: ModelShape = SHAPE,
    objective: Callable[[], PreferenceLoss | None] = lambda: None,
) -> Outcome:
    """Executes plans on threads and puts the ranks' tensors together."""
    world = LocalWorld(cluster.n_ranks)
    networks = networks_of(world, cluster, dtype)
    sums = LocalSums(world, cluster)

    def work(rank: int) -> tuple[list[IterationTrace], dict[str, Tensor], dict[str, Split]]:
        collectives = LocalCollectives(sums, rank)
        stage = cluster.stage_of(rank)
        own = make_rank(
            cluster, stage, collectives, weighting, loading, dtype, shape, objective=objective()
        )
        transport = networks[cluster.shard_of(rank)].transport(cluster.plan_of(rank))
        traces = []
        for iteration, (samples, plans) in enumerate(iterations):
            own.tokens.start_iteration(samples, iteration)
            traces.append(launch_plan(plans[cluster.plan_of(rank)], own.stage, transport).finish())
        return traces, result(own), own.splits()

    traces, tensors, splits = zip(*world.run(work), strict=True)
    iterations_of_ranks = list(zip(*traces, strict=True))
    for of_ranks in iterations_of_ranks:
        assert len({repr(trace.gradient_norm) for trace in of_ranks}) == 1  # NaN, too
    return Outcome(
        [
            sum(trace.loss for trace in of_ranks[:: cluster.n_shards])
            for of_ranks in iterations_of_ranks
        ],
        [of_ranks[0].gradient_norm for of_ranks in iterations_of_ranks],
        _joined(tensors, splits),
    )


def _joined(
    of_ranks: Sequence[dict[str, Tensor]], splits: Sequence[dict[str, Split]]
) -> dict[str, Tensor]:
    """The whole model; where ranks hold the same part of it, they hold the same bits."""
    joined: dict[str, Tensor] = {}
    for tensors, split_of in zip(of_ranks, splits, strict=True):
        for name, tensor in tensors.items():
            split, flat = split_of[name], tensor.flatten()
            shape = split.whole_shape(tensor.shape)
            whole = joined.setdefault(name, torch.full(shape, torch.nan, dtype=tensor.dtype))
            numbers = split.part_of(torch.arange(1, whole.numel() + 1).view(shape)).flatten()
            assert not flat[numbers == 0].any(), name
            flat, places = flat[numbers > 0], numbers[numbers > 0] - 1
            known = whole.view(-1)[places]
            assert torch.equal(torch.where(known.isnan(), flat, known), flat), name
            whole.view(-1)[places] = flat
    assert not any(tensor.isnan().any() for tensor in joined.values())
    return joined


def without_update(plans: Sequence[RankPlan]) -> list[RankPlan]:
    """The update would clear the gradients."""
    assert all(isinstance(plan.instructions[-1], StepOptimizer) for plan in plans)
    return [
        replace(plan, instructions=InstructionRows(plan.instructions.table[:-1])) for plan in plans
    ]


def gradients(
    cluster: Cluster,
    schedule: str,
    samples: Sequence[Sample],
    microbatches: Sequence[MicroBatch],
    weighting: LossWeighting = "token",
    loading: Loading = lambda loader: loader,
    shape: ModelShape = SHAPE,
) -> Outcome:
    replicas = over_replicas(microbatches, cluster.n_replicas)
    plans = without_update(planned_iteration(replicas, cluster, shape, schedule))
    iterations = [(samples, plans)]
    return train(cluster, iterations, Rank.gradients, weighting, loading, shape=shape)


def three_steps(
    cluster: Cluster,
    schedule: str,
    batches: Sequence[Sequence[Sample]],
    modes: Sequence[Recompute] = (Recompute.NONE,),
    dtype: torch.dtype = torch.float64,
    shape: ModelShape = SHAPE,
    layouts: Sequence[Layout] = (Layout.PADDED,),
) -> Outcome:
    """The weights after a step on each batch, split at random into five micro-batches."""
    iterations = []
    for k, samples in enumerate(batches):
        microbatches = random_split(samples, 5, k, modes, shape, layouts)
        replicas = over_replicas(microbatches, cluster.n_replicas)
        plans = planned_iteration(replicas, cluster, shape, schedule, iteration=k)
        iterations.append((samples, plans))
    return train(cluster, iterations, Rank.weights, dtype=dtype, shape=shape)


def clusters(*sizes: tuple[int, int, int]) -> list[Cluster]:
    return [
        Cluster(n_stages=stages, n_replicas=replicas, n_shards=shards, device_memory_bytes=10**6)
        for stages, replicas, shards in sizes
    ]


def spread(those: Sequence[Cluster]) -> list[Cluster]:
    """Clusters that have shards, which also divide the residual stream among them."""
    return [c.model_copy(update={"sequence_parallel": True}) for c in those if c.n_shards > 1]


def id_of(cluster: Cluster) -> str:
    sizes = f"{cluster.n_stages} stages x {cluster.n_replicas} replicas x {cluster.n_shards} shards"
    return f"{sizes}, spread" if cluster.sequence_parallel else sizes


def each_of(those: Sequence[Cluster]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cluster", those, ids=id_of)
