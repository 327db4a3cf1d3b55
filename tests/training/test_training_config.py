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


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "none is"), ({"iterations": 8, "epochs": 2.0}, "iterations and epochs are")],
)
def test_a_run_has_one_length(given: dict[str, float], found: str) -> None:
    with pytest.raises(ValidationError, match=f"exactly one of .* is needed; {found} given"):
        TrainingConfig.model_validate(given)


def test_epochs_become_iterations_that_are_checked() -> None:
    config = TrainingConfig(epochs=2.0, warmup_iterations=5)
    known = config.of_length(8)
    assert (known.iterations, known.epochs, known.warmup_iterations) == (8, None, 5)
    with pytest.raises(ValidationError, match=r"warmup_iterations \(5\) exceeds iterations \(4\)"):
        config.of_length(4)


def test_averages_that_never_forget_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"betas\.1\n +Input should be less than 1"):
        TrainingConfig(iterations=8, betas=(0.9, 1.0))
