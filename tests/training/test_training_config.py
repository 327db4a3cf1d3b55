import pytest
from pydantic import ValidationError

from dynapipe_hpc.training.config import TrainingConfig


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"warmup_iterations \(9\) exceeds iterations \(8\)"):
        TrainingConfig(iterations=8, warmup_iterations=9)


def test_a_warm_up_longer_than_the_decay_is_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"\(5\) exceeds decay_iterations \(4\).*; raise decay"
    ):
        TrainingConfig(iterations=8, warmup_iterations=5, decay_iterations=4)


def test_averages_that_never_forget_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"betas must be >= 0 and < 1, got \[0.9, 1.0\]"):
        TrainingConfig(iterations=8, betas=(0.9, 1.0))
