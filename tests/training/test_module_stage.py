"""A stage and its passes, whole and split, and what they import."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import linear_cost, naive
from tests.examples.local_ranks import LocalCollectives, LocalNetwork, LocalSums, LocalWorld
from tests.examples.pipeline_training import networks_of
from tests.examples.training_case import (
    MAX_TOKENS,
    SHAPE,
    START_ID,
    T5_SHAPE,
    RandomTokens,
    Rank,
    make_rank,
    packed,
    padded,
    random_samples,
    unsplit_training,
)
from tests.jobs.command_line import run_python
from tests.oracles.plain_models import gpt_losses, t5_losses
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.models import head
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.batch.memory import DoesNotFitError
from dynapipe_hpc.planner.batch.slice_rule import SliceSetting
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.token_loader import Collate, TokenLoader

SAMPLES = random_samples(1)
BATCH = padded(SAMPLES)
TWO_STAGES = Cluster(n_stages=2, device_memory_bytes=1)


def rank_of(stage: int) -> Rank:
    rank = make_rank(TWO_STAGES, stage, SingleRankCollectives())
    rank.tokens.start_iteration(SAMPLES)
    return rank


every_mode = pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)


@every_mode
@pytest.mark.parametrize("whole", [BATCH, packed(SAMPLES)], ids=lambda batch: batch.layout.text)
def test_recomputing_does_not_change_a_bit(whole: MicroBatch, mode: Recompute) -> None:
    ranks = [rank_of(1), rank_of(1)]
    activation = torch.ones(whole.n_rows, whole.row_tokens, SHAPE.hidden_size, dtype=torch.float64)
    sent = []
    for rank, batch in zip(ranks, (whole, replace(whole, recompute=mode)), strict=True):
        rank.stage.load(0, batch)
        rank.stage.forward(0, activation)
        sent.append(rank.stage.backward(0, None))
    assert sent[0] is not None
    assert sent[1] is not None
    assert torch.equal(sent[0], sent[1])
    for name, gradient in ranks[0].gradients().items():
        assert torch.equal(ranks[1].gradients()[name], gradient), name


CLUSTER = Cluster(n_stages=3, device_memory_bytes=1)
PACKED = packed(SAMPLES, fill=3)
every_batch = pytest.mark.parametrize(
    ("shape", "batch"),
    [(SHAPE, padded(SAMPLES)), (SHAPE, PACKED), (T5_SHAPE, padded(SAMPLES, T5_SHAPE))],
    ids=["gpt", "gpt, packed", "t5"],
)
every_stage = pytest.mark.parametrize("stage", [0, 1, 2])


def split_rank(shape: ModelShape, stage: int, dtype: torch.dtype = torch.float64) -> Rank:
    collectives = SingleRankCollectives()
    collectives.stage = stage
    rank = make_rank(CLUSTER, stage, collectives, dtype=dtype, shape=shape)
    rank.tokens.start_iteration(SAMPLES)
    return rank


def boundary(rank: Rank, shape: ModelShape, stage: int, batch: MicroBatch) -> Tensor:
    """Boundary that the stage receives or, if it is one less, sends."""
    tokens = batch.row_tokens
    # Of three encoder and three decoder layers, the middle stage holds the last of one side.
    if shape is T5_SHAPE and stage > 1:
        tokens += batch.target_tokens
    stream = torch.Generator().manual_seed(stage)
    dtype = next(rank.module.parameters()).dtype
    sizes = (batch.n_rows, tokens, shape.hidden_size)
    return torch.randn(sizes, generator=stream, dtype=torch.float64).to(dtype)


def ends(
    rank: Rank, shape: ModelShape, stage: int, batch: MicroBatch
) -> tuple[Tensor | None, Tensor | None]:
    """The activation and the gradient that the neighbours send."""
    received = None if stage == 0 else boundary(rank, shape, stage, batch)
    returned = None if stage == 2 else boundary(rank, shape, stage + 1, batch)
    return received, returned


@every_batch
@every_stage
@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        (Recompute.NONE, torch.float64),
        (Recompute.NONE, torch.bfloat16),
        (Recompute.SELECTIVE, torch.bfloat16),
    ],
    ids=["float64", "bfloat16", "bfloat16, selective"],
)
def test_gradients_are_those_of_whole_passes_bit_for_bit(
    shape: ModelShape, batch: MicroBatch, stage: int, mode: Recompute, dtype: torch.dtype
) -> None:
    batch = replace(batch, recompute=mode)
    found = []
    for split in (False, True):
        rank = split_rank(shape, stage, dtype)
        received, returned = ends(rank, shape, stage, batch)
        sent = []
        for i in (0, 1):  # the second comes while the first one's weights wait
            rank.stage.load(i, batch)
            rank.stage.forward(i, received, split_backward=split)
            sent.append(rank.stage.backward(i, returned))
        if split:
            for i in (0, 1):
                rank.stage.backward_weight(i)
        found.append((sent, rank.gradients()))
    (whole_sent, whole), (split_sent, halves) = found
    for one, other in zip(whole_sent, split_sent, strict=True):
        assert (one is None) == (other is None) == (stage == 0)
        if one is not None and other is not None:
            assert torch.equal(one, other)
    for name, gradient in whole.items():
        assert torch.equal(halves[name], gradient), name


@every_batch
@every_stage
@every_mode
def test_what_waits_is_no_more_than_what_the_forward_pass_kept(
    shape: ModelShape, batch: MicroBatch, stage: int, mode: Recompute
) -> None:
    batch = replace(batch, recompute=mode)
    rank = split_rank(shape, stage)
    received, returned = ends(rank, shape, stage, batch)
    rank.stage.load(0, batch)
    with LiveMemory() as live:
        rank.stage.forward(0, received, split_backward=True)
        kept_bytes, planned_bytes = live.live_bytes, rank.stage.finish_iteration().peak_bytes
        rank.stage.backward(0, returned)
        waiting_bytes = live.live_bytes
        rank.stage.finish_iteration()  # a new account, of what is kept now
        accounted_bytes = rank.stage.finish_iteration().peak_bytes
        rank.stage.backward_weight(0)
        assert live.live_bytes == 0
    rank.stage.finish_iteration()
    assert rank.stage.finish_iteration().peak_bytes == 0
    assert waiting_bytes <= kept_bytes
    # The account counts the gradient that came from the next stage, too.
    came_bytes = 0 if returned is None else returned.nbytes
    assert waiting_bytes <= accounted_bytes <= min(waiting_bytes + came_bytes, planned_bytes)
    if mode is Recompute.FULL:
        assert accounted_bytes == 0


class TwoAlike(SingleRankCollectives):
    """A replica with a twin; counts sums that start beside other work."""

    n_replicas = 2
    sums_beside_work = True

    def __init__(self) -> None:
        self.n_started = 0

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:  # noqa: ARG002
        self.n_started += 1
        return lambda: None


def test_every_second_half_adds_what_its_own_micro_batch_has_left() -> None:
    batches: list[MicroBatch] = [padded(SAMPLES[:6]), packed(SAMPLES[6:], fill=5)]
    found = []
    for held in (batches, batches[1:]):
        rank = split_rank(SHAPE, 1)
        for i, batch in enumerate(held):
            received, returned = ends(rank, SHAPE, 1, batch)
            rank.stage.load(i, batch)
            rank.stage.forward(i, received, split_backward=True)
            rank.stage.backward(i, returned)
        rank.stage.backward_weight(len(held) - 1)
        found.append({name: g for name, g in rank.gradients().items() if g.ndim == 2})
    for name, gradient in found[1].items():
        assert gradient.any()
        torch.testing.assert_close(found[0][name], gradient, rtol=1e-9, atol=1e-12, msg=name)


@every_mode
def test_sums_over_replicas_start_as_soon_as_no_gradient_is_missing(mode: Recompute) -> None:
    batch, collectives = replace(padded(SAMPLES), recompute=mode), TwoAlike()
    rank = make_rank(CLUSTER, 1, collectives)
    received, returned = ends(rank, SHAPE, 1, batch)
    rank.stage.load(0, batch)
    rank.stage.forward(0, received, split_backward=True)
    rank.stage.backward(0, returned)
    assert collectives.n_started == 0
    rank.stage.expect_last_backward(0)
    assert collectives.n_started == (mode is Recompute.FULL)
    rank.stage.backward_weight(0)
    assert collectives.n_started == 1


BATCHES = [random_samples(seed, 6) for seed in (8, 9)]
DROPPING = SHAPE.model_copy(update={"dropout": 0.5})  # in training, not in evaluation
EVALUATED = [sample for batch in BATCHES for sample in batch]
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
    loader.start_iteration(EVALUATED)
    with rank.stage.evaluating(loader, EVALUATED) as losses:
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
    for sample in EVALUATED:
        inputs, targets = (side.tolist() for side in read(sample)[:2])
        sums.append(float(losses_of(weights, model, inputs, targets, START_ID).sum()))
    counts = [float(sample.target_tokens) for sample in EVALUATED]
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
    networks = networks_of(world, cluster, torch.float64)
    sums = LocalSums(world, cluster)

    def work(rank: int) -> Tensor:
        stage, own = cluster.stage_of(rank), cluster.plan_of(rank)
        part = make_rank(cluster, stage, LocalCollectives(sums, rank), shape=shape)
        transport = networks[cluster.shard_of(rank)].transport(own)
        return evaluate(part, [of_batch[own] for of_batch in plans], transport)

    tables = world.run(work)
    found = torch.zeros(2, len(EVALUATED), dtype=torch.float64)
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


PROGRAM = """\
import json, sys
from tests.examples.training_case import SHAPE, T5_SHAPE, make_rank, padded, random_samples
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives

samples = random_samples(1)
for shape in (SHAPE, T5_SHAPE):
    rank = make_rank(Cluster(device_memory_bytes=1), 0, SingleRankCollectives(), shape=shape)
    rank.tokens.start_iteration(samples)
    for split_backward in (False, True):
        rank.stage.load(0, padded(samples, shape))
        rank.stage.forward(0, None, split_backward=split_backward)
        rank.stage.backward(0, None)
    rank.stage.backward_weight(0)
    rank.stage.step_optimizer()
    assert rank.stage.finish_iteration().loss > 0
slow = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy")
print(json.dumps([name for name in slow if name in sys.modules]))
"""


def test_a_rank_trains_without_torchs_compiler() -> None:
    ended = run_python(PROGRAM, folder=Path(__file__).parents[2])
    assert ended.stdout == "[]\n", ended.stderr
