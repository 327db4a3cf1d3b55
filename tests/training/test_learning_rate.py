"""More iterations, and what becomes of the learning rate."""

import pytest

from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.learning_rate import describe_change, describe_longer, learning_rate

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


def test_a_rate_that_jumps_where_a_run_goes_on_is_named() -> None:
    assert describe_change(10, ENDED, ENDED) == ""
    assert describe_change(10, ENDED, longer(ENDED, decay_iterations=10)) == ""
    rate = learning_rate(10, longer(ENDED))
    assert describe_change(10, ENDED, longer(ENDED)) == (
        f"the learning rate of iteration 10 changes from 0.05 to {rate:.3g}; "
        "training.decay_iterations=10 keeps it"
    )
    assert rate == pytest.approx(0.275)  # half way down


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "constant", "decay_iterations": 10},
        {"learning_rate": 0.7, "decay_iterations": 10},
        {"learning_rate": 0.7},
        {"min_learning_rate_ratio": 0.2},
        {"warmup_iterations": 12, "decay_iterations": 20},
    ],
)
def test_what_does_not_keep_the_rate_is_not_advised(changes: dict[str, object]) -> None:
    config = longer(ENDED, **changes)
    rate = learning_rate(10, config)
    message = f"the learning rate of iteration 10 changes from 0.05 to {rate:.3g}"
    assert describe_change(10, ENDED, config) == message


def test_an_end_of_the_decay_that_is_left_out_or_moved_is_advised_again() -> None:
    earlier = longer(ENDED, decay_iterations=8)
    for changed in (longer(ENDED), longer(ENDED, decay_iterations=15)):
        assert "; training.decay_iterations=8 keeps it" in describe_change(9, earlier, changed)


def test_who_raises_iterations_is_told_only_what_is_so() -> None:
    in_warmup = longer(ENDED, iterations=10, warmup_iterations=10)
    assert "it stays" not in describe_longer(in_warmup)
