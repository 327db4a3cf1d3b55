import math

import pytest
import torch
from tests.examples.training_case import SHAPE, T5_SHAPE, make_rank
from torch import nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.learning_rate import learning_rate
from dynapipe_hpc.training.optimizer import (
    FIRST_SCALE,
    DivergedError,
    Optimizer,
    Step,
)

CONFIG = TrainingConfig(
    iterations=10,
    learning_rate=0.5,
    warmup_iterations=4,
    min_learning_rate_ratio=0.2,
    clip_norm=2.0,
    dtype="float64",
)


def test_the_learning_rate_rises_then_falls_along_a_cosine() -> None:
    rates = [learning_rate(step, CONFIG) for step in range(10)]
    assert rates[:4] == [0.125, 0.25, 0.375, 0.5]
    assert rates[6] == pytest.approx(0.3)  # half way between 0.5 and 0.1
    assert rates[9] == pytest.approx(0.1)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def small_module() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 2, dtype=torch.float64)


def test_steps_are_those_of_clipped_adamw() -> None:
    module, reference = small_module(), small_module()
    optimizer = Optimizer(module, CONFIG, SingleRankCollectives())
    adamw = torch.optim.AdamW(
        [{"params": [reference.weight], "weight_decay": 0.1},
         {"params": [reference.bias], "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )  # fmt: skip
    for step in range(5):
        inputs = torch.full((1, 3), 0.4 * step, dtype=torch.float64)
        for model in (module, reference):
            model(inputs).square().sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 2.0).item()
        for group in adamw.param_groups:
            group["lr"] = learning_rate(step, CONFIG)
        adamw.step()
        adamw.zero_grad()
        done = optimizer.step().read()
        assert done.gradient_norm == pytest.approx(norm)
        assert done.learning_rate == learning_rate(step, CONFIG)
    torch.testing.assert_close(module.weight, reference.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module.bias, reference.bias, rtol=1e-5, atol=1e-6)


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


def test_a_step_in_16_bits_is_the_float32_step_rounded() -> None:
    exact, _, _ = one_step(torch.float32, 0.1)
    rounded, _, step = one_step(torch.bfloat16, 0.1)
    assert rounded.weight.dtype == torch.bfloat16
    assert step.learning_rate > 0
    torch.testing.assert_close(rounded.weight.float(), exact.weight, rtol=0.01, atol=1e-3)


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


def test_a_gradient_that_is_no_number_at_any_scale_ends_training_in_float16_too() -> None:
    _, optimizer, _ = one_step(torch.float16, math.nan)
    with pytest.raises(DivergedError, match="norm is nan in step 16: training diverged"):
        for _ in range(100):
            optimizer.parameters.gradients.fill_(math.nan)
            optimizer.step().read()
