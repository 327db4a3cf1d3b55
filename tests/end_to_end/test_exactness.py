"""Training in a pipeline gives what training without one gives, in float64 to rounding."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from tests.oracles.planned_iteration import planned_iteration
from tests.oracles.training_case import (
    SHAPE,
    Loading,
    Outcome,
    Rank,
    make_rank,
    over_replicas,
    padded,
    random_samples,
    random_split,
    unsplit_gradients,
    unsplit_training,
)
from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.local_collectives import LocalCollectives, LocalSums
from dynapipe_hpc.executor.local_transport import LocalNetwork
from dynapipe_hpc.executor.local_world import LocalWorld
from dynapipe_hpc.executor.run import run_plan
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.models.collate import TokenBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import StepOptimizer
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.schedule.config import RuleName
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.token_loader import TokenLoader

CLUSTERS = [
    Cluster(n_stages=stages, n_replicas=replicas, device_memory_bytes=1_000_000)
    for stages in (1, 2, 4)
    for replicas in (1, 2)
]
every_cluster = pytest.mark.parametrize(
    "cluster", CLUSTERS, ids=lambda c: f"{c.n_stages} stages x {c.n_replicas} replicas"
)
every_schedule = pytest.mark.parametrize("schedule", ["1f1b", "cyclic"])


def close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        scale = float(tensor.abs().max())
        torch.testing.assert_close(
            actual[name], tensor, rtol=1e-10, atol=1e-12 * scale + 1e-15, msg=name
        )


def train(
    cluster: Cluster,
    iterations: Sequence[tuple[Sequence[Sample], Sequence[RankPlan]]],
    result: Callable[[Rank], dict[str, Tensor]],
    weighting: LossWeighting = "token",
    loading: Loading = lambda loader: loader,
) -> Outcome:
    """Executes plans on threads and puts the ranks' tensors together."""
    world = LocalWorld(cluster.n_ranks)
    network = LocalNetwork(world, lambda shape: torch.empty(shape, dtype=torch.float64))
    sums = LocalSums(world, cluster)

    def work(rank: int) -> tuple[list[IterationTrace], dict[str, Tensor]]:
        collectives = LocalCollectives(sums, rank)
        own = make_rank(cluster, cluster.stage_of(rank), collectives, weighting, loading)
        transport = network.transport(rank)
        traces = []
        for samples, plans in iterations:
            own.tokens.start_iteration(samples)
            traces.append(run_plan(plans[rank], own.stage, transport))
        return traces, result(own)

    traces, tensors = zip(*world.run(work), strict=True)
    return Outcome(
        [sum(trace.loss for trace in of_ranks) for of_ranks in zip(*traces, strict=True)],
        [of_ranks[0].gradient_norm for of_ranks in zip(*traces, strict=True)],
        _joined(tensors),
    )


def _joined(of_ranks: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The whole model; replicas hold the same bits."""
    joined: dict[str, Tensor] = {}
    for tensors in of_ranks:
        for name, tensor in tensors.items():
            assert torch.equal(joined.setdefault(name, tensor), tensor)
    return joined


def without_update(plans: Sequence[RankPlan]) -> list[RankPlan]:
    """The update would clear the gradients."""
    assert all(isinstance(plan.instructions[-1], StepOptimizer) for plan in plans)
    return [replace(plan, instructions=plan.instructions[:-1]) for plan in plans]


def gradients(
    cluster: Cluster,
    schedule: RuleName,
    samples: Sequence[Sample],
    microbatches: Sequence[MicroBatch],
    weighting: LossWeighting = "token",
    loading: Loading = lambda loader: loader,
) -> Outcome:
    replicas = over_replicas(microbatches, cluster.n_replicas)
    plans = without_update(planned_iteration(replicas, cluster, SHAPE.hidden_size, schedule))
    return train(cluster, [(samples, plans)], Rank.gradients, weighting, loading)


@every_cluster
@every_schedule
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_loss_and_every_gradient_are_those_of_the_unsplit_model(
    cluster: Cluster, schedule: RuleName, seed: int
) -> None:
    samples = random_samples(seed)
    found = gradients(cluster, schedule, samples, random_split(samples, 6, seed))
    expected = unsplit_gradients(samples, padded(samples))
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)
    close(found.tensors, expected.tensors)


@every_cluster
@every_schedule
def test_three_steps_of_the_optimizer_give_the_unsplit_weights(
    cluster: Cluster, schedule: RuleName
) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    plans = [
        planned_iteration(
            over_replicas(random_split(samples, 5, k), cluster.n_replicas),
            cluster,
            SHAPE.hidden_size,
            schedule,
            iteration=k,
        )
        for k, samples in enumerate(batches)
    ]
    found = train(cluster, list(zip(batches, plans, strict=True)), Rank.weights)
    expected = unsplit_training(batches)
    assert found.losses == pytest.approx(expected.losses, rel=1e-10)
    assert found.norms == pytest.approx(expected.norms, rel=1e-10)
    close(found.tensors, expected.tensors)


@pytest.mark.parametrize("weighting", ["sample", "task"])
def test_other_weights_of_the_loss_are_exact_too(weighting: LossWeighting) -> None:
    samples = random_samples(7)
    found = gradients(CLUSTERS[3], "1f1b", samples, random_split(samples, 6, 7), weighting)
    expected = unsplit_gradients(samples, padded(samples), weighting)
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)
    close(found.tensors, expected.tensors)


@every_schedule
def test_densely_packed_rows_equal_the_same_rows_unsplit(schedule: RuleName) -> None:
    samples = random_samples(8)
    rows: list[tuple[int, ...]] = [(s.sample_id,) for s in samples if s.tokens > 12]
    short = [s.sample_id for s in samples if s.tokens <= 12]
    rows += [tuple(short[i : i + 2]) for i in range(0, len(short), 2)]
    microbatches = [MicroBatch(tuple(rows[i::4]), 24) for i in range(4)]
    found = gradients(CLUSTERS[3], schedule, samples, microbatches)
    expected = unsplit_gradients(samples, MicroBatch(tuple(rows), 24))
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)
    close(found.tensors, expected.tensors)


def random_padding(loader: TokenLoader) -> Callable[[MicroBatch], TokenBatch]:
    """Loads with random tokens and labels where no sample is."""

    def load(microbatch: MicroBatch) -> TokenBatch:
        read = loader(microbatch)
        for row, (sample_id,) in enumerate(microbatch.rows):
            end = SAMPLES[sample_id].tokens
            read.tokens[row, end:].random_(0, 31)
            read.labels[row, end:].random_(0, 31)
        return read

    return load


SAMPLES = {sample.sample_id: sample for sample in random_samples(9)}


def test_what_padding_holds_does_not_change_a_bit() -> None:
    samples = list(SAMPLES.values())
    microbatches = random_split(samples, 5, 9)
    plain = gradients(CLUSTERS[3], "1f1b", samples, microbatches)
    noisy = gradients(CLUSTERS[3], "1f1b", samples, microbatches, loading=random_padding)
    assert noisy.losses == plain.losses
    for name, gradient in plain.tensors.items():
        assert torch.equal(noisy.tensors[name], gradient), name
