"""Every schedule against the one of `transformers`, which counts from a rate of zero."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.learning_rate import learning_rate

PEAK = 0.5
N_STEPS, N_WARM_UP, N_DECAY = 20, 4, 6
LOWEST = 0.1


def config(**changes: Any) -> TrainingConfig:
    known = {
        "iterations": N_STEPS,
        "learning_rate": PEAK,
        "warmup_iterations": N_WARM_UP,
        "min_learning_rate_ratio": LOWEST,
    }
    return TrainingConfig(**known | changes)


def rates(**changes: Any) -> list[float]:
    return [learning_rate(step, config(**changes)) for step in range(N_STEPS + 5)]


def expected(make: Callable[..., Any], *args: Any, **kwargs: Any) -> list[float]:
    """The rates of a scheduler of `transformers` after its first step, whose rate is 0."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    scheduler = make(optimizer, *args, **kwargs)
    found = []
    for _ in range(N_STEPS + 5):
        optimizer.step()
        scheduler.step()
        found.append(scheduler.get_last_lr()[0])
    return found


def test_schedules_are_those_of_transformers() -> None:
    schedules = pytest.importorskip("transformers.optimization")
    # Beyond its last step, that of `transformers` would rise along the cosine again.
    cosine = expected(
        schedules.get_cosine_with_min_lr_schedule_with_warmup,
        N_WARM_UP,
        N_STEPS,
        min_lr_rate=LOWEST,
    )[:N_STEPS]
    assert rates() == pytest.approx(cosine + [PEAK * LOWEST] * 5)
    linear = expected(schedules.get_linear_schedule_with_warmup, N_WARM_UP, N_STEPS)
    assert rates(schedule="linear", min_learning_rate_ratio=0.0) == pytest.approx(linear)
    constant = expected(schedules.get_constant_schedule_with_warmup, N_WARM_UP)
    assert rates(schedule="constant") == pytest.approx(constant)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_decay_length_of_its_own_is_the_warmup_stable_decay_of_transformers(
    schedule: str,
) -> None:
    schedules = pytest.importorskip("transformers.optimization")
    # With a minimum, the warm-up of `transformers` would begin there, ours at zero.
    stable = expected(
        schedules.get_wsd_schedule,
        num_warmup_steps=N_WARM_UP,
        num_decay_steps=N_DECAY,
        num_training_steps=N_STEPS,
        min_lr_ratio=LOWEST,
        decay_type=schedule,
    )
    found = rates(schedule=schedule, decay_length=N_DECAY)
    assert found[N_WARM_UP:] == pytest.approx(stable[N_WARM_UP:])
    assert found[:N_WARM_UP] == rates()[:N_WARM_UP]


def test_a_decay_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"decay_length \(17\) exceed the 20 steps"):
        config(schedule="linear", decay_length=17)
    with pytest.raises(ValidationError, match=r"decay_length \(5\) has no effect on .* to .linear"):
        config(schedule="constant", decay_length=5)
