"""The learning rate: against `transformers`, as told of longer runs, and its table."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import optimization as schedules

from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.learning_rate import describe_longer, learning_rate

ENDED = TrainingConfig(iterations=10, learning_rate=0.5, warmup_iterations=2)


def longer(config: TrainingConfig, **changes: object) -> TrainingConfig:
    return TrainingConfig.model_validate({**config.model_dump(), "iterations": 20, **changes})


def test_a_decay_of_its_own_leaves_every_rate_of_a_longer_run() -> None:
    config = longer(ENDED, decay_iterations=10)
    for step in range(10):
        assert learning_rate(step, config) == learning_rate(step, ENDED)
    assert {learning_rate(step, config) for step in range(9, 20)} == {learning_rate(9, ENDED)}


def test_who_raises_iterations_is_told_what_the_rate_does() -> None:
    assert "now 0.05, then follows the longer decay" in describe_longer(ENDED)
    assert "with training.decay_iterations=10 it stays at 0.05" in describe_longer(ENDED)
    kept = longer(ENDED, iterations=10, decay_iterations=10)
    assert describe_longer(kept) == "the learning rate continues at 0.05"


def test_who_raises_iterations_is_told_only_what_is_so() -> None:
    in_warmup = longer(ENDED, iterations=10, warmup_iterations=10)
    assert "it stays" not in describe_longer(in_warmup)


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


KNOWN = {"iterations": N_STEPS, "warmup_iterations": N_WARM_UP}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (KNOWN | {"schedule": "linear", "decay_length": 17}, r"\(17\) exceed the 20 steps"),
        (KNOWN | {"schedule": "constant", "decay_length": 5}, "no effect on .* to .linear"),
        (
            {"iterations": 8, "warmup_iterations": 5, "decay_iterations": 4},
            r"\(5\) exceeds decay_iterations \(4\).*; raise decay",
        ),
        ({}, "exactly one of .* is needed; none is given"),
        ({"iterations": 8, "epochs": 2.0}, "is needed; iterations and epochs are given"),
    ],
)
def test_lengths_that_do_not_go_together_are_refused(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate(values)
