"""Pipelines over processes give what one process gives, in float64 to rounding."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import pytest
import torch
from mpi4py import MPI
from tests.examples.equal_shares import equal_shares
from tests.examples.pipeline_training import assert_equal
from tests.examples.planned_iteration import planned_iteration
from tests.examples.training_case import (
    SHAPE,
    T5_SHAPE,
    Outcome,
    make_rank,
    over_replicas,
    random_samples,
    random_split,
    unsplit_training,
)

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.transport import mpi
from dynapipe_hpc.experiment.rank.channels import Channels, open_channels, open_torch_channels
from dynapipe_hpc.experiment.rank.devices import CPU, RankDevice
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.models.sharding.split import Split
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.module_stage import ModuleStage
from dynapipe_hpc.training.tied_copies import paired_stages, tied_weights

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
LIMIT_S = 60
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
ZERO_STAGES: tuple[Literal[0, 1], ...] = (0, 1)
CLUSTERS = [
    Cluster(
        n_stages=stages,
        n_replicas=SIZE // (stages * shards),
        n_shards=shards,
        sequence_parallel=shards > 1 and zero_stage == 1,
        device_memory_bytes=1_000_000,
        zero_stage=zero_stage,
    )
    for stages, shards in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4))
    for zero_stage in ZERO_STAGES
    if SIZE % (stages * shards) == 0
]
REDUCING = [c for c in CLUSTERS if c.n_shards == 1 < c.n_replicas and c.zero_stage == 0]
SOME = [c for c in CLUSTERS if c.zero_stage == 1]
ONE_FAMILY_EACH = [*((SHAPE, c) for c in SOME[::2]), *((T5_SHAPE, c) for c in SOME[1::2])]
DEVICES = [CPU, torch.device("cuda", 0)]
BATCHES = tuple(random_samples(seed, n=20) for seed in (1, 2, 3))
# For gloo, which takes milliseconds for every sum.
SMALL_BATCHES = tuple(random_samples(seed, n=10) for seed in (1, 2, 3))
MIXED = (Layout.PACKED, Layout.PADDED)


def name_of(cluster: Cluster) -> str:
    sizes = f"{cluster.n_stages}x{cluster.n_replicas}x{cluster.n_shards}"
    return f"{sizes} zero {cluster.zero_stage}{' spread' * cluster.sequence_parallel}"


def train(
    shape: ModelShape,
    cluster: Cluster,
    batches: Sequence[Sequence[Sample]],
    channels: Channels,
    device: torch.device = CPU,
    schedule: str = "adaptive",
    modes: Sequence[Recompute] = tuple(Recompute),
    layouts: Sequence[Layout] = (Layout.PADDED,),
) -> tuple[Outcome, dict[str, Split]]:
    """This rank's part of a training run; losses are the whole job's."""
    stage = cluster.stage_of(RANK)
    own = make_rank(cluster, stage, channels.collectives, shape=shape, device=device)
    outcome = Outcome([], [], {})
    for k, samples in enumerate(batches):
        own.tokens.start_iteration(samples)
        microbatches = random_split(samples, len(samples) * 2 // 5, k, modes, shape, layouts)
        replicas = over_replicas(microbatches, cluster.n_replicas)
        plans = planned_iteration(replicas, cluster, shape, schedule, k)
        trace = launch_plan(plans[cluster.plan_of(RANK)], own.stage, channels.transport).finish()
        outcome.losses.append(WORLD.allreduce(trace.loss) / cluster.n_shards)
        outcome.norms.append(trace.gradient_norm)
    outcome.tensors = {name: weights.cpu() for name, weights in own.weights().items()}
    return outcome, own.splits()


@cache
def unsplit(shape: ModelShape, *, is_small: bool) -> Outcome:
    return unsplit_training(SMALL_BATCHES if is_small else BATCHES, shape)


def own_part(shape: ModelShape, splits: dict[str, Split], *, is_small: bool = False) -> Outcome:
    """Result of one process with the unsplit model, of its weights this rank's part."""
    whole = unsplit(shape, is_small=is_small)
    parts = {name: split.part_of(whole.tensors[name]) for name, split in splits.items()}
    return replace(whole, tensors=parts)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=name_of)
@pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=lambda shape: shape.family)
def test_three_steps_give_the_unsplit_weights(shape: ModelShape, cluster: Cluster) -> None:
    channels = open_channels(
        Job(WORLD), cluster, RankDevice(CPU), torch.float64, holders=(), timeout_s=LIMIT_S
    )
    found, splits = train(shape, cluster, BATCHES, channels)
    assert_equal(found, own_part(shape, splits))


@pytest.mark.parametrize("cluster", SOME, ids=name_of)
@pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=lambda shape: shape.family)
def test_so_do_they_over_process_groups(shape: ModelShape, cluster: Cluster) -> None:
    tied = tied_weights(shape, equal_shares(shape, cluster), cluster.n_shards)
    holders = paired_stages(tied)
    channels = open_torch_channels(
        "gloo", Job(WORLD), cluster, CPU, dtype=torch.float64, holders=holders, timeout_s=LIMIT_S
    )
    found, splits = train(shape, cluster, SMALL_BATCHES, channels)
    channels.close()
    assert_equal(found, own_part(shape, splits, is_small=True))


@pytest.mark.parametrize(
    ("shape", "cluster"),
    ONE_FAMILY_EACH,
    ids=[f"{shape.family} {name_of(cluster)}" for shape, cluster in ONE_FAMILY_EACH],
)
@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.type)
def test_so_do_ranks_that_share_a_device(
    shape: ModelShape, cluster: Cluster, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none")
    if device.type == "cpu":
        monkeypatch.setattr(mpi, "to_host", torch.Tensor.clone)
    on = RankDevice(device, is_shared=True)
    channels = open_channels(Job(WORLD), cluster, on, torch.float64, holders=(), timeout_s=LIMIT_S)
    found, splits = train(shape, cluster, SMALL_BATCHES, channels, device)
    channels.close()
    assert_equal(found, own_part(shape, splits, is_small=True))


@pytest.mark.parametrize("schedule", ["zb_h1", "overtaking"])
@pytest.mark.parametrize("cluster", CLUSTERS, ids=name_of)
def test_so_do_split_passes_of_packed_and_padded_rows(cluster: Cluster, schedule: str) -> None:
    channels = open_channels(
        Job(WORLD), cluster, RankDevice(CPU), torch.float64, holders=(), timeout_s=LIMIT_S
    )
    found, splits = train(SHAPE, cluster, BATCHES, channels, schedule=schedule, layouts=MIXED)
    assert_equal(found, own_part(SHAPE, splits))


def noting(events: list[str], name: str, function: Callable[..., object]) -> Callable[..., object]:
    """The function, which notes when it begins and ends."""

    def noted(*arguments: object) -> object:
        events.append(f"{name} begins")
        result = function(*arguments)
        events.append(f"{name} ends")
        return result

    return noted


@pytest.mark.parametrize("schedule", ["zb_h1", "weights last"])
@pytest.mark.parametrize("cluster", REDUCING, ids=name_of)
def test_their_sums_over_replicas_start_within_the_last_second_half(
    cluster: Cluster, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = paired_stages(tied_weights(SHAPE, equal_shares(SHAPE, cluster), 1))
    channels = open_torch_channels(
        "gloo", Job(WORLD), cluster, CPU, dtype=torch.float64, holders=holders, timeout_s=LIMIT_S
    )
    events: list[str] = []
    for name in ("backward", "backward_weight"):
        noted = noting(events, name, getattr(ModuleStage, name))
        monkeypatch.setattr(ModuleStage, name, noted)
    sums = noting(events, "sum", channels.collectives.start_sum_over_replicas)
    monkeypatch.setattr(channels.collectives, "start_sum_over_replicas", sums)
    train(*(SHAPE, cluster, BATCHES[:1], channels, CPU, schedule, (Recompute.NONE,), MIXED))
    channels.close()
    assert events.count("backward ends") == events.count("backward_weight ends") > 1
    after_sum = events[events.index("sum begins") :]
    assert "backward begins" not in after_sum
    assert "backward_weight begins" not in after_sum
    assert after_sum.count("backward_weight ends") == 1  # the last, within which it began
