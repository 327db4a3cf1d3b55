import math

import pytest
import torch
from torch import nn

from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.gradients import DivergedError, FlatGradients
from dynapipe_hpc.training.optimizer import Optimizer, learning_rate

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


def test_the_learning_rate_stays_low_after_the_last_step() -> None:
    assert learning_rate(25, CONFIG) == pytest.approx(0.1)


def test_a_run_of_warm_up_alone_ends_at_the_top() -> None:
    config = TrainingConfig(iterations=3, warmup_iterations=3, learning_rate=0.3)
    assert learning_rate(2, config) == 0.3


def small_module() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 2, dtype=torch.float64)


def test_gradients_of_all_parameters_share_a_buffer() -> None:
    module = small_module()
    gradients = FlatGradients(module.parameters())
    module(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    assert gradients.flat.tolist() == [1] * 8
    assert gradients.square_sum() == pytest.approx(8)
    gradients.clip(norm=4.0, limit=1.0)
    assert module.bias.grad is not None
    assert module.bias.grad.tolist() == [0.25, 0.25]
    gradients.clear()
    assert module.bias.grad.tolist() == [0, 0]


def test_a_small_gradient_is_not_scaled_up() -> None:
    gradients = FlatGradients(small_module().parameters())
    gradients.flat.fill_(0.1)
    gradients.clip(norm=0.3, limit=1.0)
    assert gradients.flat.tolist() == [0.1] * 8


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
        done = optimizer.step()
        assert done.gradient_norm == pytest.approx(norm)
        assert done.learning_rate == learning_rate(step, CONFIG)
    torch.testing.assert_close(module.weight, reference.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module.bias, reference.bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_ends_training(value: float) -> None:
    module = small_module()
    optimizer = Optimizer(module, CONFIG, SingleRankCollectives())
    optimizer.gradients.flat[3] = value
    before = module.weight.tolist()
    with pytest.raises(DivergedError, match=r"norm is (nan|inf) in step 0: training diverged; low"):
        optimizer.step()
    assert module.weight.tolist() == before
