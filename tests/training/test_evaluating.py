"""Evaluations in pipelines of threads give the losses of plain operations, sample by sample."""

from functools import cache

import pytest
import torch
from tests.examples.baselines import naive
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import linear_cost
from tests.examples.local_ranks import LocalCollectives, LocalNetwork, LocalSums, LocalWorld
from tests.examples.training_case import (
    MAX_TOKENS,
    SHAPE,
    START_ID,
    T5_SHAPE,
    RandomTokens,
    Rank,
    make_rank,
    padded,
    random_samples,
    unsplit_training,
)
from tests.oracles.plain_models import gpt_losses, t5_losses
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.models import head
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.batch.memory import DoesNotFitError
from dynapipe_hpc.planner.batch.slice_rule import SliceSetting
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.token_loader import Collate, TokenLoader

BATCHES = [random_samples(seed, 6) for seed in (8, 9)]
DROPPING = SHAPE.model_copy(update={"dropout": 0.5})  # in training, not in evaluation
SAMPLES = [sample for batch in BATCHES for sample in batch]
ALONE = Cluster(device_memory_bytes=10**6)

CLUSTERS = {
    "one rank": ALONE,
    "2 stages x 2 replicas": Cluster(n_stages=2, n_replicas=2, device_memory_bytes=10**6),
    "4 stages": Cluster(n_stages=4, device_memory_bytes=10**6),
    "2 stages x 2 shards, tokens divided": Cluster(
        n_stages=2, n_shards=2, sequence_parallel=True, device_memory_bytes=10**6
    ),
}


def planner_of(
    cluster: Cluster, shape: ModelShape, layout: LayoutName, slices: SliceSetting = "off"
) -> Planner:
    cost = linear_cost(
        launch_ms=(0.1,) * cluster.n_stages,
        token_ms=(0.01,) * cluster.n_stages,
        has_targets=shape.has_target_rows,
        cached_bytes=1.0,
    )
    boundaries = equal_shares(shape, cluster).boundaries(shape)
    trained = Planner(
        Baseline(naive(1), [], cost, cluster), cost, cluster, shape.hidden_size, boundaries
    )
    return trained.of_evaluation(DynamicConfig(layouts=(layout,), slices=slices))


def evaluate(rank: Rank, plans: list[RankPlan], transport: Transport[Tensor]) -> Tensor:
    collate: Collate = rank.module.collate
    loader = TokenLoader(RandomTokens(), START_ID, "token", collate)
    loader.start_iteration(SAMPLES)
    with rank.stage.evaluating(loader, SAMPLES) as losses:
        for plan in plans:
            launch_plan(plan, rank.stage, transport).finish()
    return losses


@cache
def expected(shape: ModelShape) -> Tensor:
    """Sums of losses and numbers of target tokens, by plain operations."""
    weights = make_rank(ALONE, 0, SingleRankCollectives(), shape=shape).weights()
    losses_of = t5_losses if shape.family == "t5" else gpt_losses
    model, read = shape.model_dump(), RandomTokens()
    sums = []
    for sample in SAMPLES:
        inputs, targets = (side.tolist() for side in read(sample)[:2])
        sums.append(float(losses_of(weights, model, inputs, targets, START_ID).sum()))
    counts = [float(sample.target_tokens) for sample in SAMPLES]
    return torch.tensor([sums, counts], dtype=torch.float64)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("shape", [SHAPE, DROPPING, T5_SHAPE], ids=["gpt", "dropout", "t5"])
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_losses_of_samples_are_those_of_plain_operations(
    cluster: Cluster, shape: ModelShape, layout: LayoutName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 100)  # several chunks of ids
    planner = planner_of(cluster, shape, layout)
    plans = [planner.make_plans(k, batch) for k, batch in enumerate(BATCHES)]
    found = evaluated(cluster, shape, plans)
    torch.testing.assert_close(found, expected(shape), rtol=1e-11, atol=0)


def test_samples_that_do_not_fit_are_evaluated_as_slices() -> None:
    n_bytes = 20 + MAX_TOKENS  # 2.5 per token of a slice, and the keys and values of all tokens
    cluster = CLUSTERS["2 stages x 2 replicas"].model_copy(update={"device_memory_bytes": n_bytes})
    with pytest.raises(DoesNotFitError):
        planner_of(cluster, SHAPE, "packed").make_plans(0, BATCHES[0])
    planner = planner_of(cluster, SHAPE, "packed", slices=8)
    plans = [planner.make_plans(k, batch) for k, batch in enumerate(BATCHES)]
    of_slices = {
        plan.memory.forward_transient[index]
        for of_batch in plans
        for plan in of_batch
        for index, microbatch in enumerate(plan.microbatches)
        if microbatch.slice and microbatch.slice.n_tokens == MAX_TOKENS
    }
    assert of_slices == {n_bytes}
    found = evaluated(cluster, SHAPE, plans)
    torch.testing.assert_close(found, expected(SHAPE), rtol=1e-11, atol=0)


def evaluated(cluster: Cluster, shape: ModelShape, plans: list[list[RankPlan]]) -> Tensor:
    """Sums of losses and numbers of target tokens, added up over all ranks."""
    world = LocalWorld(cluster.n_ranks)
    networks = [
        LocalNetwork(
            world,
            lambda shape: torch.empty(shape, dtype=torch.float64),
            [rank for rank in range(cluster.n_ranks) if cluster.shard_of(rank) == shard],
        )
        for shard in range(cluster.n_shards)
    ]
    sums = LocalSums(world, cluster)

    def work(rank: int) -> Tensor:
        stage, own = cluster.stage_of(rank), cluster.plan_of(rank)
        part = make_rank(cluster, stage, LocalCollectives(sums, rank), shape=shape)
        transport = networks[cluster.shard_of(rank)].transport(own)
        return evaluate(part, [of_batch[own] for of_batch in plans], transport)

    tables = world.run(work)
    found = torch.zeros(2, len(SAMPLES), dtype=torch.float64)
    for rank, table in enumerate(tables):
        if cluster.stage_of(rank) < cluster.n_stages - 1:
            assert not table.any()
        elif cluster.shard_of(rank) == 0:
            found += table
    return found


def test_training_does_not_notice_an_evaluation() -> None:
    planner = planner_of(ALONE, SHAPE, "padded")
    plans = [planner.make_plans(k, batch)[0] for k, batch in enumerate(BATCHES)]
    network = LocalNetwork(LocalWorld(1), torch.empty, [0])
    rank = make_rank(ALONE, 0, SingleRankCollectives())
    losses, evaluated = [], []
    for batch in BATCHES:
        rank.tokens.start_iteration(batch)  # as the host does before the evaluation, too
        evaluated.append(evaluate(rank, plans, network.transport(0)))
        rank.stage.load(0, padded(batch))
        rank.stage.forward(0, None)
        rank.stage.backward(0, None)
        rank.stage.step_optimizer()
        losses.append(rank.stage.finish_iteration().loss)
    undisturbed = unsplit_training(BATCHES)
    assert losses == undisturbed.losses
    assert all(torch.equal(weight, undisturbed.tensors[n]) for n, weight in rank.weights().items())
    assert not torch.equal(*evaluated)  # it has learnt
