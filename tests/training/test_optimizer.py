"""The optimizer, its AdamW and the buffers that it works on."""

import gc
import math
import weakref
from collections.abc import Callable

import pytest
import torch
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from tests.examples.training_case import SHAPE, T5_SHAPE, make_rank
from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.flat_parameters import ALIGNMENT, FlatParameters
from dynapipe_hpc.training.optimizer import FIRST_SCALE, AdamW, DivergedError, Optimizer, Step
from dynapipe_hpc.training.overlapped_reduce import OverlappedGradientReduce

CONFIG = TrainingConfig(
    iterations=10,
    learning_rate=0.5,
    warmup_iterations=4,
    min_learning_rate_ratio=0.2,
    clip_norm=2.0,
    dtype="float64",
)


def small_module(dtype: torch.dtype = torch.float64) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 2, dtype=dtype)


@pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=lambda shape: shape.family)
def test_matrices_decay_but_neither_biases_nor_norms(shape: ModelShape) -> None:
    rank = make_rank(Cluster(device_memory_bytes=1), 0, SingleRankCollectives(), shape=shape)
    before = rank.weights()
    left = 1 - 0.1 * rank.optimizer.step().read().learning_rate  # all gradients are zero
    assert left < 1
    for name, weight in rank.weights().items():
        stays = "norm" in name or "bias" in name
        expected = before[name] * (1 if stays else left)
        torch.testing.assert_close(weight, expected, rtol=1e-12, atol=0, msg=name)


def test_norms_and_biases_decay_where_all_weights_do() -> None:
    config = CONFIG.model_copy(update={"decay": "all"})
    module = small_module()
    before = [weight.detach().clone() for weight in module.parameters()]
    optimizer = Optimizer(module, config, SingleRankCollectives())
    left = 1 - 0.1 * optimizer.step().read().learning_rate  # all gradients are zero
    for weight, old in zip(module.parameters(), before, strict=True):
        torch.testing.assert_close(weight, old * left, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("clip_norm", "share"), [(0.0, 1.0), (50.0, 0.5), (200.0, 1.0)])
def test_a_gradient_is_scaled_down_to_the_largest_norm_unless_that_is_0(
    clip_norm: float, share: float
) -> None:
    config = CONFIG.model_copy(update={"clip_norm": clip_norm})
    module = nn.Linear(4, 4, bias=False, dtype=torch.float64)
    optimizer = Optimizer(module, config, SingleRankCollectives())
    optimizer.parameters.gradients[:16] = 25.0  # of norm 100
    assert optimizer.step().read().gradient_norm == pytest.approx(100)
    average = optimizer.state()["first_moment"]
    assert average.values[:16].tolist() == pytest.approx([0.1 * 25 * share] * 16)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_ends_training(value: float) -> None:
    module = small_module()
    optimizer = Optimizer(module, CONFIG, SingleRankCollectives())
    optimizer.parameters.gradients[3] = value
    before = module.weight.tolist()
    started = optimizer.step()
    with pytest.raises(DivergedError, match=r"norm is (nan|inf) in step 0: training diverged; low"):
        started.read()
    assert module.weight.tolist() == before


def test_updates_may_be_skipped_until_too_many_in_a_row_were() -> None:
    module = small_module()
    config = CONFIG.model_copy(update={"max_skipped_updates": 2})
    optimizer = Optimizer(module, config, SingleRankCollectives())

    def step(gradient: float) -> Step:
        optimizer.parameters.gradients.fill_(gradient)
        return optimizer.step().read()

    before = module.weight.tolist()
    assert [step(math.nan).learning_rate for _ in range(2)] == [0, 0]
    assert module.weight.tolist() == before
    assert step(0.1).learning_rate > 0
    assert [step(math.inf).learning_rate for _ in range(2)] == [0, 0]
    with pytest.raises(DivergedError, match="norm is nan in step 5, after 2 skipped updates"):
        step(math.nan)


def one_step(dtype: torch.dtype, gradient: float) -> tuple[nn.Linear, Optimizer, Step]:
    module = small_module().to(dtype)
    optimizer = Optimizer(module, CONFIG, SingleRankCollectives())
    optimizer.parameters.gradients.fill_(gradient * optimizer.loss_scale.value)
    return module, optimizer, optimizer.step().read()


def test_a_gradient_that_overflows_in_float16_costs_a_step_and_half_the_scale() -> None:
    module, optimizer, step = one_step(torch.float16, math.inf)
    assert (step.learning_rate, step.gradient_norm) == (0, math.inf)
    assert torch.equal(module.weight, small_module().half().weight)
    assert optimizer.loss_scale.value == FIRST_SCALE / 2
    assert not optimizer.parameters.gradients.any()
    optimizer.parameters.gradients.fill_(0.1 * optimizer.loss_scale.value)
    assert optimizer.step().read().gradient_norm == pytest.approx(0.1 * 128**0.5, rel=1e-6)


def test_averages_are_of_gradients_without_the_loss_scale() -> None:
    _, optimizer, _ = one_step(torch.float16, 0.1)
    assert optimizer.loss_scale.value == FIRST_SCALE
    averages = optimizer.state()
    for kind, expected in (("first_moment", 0.1 * 0.1), ("second_moment", 0.05 * 0.1**2)):
        values = averages[kind].values.tolist()
        assert values == pytest.approx([expected] * len(values))


ADAMW_CONFIG = TrainingConfig(iterations=6, betas=(0.8, 0.95), weight_decay=0.2)
SIZES, SKIPPED = [617, 386], 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_updates_have_the_bits_of_torchs_optimizer(dtype: torch.dtype) -> None:
    stream = torch.Generator().manual_seed(1)
    weights = torch.randn(sum(SIZES), dtype=dtype, generator=stream)
    gradients = torch.empty_like(weights)
    own = AdamW(weights, gradients, SIZES[0], ADAMW_CONFIG)
    pieces = torch.split(weights.clone(), SIZES)
    reference = torch.optim.AdamW(
        [{"params": [piece], "weight_decay": d} for piece, d in zip(pieces, (0.2, 0), strict=True)],
        betas=(0.8, 0.95),
        fused=True,
    )
    for i in range(6):
        gradients.normal_(generator=stream)
        for piece, gradient in zip(pieces, torch.split(gradients, SIZES), strict=True):
            piece.grad = gradient.clone()
        own.update(0.1 / (i + 1), torch.tensor(float(i == SKIPPED)))
        for group in reference.param_groups:
            group["lr"] = 0.1 / (i + 1)
        if i != SKIPPED:
            reference.step()
        assert torch.equal(weights, torch.cat(pieces))
    assert own.n_updates == 5
    state = own.state(first=64)
    for kind, key in (("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq")):
        assert state[kind].start == 64
        of_reference = torch.cat([reference.state[piece][key] for piece in pieces])
        assert torch.equal(state[kind].values, of_reference)


def test_moments_take_no_memory_before_they_are_used() -> None:
    weights, gradients = torch.zeros(2, sum(SIZES))
    with LiveMemory() as live:
        adamw = AdamW(weights, gradients, SIZES[0], ADAMW_CONFIG)
        assert live.live_bytes == 2 * 4  # the numbers of updates
        adamw.update(0.1, torch.zeros(()))
        assert live.live_bytes >= 2 * weights.nbytes


def test_every_weight_is_where_its_view_says() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4))
    flat = FlatParameters(module, left_out=["1.bias"])
    assert [view.name for view in flat.views] == ["0.weight", "0.bias", "1.weight"]
    for view in flat.views:
        extent = slice(view.start, view.start + view.shape.numel())
        assert torch.equal(flat.weights[extent].view(view.shape), module.get_parameter(view.name))


class _HeadsNorm(nn.Module):
    """A norm with scales per head, as Cohere has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 5), 3.0))


def test_norms_do_not_decay_whatever_their_axes() -> None:
    module = nn.ModuleDict({"q": _HeadsNorm(), "maps": nn.Linear(5, 20)})
    flat = FlatParameters(module)
    assert flat.n_decaying == 2 * ALIGNMENT
    assert flat.weights[flat.n_decaying :].tolist()[:20] == [3.0] * 20
    assert not (flat.weights[: flat.n_decaying] == 3.0).any()


WIDTH = 8
STEADY = TrainingConfig(iterations=3, learning_rate=0.1, warmup_iterations=1, dtype="float64")


class TwoAlike(SingleRankCollectives):
    """A replica whose twin always has the same gradients; notes when matrices are added up."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def sum_over_replicas(self, values: Tensor) -> None:
        values *= 2

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:
        self.events.append(f"sum from {values.storage_offset() // WIDTH**2}")
        values *= 2
        return lambda: self.events.append("wait")


def layers(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).to(dtype)


def backward(module: nn.Module, seed: int = 0) -> None:
    stream = torch.Generator().manual_seed(seed)
    dtype = next(module.parameters()).dtype
    inputs = torch.randn(3, WIDTH, generator=stream, dtype=torch.float64).to(dtype)
    module(inputs).square().sum().backward()


def watched(
    module: nn.Sequential, collectives: TwoAlike, n_tied: int = 0
) -> tuple[FlatParameters, OverlappedGradientReduce]:
    own = FlatParameters(module)
    matrices = [p for p in module.parameters() if p.ndim == 2]
    sums = OverlappedGradientReduce(
        own, collectives, matrices[:n_tied], 2 * WIDTH**2 * own.gradients.itemsize
    )
    for i, matrix in enumerate(matrices):
        matrix.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, name=f"gradient {i}": collectives.events.append(name)
        )
    return own, sums


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_last_layers_are_added_up_while_the_first_still_compute(dtype: torch.dtype) -> None:
    module, expected, collectives = layers(dtype), layers(dtype), TwoAlike()
    own, sums = watched(module, collectives)
    reference = FlatParameters(expected)
    for seed in (0, 1):
        backward(module, seed)
        backward(expected, seed)
        assert not any(event.startswith("sum") for event in collectives.events)
    collectives.events.clear()
    sums.expect_last_backward(module.parameters())
    backward(module, 2)
    backward(expected, 2)
    sums.finish()
    order = ["gradient 3", "sum from 2", "gradient 2", "gradient 1", "sum from 0", "gradient 0"]
    assert collectives.events == [*order, "wait", "wait"]
    assert torch.equal(own.gradients, 2 * reference.gradients)


def test_weights_that_other_stages_add_to_wait_for_them() -> None:
    module, collectives = layers(), TwoAlike()
    own, sums = watched(module, collectives, n_tied=1)
    sums.expect_last_backward(module.parameters())
    backward(module)
    assert [event for event in collectives.events if "sum" in event] == ["sum from 2"]
    expected = 2 * own.gradients
    summed = slice(2 * WIDTH**2, own.n_decaying)
    expected[summed] = own.gradients[summed]
    sums.finish()
    assert torch.equal(own.gradients, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_nothing_outlives_a_stage_that_is_no_longer_used(dtype: torch.dtype) -> None:
    module, collectives = layers(dtype), TwoAlike()
    collectives.n_replicas, collectives.sums_beside_work = 2, True
    optimizer = Optimizer(module, STEADY, collectives)
    optimizer.expect_last_backward(module.parameters())
    backward(module)
    optimizer.reduce_gradients()
    assert "wait" in collectives.events  # sums have started early
    flat = optimizer.parameters
    held = [weakref.ref(each) for each in (*module.parameters(), flat.weights, flat.gradients)]
    del module, optimizer, flat
    gc.collect()
    assert [each() for each in held if each() is not None] == []


CLUSTER = Cluster(n_stages=6, n_shards=2, device_memory_bytes=1)
BIASES = ("encoder_bias.weight", "decoder_bias.weight")


@pytest.mark.parametrize("gradient", [0.0, 3.0])
def test_copies_get_the_owners_bits(gradient: float) -> None:
    world = LocalWorld(CLUSTER.n_ranks)
    sums = LocalSums(world, CLUSTER)

    def biases(rank: int) -> dict[str, Tensor]:
        collectives = LocalCollectives(sums, rank)
        own = make_rank(CLUSTER, collectives.stage, collectives, shape=T5_SHAPE)
        for name, parameter in own.module.named_parameters():
            if name in BIASES:
                parameter.data.fill_(0.1 * (1 + rank))
                assert parameter.grad is not None
                parameter.grad.fill_(gradient)
        own.optimizer.reduce_gradients()
        own.optimizer.step()
        return {name: weight for name, weight in own.weights().items() if name in BIASES}

    found = world.run(biases)
    for shard in range(2):
        for stages, name in (((0, 1, 2), BIASES[0]), ((3, 4, 5), BIASES[1])):
            first, *others = (found[CLUSTER.rank_of(0, s, shard)][name] for s in stages)
            assert first.any()
            assert all(torch.equal(first, other) for other in others)
